"""SlottedStaticCache in transformers' own generate, bit for bit against DynamicCache."""

from __future__ import annotations

import aegis
import pytest
import tiny_models
import torch
import transformers

VERSION_5 = int(transformers.__version__.split(".")[0]) >= 5
NEW = 24
FAMILIES = [family for family in tiny_models.FAMILIES if family != "gemma2"]  # which refuses "sdpa"


def slotted(model, batch_size=1, max_cache_len=64, **options):
    return aegis.SlottedStaticCache.from_config(model.config, batch_size, max_cache_len, **options)


def decode(model, ids, cache, mask=None, tokens=NEW, **options):
    """(sequences, logits of every step)"""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        past_key_values=cache,
        do_sample=False,
        max_new_tokens=tokens,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return out.sequences, torch.stack(out.logits)


def dynamic(model):
    return transformers.DynamicCache(config=model.config)


def addresses(cache):
    return [t.data_ptr() for layer in cache.layers for t in (layer.keys, layer.values)] + [cache.lengths.data_ptr()]


def forward(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, use_cache=True, **options).logits


def assert_same(got, want):
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_equals_dynamic_cache(family, batch, attention):
    """Batches with padding on the left; sliding windows of 6 wrap around many times."""
    model = tiny_models.make(family, attention=attention)
    ids, mask = tiny_models.padded(batch)
    cache = slotted(model, batch)
    got = decode(model, ids, cache, mask)
    assert_same(got, decode(model, ids, dynamic(model), mask))
    assert cache.get_seq_length() == ids.shape[1] + NEW - 1
    assert cache.lengths.tolist() == cache.row_lengths == [ids.shape[1] + NEW - 1] * batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_dtype(family, dtype):
    model = tiny_models.make(family).to(dtype)
    ids, mask = tiny_models.padded(2)
    assert_same(decode(model, ids, slotted(model, 2), mask), decode(model, ids, dynamic(model), mask))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_prompt_in_chunks(family, chunk):
    """Chunks longer than the window, and than the buffers of sliding layers."""
    model = tiny_models.make(family)
    ids, _ = tiny_models.padded(1, 41)
    caches = slotted(model), dynamic(model)
    for start in range(0, 41, chunk):
        got, want = (forward(model, ids[:, start : start + chunk], cache) for cache in caches)
        assert torch.equal(got, want)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("beams", [2, 3])
def test_beam_search_moves_rows_in_place_case2(family, beams):
    model = tiny_models.make(family)
    ids, mask = tiny_models.padded(2)
    cache = slotted(model, 2 * beams)
    forward(model, ids.repeat_interleave(beams, 0), cache)
    before = addresses(cache)
    cache.reset()
    options = {"attention_mask": mask, "num_beams": beams, "max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids, past_key_values=cache, **options)
    assert torch.equal(got, model.generate(ids, **options))
    assert addresses(cache) == before


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_assisted_generation_equals_greedy_case1_case43(family):
    """Drafts are rejected and taken back, after windows have wrapped; addresses stay."""
    model, draft = tiny_models.make(family), tiny_models.make(family, num_hidden_layers=1, layer_types=None)
    ids, _ = tiny_models.padded(1)
    want, _ = decode(model, ids, dynamic(model), tokens=40)
    cache = slotted(model, rollback=8)
    forward(model, ids, cache)
    before = addresses(cache)
    cache.reset()
    draft.generation_config.num_assistant_tokens = 5
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    got = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        assistant_model=draft,
        do_sample=False,
        max_new_tokens=40,
    )
    assert torch.equal(got, want)
    assert addresses(cache) == before
    assert cache.lengths.tolist() == cache.row_lengths == [cache.get_seq_length()]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("kept", range(6))
