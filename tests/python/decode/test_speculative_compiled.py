"""SpeculativeFastRunner with compiled passes, one after another, gives what it gives without."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import FusedLogitsSampler, PromptLookup, SpeculativeFastRunner, compiled_pass
from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.compiled_pass import CompiledPasses

NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


@pytest.fixture
def fed(monkeypatch):
    """Sizes of the passes that were compiled ones."""
    sizes = []
    feed = CompiledPasses.feed

    def noted(self, tokens, padding):
        sizes.append(tokens.shape[1])
        return feed(self, tokens, padding)

    monkeypatch.setattr(CompiledPasses, "feed", noted)
    return sizes


def test_greedy_tokens_are_the_targets_own(llama, fed):
    """Both models, rows that are padded and that get ahead of each other, and a second text without compilation."""
    draft = tiny_models.make("llama")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in draft.parameters():  # right about half the time
            weight += torch.randn(weight.shape, generator=generator) * 0.05 * weight.std()
    # Neither the penalty nor what raises is of the kind that compiled_round takes.
    strict = FusedLogitsSampler(do_sample=False, strict=True)
    runner = SpeculativeFastRunner(
        llama, draft, 2, batch_size=2, max_cache_len=64, draft_sampler=strict, mode="compiled"
    )
    assert runner.mode == "compiled"
    for seed in (1, 2):
        ids, mask = tiny_models.padded(2, seed=seed)
        options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "repetition_penalty": 1.05}
        want = llama.generate(ids, do_sample=False, **options)
        assert torch.equal(aegis.generate(llama, ids, runner=runner, **options), want)
    assert set(fed) == {1, 2, 3}
    assert 0.2 < runner.stats()["acceptance_rate"] < 0.9


def test_logits_are_those_of_an_eager_pass(fed):
    """Sliding windows that have wrapped, beside full layers; rows of different lengths and padding."""
    model = tiny_models.make("gemma3", num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    ids, mask = tiny_models.padded(2, 20)
    block = tiny_models.prompts(2, 3, seed=7)
    eager, compiled = (BlockDecoder(model, 2, 64, 5, compiled=sizes) for sizes in ((), (3,)))
    results = []
    with torch.no_grad(), eager.runner, compiled.runner:
        for decoder in (eager, compiled):
            decoder.prefill(ids, mask, 1024, None)
            mine = [decoder.feed(block, 0)]
            decoder.keep(0, [21, 23])
            mine += [decoder.feed(block, 0), decoder.feed(block[:1], 1)]
            results.append(mine)
    assert fed == [3, 3]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
    assert compiled.cache.row_lengths == eager.cache.row_lengths == [24, 29]
    assert torch.equal(compiled.cache.lengths, eager.cache.lengths)


def test_a_full_cache_is_an_error_and_stays_as_it_is(llama):
    decoder = BlockDecoder(llama, 1, 11, 2, compiled=(3,))
    with torch.no_grad(), decoder.runner:
        decoder.prefill(tiny_models.prompts(1), None, 1024, None)
        with pytest.raises(ValueError, match="at most 11 tokens"):
            decoder.feed(tiny_models.prompts(1, 3), 0)
        assert decoder.cache.row_lengths == decoder.cache.lengths.tolist() == [9]


def test_unknown_mode_is_named(llama):
    with pytest.raises(ValueError, match="mode: expected 'auto', 'eager' or 'compiled', got 'fast'"):
        SpeculativeFastRunner(llama, PromptLookup(), mode="fast")
    for options in ({"tree": (2, 1)}, {"overlap": True}, {"paged": True}):
        with pytest.raises(ValueError, match="mode: expected 'eager' with a tree, overlap or pages, got 'compiled'"):
            SpeculativeFastRunner(llama, llama, mode="compiled", **options)


def test_a_number_that_a_user_sets_is_compiled_anew_between_texts(monkeypatch):
    compiled = []
    monkeypatch.setattr(compiled_pass, "compiled", lambda function: compiled.append(function) or function)
    model, ids = tiny_models.make("llama", num_hidden_layers=1), tiny_models.prompts(1)
    layer = model.model.layers[0]
    layer.number = layer.calls = 0
    layer.register_forward_hook(lambda *_: setattr(layer, "calls", layer.calls + 1))
    with SpeculativeFastRunner(model, None, 2, max_cache_len=64, mode="compiled") as runner:
        counts = []
        for number in (0, 0, 5, 5):
            layer.number = number
            runner.prefill(ids)
            for _ in range(4):
                runner.step()
            runner.reset()
            counts.append(len(compiled))
    assert counts[0] == counts[1] < counts[2] == counts[3] == 2 * counts[0]
