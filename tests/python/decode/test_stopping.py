"""When rows are finished."""

from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from aegis.decode.stopping import Stopping  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers.generation import stopping_criteria as hf  # noqa: E402


def config(max_length=100, pad=0):
    return SimpleNamespace(max_length=max_length, _pad_token_tensor=None if pad is None else torch.tensor(pad))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=3), st.data())
def test_same_rows_end_at_the_same_step_as_by_search(rows, data):
    sequences = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=2))
    ends = data.draw(st.sets(st.integers(0, 3), max_size=1))
    length = min(map(len, rows))
    tokens = torch.tensor([row[:length] for row in rows])
    criteria = [hf.EosTokenCriteria(sorted(ends))] if ends else []
    stopping = Stopping(config(), criteria, sequences, len(rows))
    expected = [False] * len(rows)
    for n in range(1, length + 1):
        done = stopping.step(tokens[:, n - 1].tolist(), tokens[:, :n])
        for i, row in enumerate(tokens.tolist()):
            prefix = row[:n]
            expected[i] |= prefix[-1] in ends or any(prefix[-len(s) :] == s for s in sequences)
        assert stopping.finished == expected
        assert done == all(expected)


def test_length_ends_everything():
    stopping = Stopping(config(max_length=3), [hf.MaxLengthCriteria(3)], [], 2)
    assert not stopping.step([1, 1], torch.ones(2, 2))
    assert stopping.step([1, 1], torch.ones(2, 3))
    assert stopping.finished == [False, False]


def test_other_criteria_are_asked():
    stopping = Stopping(config(), [lambda ids, scores: torch.tensor([False, ids.shape[1] > 1])], [], 2)
    assert not stopping.step([1, 1], torch.ones(2, 1))
    assert not stopping.step([1, 1], torch.ones(2, 2))
    assert stopping.finished == [False, True]


def test_bad_input():
    with pytest.raises(ValueError, match="stop_sequences: expected sequences of at least 1 token"):
        Stopping(config(), [], [[1], []], 1)
    with pytest.raises(ValueError, match="pad_token_id: expected a token"):
        Stopping(config(pad=None), [hf.EosTokenCriteria(3)], [], 2)
    Stopping(config(pad=None), [hf.EosTokenCriteria(3)], [], 1)  # one row needs no filling up
