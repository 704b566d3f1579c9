"""SlottedStaticCache in transformers' own generate, bit for bit against DynamicCache."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import aegis
import pytest
import tiny
import torch
import transformers
from aegis.decode.cache_storage import Storage

VERSION_5 = int(transformers.__version__.split(".")[0]) >= 5
NEW = 24


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
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_generate_equals_dynamic_cache(family, batch, attention):
    """Batches with padding on the left; sliding windows of 6 wrap around many times."""
    model = tiny.make(family, attention)
    ids, mask = tiny.prompt(batch)
    cache = slotted(model, batch)
    got = decode(model, ids, cache, mask)
    assert_same(got, decode(model, ids, dynamic(model), mask))
    assert cache.get_seq_length() == ids.shape[1] + NEW - 1
    assert cache.lengths.tolist() == cache.row_lengths == [ids.shape[1] + NEW - 1] * batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_dtype(family, dtype):
    model = tiny.make(family).to(dtype)
    ids, mask = tiny.prompt(2)
    assert_same(decode(model, ids, slotted(model, 2), mask), decode(model, ids, dynamic(model), mask))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_prompt_in_chunks(family, chunk):
    """Chunks longer than the window, and than the buffers of sliding layers."""
    model = tiny.make(family)
    ids, _ = tiny.prompt(1, 41)
    caches = slotted(model), dynamic(model)
    for start in range(0, 41, chunk):
        got, want = (forward(model, ids[:, start : start + chunk], cache) for cache in caches)
        assert torch.equal(got, want)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("beams", [2, 3])
def test_beam_search_moves_rows_in_place_case2(family, beams):
    model = tiny.make(family)
    ids, mask = tiny.prompt(2)
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
    model, draft = tiny.make(family), tiny.make(family, num_hidden_layers=2, layer_types=None)
    ids, _ = tiny.prompt(1)
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
    model = tiny.make(family).double()  # the passes to compare have different shapes, so sums have different orders
    ids, _ = tiny.prompt(1, 60)
    want = forward(model, ids, dynamic(model))
    cache = slotted(model, rollback=5)
    forward(model, ids[:, :10], cache)
    before, length = addresses(cache), 10
    wrong = (ids + 7) % tiny.VOCABULARY
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
    model = tiny.make("llama")
    ids, _ = tiny.prompt(1)
    plain, _ = decode(model, ids, dynamic(model), tokens=20)
    end = plain[0, 14].item()
    first = ids.shape[1] + plain[0, ids.shape[1] :].tolist().index(end)
    cache = slotted(model)
    got = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        assistant_model=tiny.make("llama"),  # its drafts are all right
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
    model = tiny.make("llama")
    cache = slotted(model, 4)
    for batch in (4, 2, 3, 1):
        ids, mask = tiny.prompt(batch)
        cache.reset()
        assert_same(decode(model, ids, cache, mask), decode(model, ids, dynamic(model), mask))
    with pytest.raises(ValueError, match="batch: expected at most 4 rows, those of the cache, got 5"):
        forward(model, tiny.prompt(5)[0], cache)


def test_lengths_are_ints_on_the_host_and_a_tensor_on_the_device_case4():
    model = tiny.make("llama")
    cache = slotted(model, 2)
    ids, _ = tiny.prompt(2)
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
    model = tiny.make("gemma3")
    ids, _ = tiny.prompt(1)
    caches = slotted(model, max_cache_len=100), dynamic(model)
    first = [decode(model, ids, cache)[0] for cache in caches]
    assert torch.equal(*first)
    again = [torch.cat([first[0], tiny.prompt(1, seed=9)[0]], 1) for _ in caches]
    assert_same(decode(model, again[0], caches[0]), decode(model, again[1], caches[1]))


def test_max_cache_len_is_what_was_asked_for_case6():
    model = tiny.make("llama")
    cache = slotted(model, max_cache_len=77)
    ids, _ = tiny.prompt(1)
    decode(model, ids, cache)
    before = addresses(cache)
    assert {layer.keys.shape[2] for layer in cache.layers} == {77}
    assert cache.get_max_length() == cache.get_max_cache_shape() == cache.max_cache_len == 77
    cache.reset()
    decode(model, tiny.prompt(1, 40)[0], cache, tokens=38)
    assert addresses(cache) == before
    assert cache.get_seq_length() == 77


def test_output_does_not_depend_on_batch_mates_case7():
    model = tiny.make("llama")
    ids, mask = tiny.prompt(4)
    together, logits = decode(model, ids, slotted(model, 4), mask)
    for b in range(4):
        alone, its_logits = decode(model, ids[b : b + 1, 2 * b :], slotted(model))
        assert torch.equal(together[b, 2 * b :], alone[0])
        torch.testing.assert_close(logits[:, b], its_logits[:, 0])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_overflow_leaves_every_layer_untouched_case8(family):
    model = tiny.make(family)
    cache = slotted(model, 2, max_cache_len=16)
    ids, _ = tiny.prompt(2, 12)
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
    model = tiny.make("llama")
    cache = slotted(model)
    forward(model, tiny.prompt(1)[0], cache)
    cache.crop(-11)
    assert cache.get_seq_length() == 0
    assert cache.lengths.tolist() == [0]
    cache.crop(-1)
    assert cache.lengths.tolist() == [0]


def test_crop_to_a_length():
    model = tiny.make("llama")
    cache = slotted(model)
    forward(model, tiny.prompt(1)[0], cache)
    cache.crop(20)
    assert cache.row_lengths == [10]
    cache.crop(7)
    assert cache.row_lengths == cache.lengths.tolist() == [7]
    cache.crop(0)
    assert cache.row_lengths == ([7] if VERSION_5 else [0])


def test_a_pass_that_dies_in_between_leaves_nothing_torn():
    model = tiny.make("gemma3")
    ids, _ = tiny.prompt(1, 30)
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
    model = tiny.make("gemma3")
    ids, _ = tiny.prompt(1, 30)
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
    model = tiny.make("gemma3")
    cache = slotted(model, rollback=3)
    for token in tiny.prompt(1, 20)[0].unbind(1):
        forward(model, token[:, None], cache)
    with pytest.raises(ValueError, match=r"row 0: expected to lose at most 5 of its 20 tokens, .*got 6"):
        cache.crop(-6)
    assert cache.row_lengths == cache.lengths.tolist() == [20]
    cache.crop(-5)
    assert cache.lengths.tolist() == [15]


def test_no_gradient_is_needed_and_none_flows():
    model = tiny.make("llama")
    ids, _ = tiny.prompt(1)
    cache = slotted(model)
    first = model(ids, past_key_values=cache).logits
    second = model(ids[:, :1], past_key_values=cache).logits
    assert second.requires_grad
    assert not any(layer.keys.requires_grad for layer in cache.layers)
    assert torch.equal(first, forward(model, ids, dynamic(model)))


def test_inference_mode_first_and_no_grad_after():
    model = tiny.make("llama")
    ids, _ = tiny.prompt(1)
    with torch.inference_mode():
        cache = slotted(model)
        model(ids, past_key_values=cache)
    forward(model, ids, cache)
    cache.reset()
    assert torch.equal(forward(model, ids, cache), forward(model, ids, dynamic(model)))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_buffers_are_cut_from_one_arena(family):
    model = tiny.make(family)
    cache = slotted(model, 2, dtype=torch.float32, device="cpu")
    assert all(layer.is_initialized for layer in cache.layers)
    starts = addresses(cache)[:-1]
    sizes = [t.numel() * 4 for layer in cache.layers for t in (layer.keys, layer.values)]
    assert all(start % 64 == 0 for start in starts)
    assert [b - a for a, b in itertools.pairwise(starts)] == [-(-size // 64) * 64 for size in sizes[:-1]]
    ids, mask = tiny.prompt(2)
    assert_same(decode(model, ids, cache, mask), decode(model, ids, dynamic(model), mask))
    assert addresses(cache)[:-1] == starts


def test_early_initialization():
    model = tiny.make("gemma3")
    cache = slotted(model, 2)
    assert not cache.is_initialized
    cache.early_initialization(batch_size=2, num_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    assert cache.is_initialized
    before = addresses(cache)
    ids, mask = tiny.prompt(2)
    assert_same(decode(model, ids, cache, mask), decode(model, ids, dynamic(model), mask))
    assert addresses(cache) == before
    with pytest.raises(RuntimeError, match="expected no buffers yet"):
        cache.early_initialization(2, 2, 8, torch.float32, "cpu")
    other = slotted(model, 2)
    with pytest.raises(ValueError, match="num_heads: expected 4 numbers, one for each layer, got 3"):
        other.early_initialization(2, [2] * 3, 8, torch.float32, "cpu")
    with pytest.raises(ValueError, match="batch: expected at most 2 rows"):
        other.early_initialization(3, 2, 8, torch.float32, "cpu")
    other.early_initialization(2, [2, 1, 2, 1], [8, 4, 8, 4], torch.float32, "cpu")
    assert [tuple(layer.keys.shape) for layer in other.layers] == [(2, 2, 7, 8), (2, 1, 64, 4)] * 2


@pytest.mark.parametrize("shapes", [[(2, 8, 8)] * 3, [(2, 8, 8), (1, 4, 4), (2, 8, 8)]], ids=["alike", "different"])
@pytest.mark.parametrize("heads", [2, 1], ids=["as planned", "half of the heads"])
def test_buffers_follow_the_first_layer_that_is_seen(shapes, heads):
    storage = Storage(2, [5, 3, 0], shapes)
    first = torch.zeros(2, heads, 1, 8)
    keys, _ = storage.take(0, first, first)
    assert keys.shape == (2, heads, 5, 8)
    second = torch.zeros(2, shapes[1][0], 1, shapes[1][1])
    keys, values = storage.take(1, second, second[..., :3])  # not what was foreseen
    assert keys.shape == (2, shapes[1][0], 3, shapes[1][1])
    assert values.shape == (2, shapes[1][0], 3, 3)
    with pytest.raises(ValueError, match=r"layer 0: expected \(heads, key size, value size\) .*float32 on cpu, got"):
        storage.take(0, first.half(), first.half())


def test_a_first_pass_unlike_what_was_made_is_refused():
    model = tiny.make("llama")
    cache = slotted(model, dtype=torch.bfloat16, device="cpu")
    with pytest.raises(ValueError, match=r"new_keys: expected dtype bfloat16, got float32"):
        forward(model, tiny.prompt(1)[0], cache)
    assert cache.lengths.tolist() == [0]


def test_what_transformers_asks_of_a_cache():
    model = tiny.make("gemma3")
    cache = slotted(model, 2)
    assert isinstance(cache, transformers.Cache)
    assert len(cache) == 4
    assert cache.is_sliding == [True, False] * 2
    assert cache.is_compileable is False
    assert not any(layer.is_compileable for layer in cache.layers)
    assert [layer.is_croppable for layer in cache.layers] == [False, True] * 2
    assert all(layer.is_croppable for layer in slotted(model, rollback=1).layers)
    assert cache.batch_size == 2
    forward(model, tiny.prompt(2)[0], cache)
    argument = 1 if VERSION_5 else torch.tensor([10])
    assert cache.get_mask_sizes(argument, 0) == (6, 5)
    assert cache.get_mask_sizes(argument, 1) == (11, 0)
    for name in ("crop", "reset", "reorder_cache"):
        with pytest.raises(RuntimeError, match="expected to be called on the cache"):
            getattr(cache.layers[0], name)()


def test_a_copy_goes_its_own_way():
    """A prompt's cache is copied and continued twice, as Hugging Face's guide does it."""
    model = tiny.make("gemma3").double()
    ids, _ = tiny.prompt(1, 20)
    prefix = slotted(model)
    forward(model, ids, prefix)
    for seed in (5, 6):
        more = torch.cat([ids, tiny.prompt(1, seed=seed)[0]], 1)
        got, want = decode(model, more, copy.deepcopy(prefix)), decode(model, more, dynamic(model))
        assert torch.equal(got[0], want[0])
        torch.testing.assert_close(got[1], want[1], rtol=1e-9, atol=1e-9)
    assert prefix.row_lengths == prefix.lengths.tolist() == [20]


@pytest.mark.skipif(not hasattr(transformers, "Gemma3nForCausalLM"), reason="this transformers has no Gemma 3n")
def test_layers_that_share_keep_nothing():
    config = transformers.Gemma3nTextConfig(
        vocab_size=tiny.VOCABULARY,
        vocab_size_per_layer_input=tiny.VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
        num_kv_shared_layers=2,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 3,
        activation_sparsity_pattern=[0.0] * 6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3nForCausalLM(config).eval()
    ids, _ = tiny.prompt(1)
    cache = slotted(model)
    got, want = decode(model, ids, cache), decode(model, ids, dynamic(model))
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1])
    assert sum(layer.keys is not None for layer in cache.layers) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"max_cache_len": 0}, "max_cache_len: expected at least 1, got 0"),
        ({"rollback": -1}, "rollback: expected at least 0, got -1"),
    ],
)
def test_bad_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        aegis.SlottedStaticCache(tiny.make("llama").config, **{"batch_size": 1, "max_cache_len": 8, **changes})


def test_bad_configurations():
    with pytest.raises(ValueError, match="config: expected a decoder, got an encoder-decoder model"):
        aegis.SlottedStaticCache(transformers.T5Config(), max_cache_len=8)
    with pytest.raises(TypeError, match="max_cache_len: expected"):
        aegis.SlottedStaticCache(tiny.make("llama").config)
    config = tiny.make("gemma3").config
    config.layer_types = ["full_attention", "linear_attention"] * 2
    with pytest.raises(ValueError, match=r"layer 1: expected full, .* got 'linear_attention'"):
        aegis.SlottedStaticCache(config, max_cache_len=8)


def test_importing_aegis_does_not_import_transformers():
    code = "import sys, aegis; assert 'transformers' not in sys.modules; aegis.SlottedStaticCache"
    subprocess.run([sys.executable, "-c", code + "; assert 'transformers' in sys.modules"], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        _ = aegis.NoSuchThing