def test_rollback_removes_the_tail_only_case2_case43(family, kept):
    """Five drafts, of which ``kept`` are right, again and again: far beyond the point where windows wrap."""
    model = tiny_models.make(
        family
    ).double()  # the passes to compare have different shapes, so sums have different orders
    ids, _ = tiny_models.padded(1, 60)
    want = forward(model, ids, dynamic(model))
    cache = slotted(model, rollback=5)
    forward(model, ids[:, :10], cache)
    before, length = addresses(cache), 10
    wrong = (ids + 7) % tiny_models.VOCABULARY
    while length + 6 <= 60:
        drafted = torch.cat([ids[:, length : length + kept], wrong[:, length + kept : length + 5]], 1)
        forward(model, drafted, cache)
        if kept < 5:
            cache.crop(kept - 5)
        length += kept
        assert cache.get_seq_length() == length
        got = forward(model, ids[:, length : length + 1], cache)
        torch.testing.assert_close(got[:, 0], want[:, length], rtol=1e-9, atol=1e-9)
        length += 1
    assert addresses(cache) == before


def test_a_token_that_ends_the_block_leaves_a_consistent_length_case42():
    """Generation stops inside of a drafted block; the cache holds what the returned sequence says."""
    model = tiny_models.make("llama")
    ids, _ = tiny_models.padded(1)
    plain, _ = decode(model, ids, dynamic(model), tokens=20)
    end = plain[0, 14].item()
    first = ids.shape[1] + plain[0, ids.shape[1] :].tolist().index(end)
    cache = slotted(model)
    got = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        assistant_model=tiny_models.make("llama"),  # its drafts are all right
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=end,
    )
    assert torch.equal(got, plain[:, : first + 1])
    assert cache.get_seq_length() <= got.shape[1]
    held = cache.get_seq_length()
    logits = forward(model, got[:, held:], cache) if held < got.shape[1] else None
    if logits is not None:
        assert torch.equal(logits[:, -1].argmax(-1), forward(model, got, dynamic(model))[:, -1].argmax(-1))


def test_smaller_batches_after_a_reset_case3():
    model = tiny_models.make("llama")
    cache = slotted(model, 4)
    for batch in (4, 2, 3, 1):
        ids, mask = tiny_models.padded(batch)
        cache.reset()
        assert_same(decode(model, ids, cache, mask), decode(model, ids, dynamic(model), mask))
    with pytest.raises(ValueError, match="batch: expected at most 4 rows, those of the cache, got 5"):
        forward(model, tiny_models.padded(5)[0], cache)


def test_lengths_are_ints_on_the_host_and_a_tensor_on_the_device_case4():
    model = tiny_models.make("llama")
    cache = slotted(model, 2)
    ids, _ = tiny_models.padded(2)
    assert cache.get_seq_length() == 0
    forward(model, ids, cache)
    length = cache.get_seq_length()
    assert type(length) is int
    assert ids[:, -length:].shape == ids.shape
    assert cache.lengths.dtype == torch.int64
    assert cache.lengths.tolist() == [length] * 2
    assert cache.get_query_offset(0) == length


def test_generate_twice_on_one_cache_case5():
    """The second call goes on where the first ended, as a conversation does."""
    model = tiny_models.make("gemma3")
    ids, _ = tiny_models.padded(1)
    caches = slotted(model, max_cache_len=100), dynamic(model)
    first = [decode(model, ids, cache)[0] for cache in caches]
    assert torch.equal(*first)
    again = [torch.cat([first[0], tiny_models.padded(1, seed=9)[0]], 1) for _ in caches]
    assert_same(decode(model, again[0], caches[0]), decode(model, again[1], caches[1]))


def test_max_cache_len_is_what_was_asked_for_case6():
    model = tiny_models.make("llama")
    cache = slotted(model, max_cache_len=77)
    ids, _ = tiny_models.padded(1)
    decode(model, ids, cache)
    before = addresses(cache)
    assert {layer.keys.shape[2] for layer in cache.layers} == {77}
    assert cache.get_max_length() == cache.get_max_cache_shape() == cache.max_cache_len == 77
    cache.reset()
    decode(model, tiny_models.padded(1, 40)[0], cache, tokens=38)
    assert addresses(cache) == before
    assert cache.get_seq_length() == 77


