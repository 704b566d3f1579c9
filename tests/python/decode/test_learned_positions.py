"""A cache longer than the positions that a model has learned is refused before anything happens."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode.huggingface import learned_positions


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_known_where_a_model_has_learned_them(family):
    assert learned_positions(tiny_models.make(family)) == (256 if family in ("gpt2", "opt") else None)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_longer_cache_is_refused(family):
    model, llama = tiny_models.make(family), tiny_models.make("llama")
    ids = tiny_models.prompts(1)
    long = aegis.SlottedStaticCache(model.config, 1, 257)
    asked = {
        "": [
            lambda: aegis.CUDAGraphFastRunner(model, max_cache_len=257),
            lambda: aegis.CUDAGraphFastRunner(model, cache=long, mode="compiled"),
            lambda: aegis.SpeculativeFastRunner(model, max_cache_len=257),
            lambda: aegis.generate(model, ids, max_new_tokens=249, do_sample=False),
            lambda: aegis.generate(model, ids, max_new_tokens=249, do_sample=False, draft=aegis.decode.PromptLookup()),
        ],
        "draft: ": [lambda: aegis.SpeculativeFastRunner(llama, model, max_cache_len=257)],
    }
    for who, calls in asked.items():
        for call in calls:
            with pytest.raises(
                ValueError, match=f"^{who}max_cache_len: expected at most 256, the positions that .* 257"
            ):
                call()


@pytest.mark.parametrize("family", ["gpt2", "opt"])
@torch.no_grad()
def test_every_position_can_be_used(family):
    """The last token of a text is never fed."""
    model = tiny_models.make(family)
    ids = tiny_models.prompts(1, 250)
    want = model.generate(ids, max_new_tokens=7, do_sample=False, pad_token_id=0)
    assert torch.equal(aegis.generate(model, ids, max_new_tokens=7, do_sample=False), want)
