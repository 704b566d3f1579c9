"""FusedLogitsSampler.probabilities is the distribution that the sampler draws from."""

import math

import pytest
import torch
from aegis.decode import FusedLogitsSampler
from hypothesis import given, settings
from hypothesis import strategies as st

numbers = st.sampled_from([-math.inf, -3.0, -1.0, 0.0, 0.5, 0.5, 1.0, 2.0, 4.0])


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.lists(numbers, min_size=6, max_size=6), min_size=1, max_size=3),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.integers(0, 7),
    top_p=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.6]),
    keep_ties=st.booleans(),
)
def test_each_token_has_the_probability_that_the_operator_tells(rows, temperature, top_k, top_p, min_p, keep_ties):
    """With many draws of every row, each drawn token's logprob is that of probabilities(), and all support is drawn."""
    logits = torch.tensor(rows)
    table = torch.tensor([[temperature, top_k, top_p, min_p]])
    got = torch.ops.aegis.token_probabilities(logits, table, keep_ties)
    torch.testing.assert_close(got.sum(1), torch.ones(len(rows)))
    draws = 400
    state = torch.zeros(len(rows) * draws, 4, dtype=torch.int64)
    state[:, 2] = torch.arange(len(state))
    tokens, valid, logprobs = torch.ops.aegis.sample(logits.repeat_interleave(draws, 0), table, state, keep_ties)
    for row in range(len(rows)):
        mine = slice(row * draws, (row + 1) * draws)
        if not valid[mine].all():
            assert (got[row] == 1).sum() == 1
            continue
        torch.testing.assert_close(got[row][tokens[mine]].log(), logprobs[mine], rtol=1e-5, atol=1e-5)
        likely = (got[row] > 0.05).nonzero().flatten().tolist()
        assert set(likely) <= set(tokens[mine].tolist())


def test_rows_that_are_broken_take_one_token():
    logits = torch.tensor([[1.0, math.nan, 3.0], [math.inf, 0.0, math.inf], [-math.inf] * 3])
    assert FusedLogitsSampler().probabilities(logits).tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]
    strict = FusedLogitsSampler(strict=True)
    for row, wrong in ((0, logits), (1, logits[1:])):
        with pytest.raises(ValueError, match=f"logits: row {row} has a NaN, or nothing above -inf"):
            strict.probabilities(wrong)
    assert strict.probabilities(logits[1:2]).tolist() == [[1, 0, 0]]


def test_takes_and_raises_what_a_call_does():
    sampler, out = FusedLogitsSampler(top_k=2), torch.empty(2, 3, 4)
    logits = torch.randn(2, 4, requires_grad=True)
    assert not sampler.probabilities(logits).requires_grad
    assert sampler.probabilities(logits, out=out[:, 1]).data_ptr() == out[:, 1].data_ptr()
    assert torch.equal(out[:, 1], sampler.probabilities(logits))
    for wrong, error in (([1.0], TypeError), (torch.zeros(4), ValueError), (torch.zeros(2, 4).double(), ValueError)):
        for call in (sampler, sampler.probabilities):
            with pytest.raises(error, match=r"logits|scores"):
                call(wrong)


def test_settings_of_each_row_bias_and_penalties_count():
    sampler = FusedLogitsSampler(temperature=[1.0, 0.0, 2.0], repetition_penalty=2.0, logit_bias={3: -math.inf}, seed=1)
    logits = torch.tensor([[2.0, 1.0, 0.0, 9.0]]).repeat(3, 1)
    got = sampler.probabilities(logits, torch.tensor([[0], [0], [1]]))
    want = torch.softmax(torch.tensor([1.0, 1.0, 0.0]), 0)
    torch.testing.assert_close(got[0], torch.cat([want, torch.zeros(1)]))
    assert got[1].tolist() == [1, 0, 0, 0]
    torch.testing.assert_close(got[2, :3], torch.softmax(torch.tensor([2.0, 0.5, 0.0]) / 2, 0))
    assert int(sampler.state[0, 2]) == 0, "asking is not drawing"


def test_another_batch_with_rows_of_this_one():
    sampler = FusedLogitsSampler(temperature=[1.0, 0.0], top_k=[2, 3], seed=[4, 5])
    other = sampler.for_rows([1, 1, 0])
    got = other.probabilities(torch.tensor([[0.0, 1.0, 2.0]]).repeat(3, 1))
    assert got[0].tolist() == got[1].tolist() == [0, 0, 1]
    assert (got[2] > 0).tolist() == [False, True, True]
