"""What the threads of a draft and its target tell each other."""

import aegis
import numpy as np
import pytest
from aegis.decode.overlap_entries import NONE, Kind, Order, block, checked, order
from aegis.decode.text_checksum import TextChecksum
from aegis.evidence import IntegrityChain
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(TOKENS, max_size=9), st.lists(st.one_of(TOKENS.map(lambda t: ("append", t)), st.integers(0, 9))))
def test_a_checksum_is_that_of_an_integrity_chain_at_every_length(first, steps):
    text, begin = list(first), len(first)
    checksum = TextChecksum(np.array(first, np.int64))
    for step in steps:
        if isinstance(step, tuple):
            text.append(step[1])
            assert checksum.append(step[1]) == checksum.value
        else:
            del text[max(len(text) - step, begin) :]
            checksum.cut(len(text))
        chain = IntegrityChain(bits=32, lanes=False)
        chain.add(0, 0.0, np.array(text[:begin], np.int64))
        for position in range(begin, len(text)):
            chain.add(position, 0.0, np.array([text[position]], np.int64))
        assert checksum.value == chain.value


@given(
    st.integers(0, 2**40),
    st.booleans(),
    st.integers(0, 100),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**32 - 1)), min_size=1, max_size=5) | st.none(),
)
def test_orders_arrive_as_they_were_sent(number, hold, guesses, ahead, ends):
    sent = Order(number, hold, guesses, ahead, ends)
    assert order(list(sent.entries())) == sent


TEXTS = [np.array([5, 6, 7]), np.array([8]), np.array([9, 9])]
GUESSES = np.array([[1, 2, 3], [0, 0, 0], [200_000, 5, 0]])
COUNTS, LENGTHS = [3, 0, 2], [3, 1, 2]


def sent(probabilities=None):
    return block(12, GUESSES, COUNTS, LENGTHS, probabilities, [TextChecksum(text) for text in TEXTS])


def test_a_block_is_guesses_with_parents_slots_and_checksums():
    q = np.linspace(0.1, 0.9, 9, dtype=np.float32).reshape(3, 3)
    head, *guesses = entries = sent(q)
    assert entries.dtype == aegis.SpscRing.dtype
    assert (head["flags"], head["sequence"], head["token"], head["position"]) == (Kind.BLOCK, 12, 5, 3)
    got = [[int(guess[name]) for name in ("sequence", "token", "position", "parent", "slot")] for guess in guesses]
    assert got == [
        [0, 1, 3, NONE, 0],
        [0, 2, 4, 0, 1],
        [0, 3, 5, 1, 2],
        [2, 200_000, 2, NONE, 6],
        [2, 5, 3, 3, 7],
    ]
    assert [guess["draft_probability"] for guess in guesses] == [q[0, 0], q[0, 1], q[0, 2], q[2, 0], q[2, 1]]
    assert {int(guess["slot"]) for guess in sent()[1:]} == {NONE}
    found = checked(entries[1:], LENGTHS, [TextChecksum(text) for text in TEXTS])
    assert found == [[1, 2, 3], [], [200_000, 5]]


@pytest.mark.parametrize("row", range(3))
def test_another_text_is_named_by_both_checksums(row):
    others = [text.copy() for text in TEXTS]
    others[row][0] += 1
    checksums = [TextChecksum(text) for text in others]
    if row == 1:  # which has no guesses
        assert len(checked(sent()[1:], LENGTHS, checksums)) == 3
        return
    guess = sent()[1 if row == 0 else 4]
    want = TextChecksum(others[row]).append(int(guess["token"]))
    match = f"of row {row} to attest .* checksum is {want:08x}, got {int(guess['attestation']):08x}"
    with pytest.raises(RuntimeError, match=match):
        checked(sent()[1:], LENGTHS, checksums)


def test_guesses_in_a_gap_or_of_no_row_are_refused():
    for at, field, value in ((1, "sequence", 3), (2, "position", 7)):
        entries = sent()
        entries[at][field] = value
        with pytest.raises(RuntimeError, match="draft: expected the next guess of one of 3 rows"):
            checked(entries[1:], LENGTHS, [TextChecksum(text) for text in TEXTS])
