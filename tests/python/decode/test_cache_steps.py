"""Compiled passes over a SlottedStaticCache: tensors alone, no number of Python's that changes."""

from __future__ import annotations

import aegis
import pytest
import tiny_models
import torch
import transformers

FAMILIES = ["llama", "gemma3", "gpt2"]


def slotted(model, batch_size=1, **options):
    return aegis.SlottedStaticCache(model.config, batch_size, 64, **options)


def forward(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


def at(position):
    """transformers 4 makes positions from Python's numbers unless it is given them."""
    return {} if hasattr(transformers.Cache, "get_query_offset") else {"cache_position": torch.tensor([position])}


def expected(model, ids, tokens=1, prefill=10):
    """Logits of a decode with transformers' own cache."""
    cache = transformers.DynamicCache(config=model.config)
    forward(model, ids[:, :prefill], cache)
    return [forward(model, ids[:, i : i + tokens], cache) for i in range(prefill, ids.shape[1] - tokens + 1, tokens)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_steps_equal_dynamic_cache_case10(family, backend):
    """One graph for all positions, beyond the point where windows wrap."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = tiny_models.make(family)
    ids, _ = tiny_models.padded(2, 30)
    ids[1] = tiny_models.padded(1, 30, seed=4)[0]
    cache = slotted(model, 2)
    forward(model, ids[:, :10], cache)
    before = [layer.keys.data_ptr() for layer in cache.layers]
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=False, backend=backend)
    for i, want in enumerate(expected(model, ids), 10):
        with cache.step():
            got = forward(compiled, ids[:, i : i + 1], cache, **at(i))
        torch.testing.assert_close(got, want)
        assert cache.row_lengths == cache.lengths.tolist() == [i + 1] * 2
    assert [layer.keys.data_ptr() for layer in cache.layers] == before
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_inductor_step_case10():
    torch._dynamo.reset()
    model = tiny_models.make("llama", num_hidden_layers=1)
    ids, _ = tiny_models.padded(1, 14)
    cache = slotted(model)
    forward(model, ids[:, :10], cache)
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=False)
    for i, want in enumerate(expected(model, ids), 10):
        with cache.step():
            got = forward(compiled, ids[:, i : i + 1], cache, **at(i))
        torch.testing.assert_close(got, want)
    assert cache.row_lengths == cache.lengths.tolist() == [14]


@pytest.mark.parametrize("family", FAMILIES)
def test_bracketed_eager_steps_are_the_same(family):
    model = tiny_models.make(family)
    ids, _ = tiny_models.padded(1, 30)
    cache = slotted(model)
    forward(model, ids[:, :10], cache)
    for i, want in enumerate(expected(model, ids), 10):
        with cache.step():
            got = forward(model, ids[:, i : i + 1], cache)
        torch.testing.assert_close(got, want)
    assert cache.row_lengths == cache.lengths.tolist() == [30]


@pytest.mark.parametrize("tokens", [2, 3])
def test_steps_of_several_tokens(tokens):
    model = tiny_models.make("gemma3")
    ids, _ = tiny_models.padded(1, 10 + 6 * tokens)
    cache = slotted(model, rollback=1)
    forward(model, ids[:, :10], cache)
    for i, want in enumerate(expected(model, ids, tokens)):
        start = 10 + i * tokens
        with cache.step(tokens):
            got = forward(model, ids[:, start : start + tokens], cache)
        torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match="layer 0: expected at most 3 tokens in a compiled pass"), cache.step(4):
        forward(model, ids[:, :4], cache)
    assert cache.row_lengths == cache.lengths.tolist() == [10 + 6 * tokens]


def test_free_rows_are_carried_along():
    """A step over all rows, of different lengths, with one of them free."""
    model = tiny_models.make("gemma3")
    ids = torch.cat([tiny_models.padded(1, 40, seed=seed)[0] for seed in range(3)])
    cache = slotted(model, 3)
    for row, start in ((0, 4), (2, 17)):
        with cache.rows([row]):
            forward(model, ids[row : row + 1, :start], cache)
    for _ in range(9):
        lengths = cache.row_lengths
        with cache.step():
            mask, positions = cache.attention_mask(1, batch_size=3), cache.position_ids(1, batch_size=3)
            tokens = ids.gather(1, torch.tensor(lengths)[:, None])
            got = forward(model, tokens, cache, attention_mask=mask, position_ids=positions)
        for row in (0, 2):
            alone = forward(
                model, ids[row : row + 1, : lengths[row] + 1], transformers.DynamicCache(config=model.config)
            )
            torch.testing.assert_close(got[row, 0], alone[0, -1], rtol=1e-4, atol=1e-5)
    assert cache.row_lengths == cache.lengths.tolist() == [13, 0, 26]
    assert cache.rows_in_use == [0, 2]


def test_capacity_is_checked_before_a_step_case8():
    model = tiny_models.make("llama")
    cache = slotted(model, 2)
    forward(model, tiny_models.padded(2, 63)[0], cache)
    with cache.step():
        forward(model, tiny_models.padded(2, 1)[0], cache)
    with pytest.raises(ValueError, match=r"row 0: expected at most 64 tokens, .*got 64 \+ 1 = 65"):
        cache.begin_step()
    with pytest.raises(RuntimeError, match=r"commit_step: expected a begin_step\(1\) before it"):
        cache.commit_step()
    assert cache.lengths.tolist() == [64, 64]


def test_a_step_that_fails_takes_the_lengths_back():
    model = tiny_models.make("llama")
    ids, _ = tiny_models.padded(1, 20)
    cache = slotted(model)
    forward(model, ids[:, :10], cache)

    def failing_step() -> None:
        with cache.step():
            forward(model, ids[:, 10:11], cache)
            assert cache.lengths.tolist() == [11]
            raise KeyError

    with pytest.raises(KeyError):
        failing_step()
    assert cache.row_lengths == cache.lengths.tolist() == [10]
    torch.testing.assert_close(forward(model, ids[:, 10:11], cache), expected(model, ids)[0])


def test_the_first_pass_may_be_a_step_if_there_are_buffers():
    model = tiny_models.make("llama")
    ids, _ = tiny_models.padded(2)
    cache = slotted(model, 3, dtype=torch.float32, device="cpu")
    with cache.step(10, batch_size=2):
        got = forward(model, ids, cache)
    torch.testing.assert_close(got, forward(model, ids, transformers.DynamicCache(config=model.config)))
    assert cache.row_lengths == cache.lengths.tolist() == [10, 10, 0]


def test_a_compiled_first_pass_without_buffers_is_refused():
    torch._dynamo.reset()
    cache = slotted(tiny_models.make("llama"))
    compiled = torch.compile(lambda keys: cache.update(keys, keys, 0), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="expected buffers before a compiled forward pass"), torch.no_grad():
        compiled(torch.zeros(1, 2, 1, 8))


def test_spans_attention_gets_whole_buffers():
    """What aegis.decode.attention is given for one token: slots as they are, and where a row is live."""
    model = tiny_models.make("gemma3")
    cache = slotted(model, 2, dtype=torch.float32, device="cpu")
    ids, _ = tiny_models.padded(2, 20)
    forward(model, ids, cache)
    cache._config._attn_implementation_internal = "aegis"
    mask = cache.attention_mask(1)
    assert set(mask) == {"full_attention", "sliding_attention"}
    assert mask["full_attention"].tolist() == [[[[0, 21]]], [[[0, 21]]]]
    argument = 1 if hasattr(cache, "get_query_offset") else torch.tensor([20])
    assert cache.get_mask_sizes(argument, 0) == (21, 0)
    new = torch.randn(2, 2, 1, 8)
    for index, layer in enumerate(cache.layers):
        keys, values = cache.update(new, -new, index)
        assert keys.data_ptr() == layer.keys.data_ptr()
        assert keys.shape[2] == layer.slots == (7 if layer.is_sliding else 64)
        assert torch.equal(keys[:, :, 20 % layer.slots], new[:, :, 0])
        assert torch.equal(values[:, :, 20 % layer.slots], -new[:, :, 0])
    assert cache.lengths.tolist() == [21, 21]