def test_output_does_not_depend_on_batch_mates_case7():
    model = tiny_models.make("llama")
    ids, mask = tiny_models.padded(4)
    together, logits = decode(model, ids, slotted(model, 4), mask)
    for b in range(4):
        alone, its_logits = decode(model, ids[b : b + 1, 2 * b :], slotted(model))
        assert torch.equal(together[b, 2 * b :], alone[0])
        torch.testing.assert_close(logits[:, b], its_logits[:, 0])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_overflow_leaves_every_layer_untouched_case8(family):
    model = tiny_models.make(family)
    cache = slotted(model, 2, max_cache_len=16)
    ids, _ = tiny_models.padded(2, 12)
    forward(model, ids, cache)
    buffers = [t.clone() for layer in cache.layers for t in (layer.keys, layer.values)]
    with pytest.raises(ValueError, match=r"row 0: expected at most 16 tokens, .*got 12 \+ 5 = 17; nothing was written"):
        forward(model, ids[:, :5], cache)
    assert cache.row_lengths == cache.lengths.tolist() == [12, 12]
    assert_same([t for layer in cache.layers for t in (layer.keys, layer.values)], buffers)
    want = dynamic(model)
    forward(model, ids, want)
    assert torch.equal(forward(model, ids[:, :4], cache), forward(model, ids[:, :4], want))


def test_crop_beyond_the_start_is_clamped_case9():
    model = tiny_models.make("llama")
    cache = slotted(model)
    forward(model, tiny_models.padded(1)[0], cache)
    cache.crop(-11)
    assert cache.get_seq_length() == 0
    assert cache.lengths.tolist() == [0]
    cache.crop(-1)
    assert cache.lengths.tolist() == [0]


def test_crop_to_a_length():
    model = tiny_models.make("llama")
    cache = slotted(model)
    forward(model, tiny_models.padded(1)[0], cache)
    cache.crop(20)
    assert cache.row_lengths == [10]
    cache.crop(7)
    assert cache.row_lengths == cache.lengths.tolist() == [7]
    cache.crop(0)
    assert cache.row_lengths == ([7] if VERSION_5 else [0])


def test_a_pass_that_dies_in_between_leaves_nothing_torn():
    model = tiny_models.make("gemma3")
    ids, _ = tiny_models.padded(1, 30)
    caches = slotted(model, rollback=2), dynamic(model)
    for cache in caches:
        forward(model, ids[:, :20], cache)
    layer = model.model.layers[2].mlp
    hook = layer.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward(model, ids[:, 20:22], caches[0])
    hook.remove()
    assert caches[0].row_lengths == caches[0].lengths.tolist() == [20]
    got, want = (forward(model, ids[:, 20:], cache) for cache in caches)
    assert torch.equal(got, want)


def test_a_dead_pass_over_more_than_the_window_keeps_is_an_error_and_not_a_wrong_answer():
    model = tiny_models.make("gemma3")
    ids, _ = tiny_models.padded(1, 30)
    cache = slotted(model)
    forward(model, ids[:, :20], cache)
    hook = model.model.layers[2].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward(model, ids[:, 20:], cache)
    hook.remove()
    with pytest.raises(ValueError, match="expected a window that is whole"):
        forward(model, ids[:, 20:21], cache)
    cache.reset()
    assert torch.equal(forward(model, ids, cache), forward(model, ids, dynamic(model)))


def test_crop_over_a_window_that_has_moved_on_is_refused():
    model = tiny_models.make("gemma3")
    cache = slotted(model, rollback=3)
    for token in tiny_models.padded(1, 20)[0].unbind(1):
        forward(model, token[:, None], cache)
    with pytest.raises(ValueError, match=r"row 0: expected to lose at most 5 of its 20 tokens, .*got 6"):
        cache.crop(-6)
    assert cache.row_lengths == cache.lengths.tolist() == [20]
    cache.crop(-5)
    assert cache.lengths.tolist() == [15]
