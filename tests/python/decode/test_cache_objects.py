"""SlottedStaticCache by itself: its buffers, what transformers asks of it, copies, and bad input."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import aegis
import pytest
import tiny_models
import torch
import transformers
from aegis.decode.cache_storage import Storage
from test_cache import VERSION_5, addresses, assert_same, decode, dynamic, forward, slotted


def test_no_gradient_is_needed_and_none_flows():
    model = tiny_models.make("llama")
    ids, _ = tiny_models.padded(1)
    cache = slotted(model)
    first = model(ids, past_key_values=cache).logits
    second = model(ids[:, :1], past_key_values=cache).logits
    assert second.requires_grad
    assert not any(layer.keys.requires_grad for layer in cache.layers)
    assert torch.equal(first, forward(model, ids, dynamic(model)))


def test_inference_mode_first_and_no_grad_after():
    model = tiny_models.make("llama")
    ids, _ = tiny_models.padded(1)
    with torch.inference_mode():
        cache = slotted(model)
        model(ids, past_key_values=cache)
    forward(model, ids, cache)
    cache.reset()
    assert torch.equal(forward(model, ids, cache), forward(model, ids, dynamic(model)))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_buffers_are_cut_from_one_arena(family):
    model = tiny_models.make(family)
    cache = slotted(model, 2, dtype=torch.float32, device="cpu")
    assert all(layer.is_initialized for layer in cache.layers)
    starts = addresses(cache)[:-1]
    sizes = [t.numel() * 4 for layer in cache.layers for t in (layer.keys, layer.values)]
    assert all(start % 64 == 0 for start in starts)
    assert [b - a for a, b in itertools.pairwise(starts)] == [-(-size // 64) * 64 for size in sizes[:-1]]
    ids, mask = tiny_models.padded(2)
    assert_same(decode(model, ids, cache, mask), decode(model, ids, dynamic(model), mask))
    assert addresses(cache)[:-1] == starts


def test_early_initialization():
    model = tiny_models.make("gemma3")
    cache = slotted(model, 2)
    assert not cache.is_initialized
    cache.early_initialization(batch_size=2, num_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    assert cache.is_initialized
    before = addresses(cache)
    ids, mask = tiny_models.padded(2)
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
    model = tiny_models.make("llama")
    cache = slotted(model, dtype=torch.bfloat16, device="cpu")
    with pytest.raises(ValueError, match=r"new_keys: expected dtype bfloat16, got float32"):
        forward(model, tiny_models.padded(1)[0], cache)
    assert cache.lengths.tolist() == [0]


def test_what_transformers_asks_of_a_cache():
    model = tiny_models.make("gemma3")
    cache = slotted(model, 2)
    assert isinstance(cache, transformers.Cache)
    assert len(cache) == 4
    assert cache.is_sliding == [True, False] * 2
    assert cache.is_compileable is False
    assert not any(layer.is_compileable for layer in cache.layers)
    assert [layer.is_croppable for layer in cache.layers] == [False, True] * 2
    assert all(layer.is_croppable for layer in slotted(model, rollback=1).layers)
    assert cache.batch_size == 2
    forward(model, tiny_models.padded(2)[0], cache)
    argument = 1 if VERSION_5 else torch.tensor([10])
    assert cache.get_mask_sizes(argument, 0) == (6, 5)
    assert cache.get_mask_sizes(argument, 1) == (11, 0)
    for name in ("crop", "reset", "reorder_cache"):
        with pytest.raises(RuntimeError, match="expected to be called on the cache"):
            getattr(cache.layers[0], name)()


def test_a_copy_goes_its_own_way():
    """A prompt's cache is copied and continued twice, as Hugging Face's guide does it."""
    model = tiny_models.make("gemma3").double()
    ids, _ = tiny_models.padded(1, 20)
    prefix = slotted(model)
    forward(model, ids, prefix)
    for seed in (5, 6):
        more = torch.cat([ids, tiny_models.padded(1, seed=seed)[0]], 1)
        got, want = decode(model, more, copy.deepcopy(prefix)), decode(model, more, dynamic(model))
        assert torch.equal(got[0], want[0])
        torch.testing.assert_close(got[1], want[1], rtol=1e-9, atol=1e-9)
    assert prefix.row_lengths == prefix.lengths.tolist() == [20]


@pytest.mark.skipif(not hasattr(transformers, "Gemma3nForCausalLM"), reason="this transformers has no Gemma 3n")
def test_layers_that_share_keep_nothing():
    config = transformers.Gemma3nTextConfig(
        vocab_size=tiny_models.VOCABULARY,
        vocab_size_per_layer_input=tiny_models.VOCABULARY,
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
    ids, _ = tiny_models.padded(1)
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
        aegis.SlottedStaticCache(tiny_models.make("llama").config, **{"batch_size": 1, "max_cache_len": 8, **changes})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": "2"}, TypeError, "batch_size: expected an int, got '2'"),
        ({"max_cache_len": 8.0}, TypeError, "max_cache_len: expected an int, got 8.0"),
        ({"rollback": True}, TypeError, "rollback: expected an int, got True"),
        ({"dtype": torch.int32, "device": "cpu"}, ValueError, "dtype: expected a floating-point .* got torch.int32"),
        ({"dtype": "float32", "device": "cpu"}, ValueError, "dtype: expected a floating-point .* got 'float32'"),
    ],
    ids=str,
)
def test_bad_types(options, error, message):
    with pytest.raises(error, match=message):
        aegis.SlottedStaticCache(tiny_models.make("llama").config, **{"max_cache_len": 8, **options})


def test_bad_configurations():
    with pytest.raises(ValueError, match="config: expected a decoder, got an encoder-decoder model"):
        aegis.SlottedStaticCache(transformers.T5Config(), max_cache_len=8)
    with pytest.raises(TypeError, match="max_cache_len: expected"):
        aegis.SlottedStaticCache(tiny_models.make("llama").config)
    with pytest.raises(TypeError, match=r"config: expected model.config, got LlamaForCausalLM"):
        aegis.SlottedStaticCache(tiny_models.make("llama"), max_cache_len=8)
    config = tiny_models.make("gemma3").config
    config.layer_types = ["full_attention", "linear_attention"] * 2
    with pytest.raises(ValueError, match=r"layer 1: expected full, .* got 'linear_attention'"):
        aegis.SlottedStaticCache(config, max_cache_len=8)


def test_importing_aegis_does_not_import_transformers():
    code = "import sys, aegis; assert 'transformers' not in sys.modules; aegis.SlottedStaticCache"
    subprocess.run([sys.executable, "-c", code + "; assert 'transformers' in sys.modules"], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        _ = aegis.NoSuchThing


def test_without_transformers_the_error_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "aegis.decode.cache")
    with pytest.raises(ImportError, match="SlottedStaticCache needs transformers: pip install"):
        _ = aegis.SlottedStaticCache
