"""Texts that a SpeculativeFastRunner draws follow the law of the target alone, whatever the draft."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import FusedLogitsSampler, PromptLookup, SpeculativeFastRunner
from aegis.decode.accept import accept_by_ratio
from speculation import TARGET, another, assert_texts_follow_the_law, small_models

NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 1}], ids=str)
def test_with_a_greedy_draft_sampled_tokens_are_those_of_generate(llama, rows, options):
    """The target's own draws decide, so a seed means the same with and without a draft."""
    ids, mask = tiny_models.padded(rows)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "top_k": 20, "seed": 3, **options}
    want = aegis.generate(llama, ids, **options)
    greedy = FusedLogitsSampler(do_sample=False)
    assert torch.equal(aegis.generate(llama, ids, draft=llama, draft_sampler=greedy, **options), want)
    assert torch.equal(aegis.generate(llama, ids, draft=PromptLookup(), **options), want)


ROWS = 100_000


DRAFTS = {
    "as the target": (None, torch.float32),
    "own settings": ({"temperature": 1.5, "top_k": 3}, torch.float32),
    "bfloat16": ({"top_p": 0.9}, torch.bfloat16),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_sampled_texts_follow_the_targets_law_case37_case38_case40_case41(kind):
    """χ² of 10^5 texts against their exact probabilities, with guesses that are drawn and kept by p/q."""
    settings, dtype = DRAFTS[kind]
    target, draft = small_models(8, dtype)
    runner = SpeculativeFastRunner(
        target,
        draft,
        2,
        batch_size=ROWS,
        max_cache_len=10,
        sampler=FusedLogitsSampler(**TARGET, seed=11),
        draft_sampler=FusedLogitsSampler(**settings) if settings else None,
    )
    assert_texts_follow_the_law(runner, target, ROWS, 4)


def test_guesses_are_kept_by_the_ratio_and_replaced_from_what_is_left():
    """p = (.5, .5, 0), q = (.8, 0, .2): token 0 is kept with 5/8, token 2 never, and the rest goes to token 1."""
    rows = 40_000
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]).expand(rows, 2, 3)
    q = torch.tensor([[[0.8, 0.0, 0.2]]]).expand(rows, 1, 3)
    guesses = torch.zeros(rows, 1, dtype=torch.int64)
    guesses[rows * 4 // 5 :] = 2
    state = torch.zeros(rows, 4, dtype=torch.int64)
    state[:, 1] = torch.arange(rows)
    kept, following = accept_by_ratio(p, q, guesses, state)
    zeros = guesses[:, 0] == 0
    assert abs(float(kept[zeros].float().mean()) - 0.625) < 0.01
    assert not kept[~zeros].any()
    assert (following == torch.where(kept == 1, 2, 1)).all()


def test_equal_distributions_keep_every_guess():
    """Also where p and q differ by rounding and nothing is left to draw a replacement from."""
    p = torch.softmax(torch.randn(50, 3, 7, generator=torch.Generator().manual_seed(0)), 2)
    state = torch.zeros(50, 4, dtype=torch.int64)
    state[:, 1] = torch.arange(50)
    kept, following = accept_by_ratio(p, p[:, :2], p[:, :2].argmax(2), state)
    assert (kept == 2).all()
    assert (following < 7).all()


def test_a_rows_tokens_do_not_depend_on_its_mates(llama):
    ids, draft = tiny_models.prompts(3), another("llama")
    options = {"max_new_tokens": 12, "pad_token_id": 0, "temperature": 0.7, "draft": draft}
    alone = [aegis.generate(llama, ids[row : row + 1], seed=[row], **options) for row in range(3)]
    together = aegis.generate(llama, ids, seed=[0, 1, 2], **options)
    # near the end, fewer guesses fit behind the longest row: draws are then used otherwise
    assert torch.equal(together[:, :14], torch.cat(alone)[:, :14])


@pytest.mark.parametrize("broken", [[3], [0, 5, 96], list(range(97))], ids=len)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_scores_that_are_no_distribution_end_nothing(llama, broken, value):
    """A NaN takes the largest number of its row, as the sampler does; infinities mean what they say."""

    def breaks(input_ids, scores):
        return scores.index_fill_(1, torch.tensor(broken), value)

    ids = tiny_models.prompts(2)
    options = {"max_new_tokens": 8, "pad_token_id": 0, "seed": 1, "logits_processor": [breaks]}
    got = aegis.generate(llama, ids, draft=another("llama"), **options)
    assert ((got >= 0) & (got < tiny_models.VOCABULARY)).all()
    if value == torch.inf:
        assert (got[:, 9:] == broken[0]).all()
    elif value == -torch.inf and len(broken) < 97:
        assert not torch.isin(got[:, 9:], torch.tensor(broken)).any()
