"""Which processors of transformers the sampler takes over."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from aegis.decode.processors import fuse
from transformers.generation import logits_process as hf

TEMPERATURE, TOP_K, TOP_P, MIN_P = (
    hf.TemperatureLogitsWarper(0.5),
    hf.TopKLogitsWarper(7),
    hf.TopPLogitsWarper(0.9),
    hf.MinPLogitsWarper(0.1),
)
ALL = {"do_sample": True, "keep_ties": True, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1}
NGRAM, PENALTY = hf.NoRepeatNGramLogitsProcessor(2), hf.RepetitionPenaltyLogitsProcessor(1.5)


def test_all_of_them_in_their_order():
    assert fuse([TEMPERATURE, TOP_K, TOP_P, MIN_P], do_sample=True) == ([], ALL)
    assert fuse([TEMPERATURE, TOP_K, TOP_P, MIN_P, hf.LogitNormalization()], do_sample=True) == ([], ALL)


def test_another_order_is_left_alone():
    before, options = fuse([TOP_P, TEMPERATURE, TOP_K], do_sample=True)
    assert before == [TOP_P]
    assert options == {"do_sample": True, "keep_ties": True, "temperature": 0.5, "top_k": 7}


@pytest.mark.parametrize(
    "warper",
    [
        hf.TopPLogitsWarper(0.9, min_tokens_to_keep=2),
        hf.TopPLogitsWarper(0.9, filter_value=-1e4),
        hf.TypicalLogitsWarper(0.9),
        type("Own", (hf.TopKLogitsWarper,), {})(7),
    ],
)
def test_what_the_sampler_does_otherwise_is_left_alone(warper):
    before, options = fuse([TEMPERATURE, warper], do_sample=True)
    assert before == [TEMPERATURE, warper]
    assert set(options) == {"do_sample", "keep_ties"}


def test_repetition_penalty_alone_or_behind_others():
    assert fuse([PENALTY], do_sample=False) == ([], {"do_sample": False, "repetition_penalty": 1.5})
    assert fuse([PENALTY, TEMPERATURE], do_sample=True).options["repetition_penalty"] == 1.5
    assert fuse([NGRAM, PENALTY], do_sample=False) == ([NGRAM, PENALTY], {"do_sample": False})


def test_greedy_takes_over_no_warper():
    assert fuse([], do_sample=False) == ([], {"do_sample": False})
    assert fuse([TOP_K], do_sample=False) == ([TOP_K], {"do_sample": False})
