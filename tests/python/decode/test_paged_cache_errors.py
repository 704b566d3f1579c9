"""PagedKVCache where something goes wrong: no pages, exceptions half-way, bad input; and how its memory goes."""

from __future__ import annotations

import gc
import weakref

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import PagesExhausted, register_attention
from paged import alone, decode, decode_prompt, forward

register_attention()
NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama", attention="aegis", max_position_embeddings=2048)


@pytest.mark.parametrize("bracketed", [False, True])
def test_out_of_pages_changes_nothing(llama, bracketed):
    cache = aegis.PagedKVCache(llama.config, 3, 128, pages=4, eviction="none")
    ids = tiny_models.prompts(2, 30)
    forward(llama, ids[:, :20], cache)
    before = [layer.keys.clone() for layer in cache.layers], cache.blocks.clone()

    def try_to_feed():
        if bracketed:
            cache.begin_step(13)
        else:
            forward(llama, ids[[0, 1, 1], :13], cache, **masks)

    with cache.rows([0, 1, 2]):
        masks = {"attention_mask": cache.attention_mask(13), "position_ids": cache.position_ids(13)}
        with pytest.raises(PagesExhausted, match="expected 3 to be free or evictable, but 0 are free"):
            try_to_feed()
    assert cache.row_lengths == cache.lengths.tolist() == [20, 20, 0]
    assert cache.rows_in_use == [0, 1]
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before[0], strict=True))
    assert torch.equal(cache.blocks, before[1])
    got = forward(llama, ids[:, 20:], cache)  # there is room for that
    torch.testing.assert_close(got, forward(llama, ids, None, use_cache=False)[:, 20:], atol=2e-5, rtol=1e-4)


def test_pages_that_nobody_holds_are_evicted(llama):
    cache = aegis.PagedKVCache(llama.config, 2, 64, pages=4)
    ids = tiny_models.prompts(2, 64)
    cache.free_row(decode_prompt(llama, cache, ids[0, :48]))
    assert (cache.pages_in_use, cache.table.evictable_pages) == (0, 3)
    decode_prompt(llama, cache, ids[1])
    assert cache.table.stats()["evicted"] == 3
    cache.free_row(0)
    row = cache.acquire_row(ids[0])
    assert cache.row_lengths[row] == 0


def test_a_pass_that_dies_leaves_the_pages_to_the_next(llama):
    cache = aegis.PagedKVCache(llama.config, 1, 64)
    ids = tiny_models.prompts(1, 40)
    forward(llama, ids[:, :10], cache)
    handle = llama.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward(llama, ids[:, 10:], cache)
    handle.remove()
    assert cache.row_lengths == [10]
    cache.crop([0])
    assert cache.pages_in_use == 1
    got = forward(llama, ids[:, 10:], cache)
    torch.testing.assert_close(got, forward(llama, ids, None, use_cache=False)[:, 10:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("bracketed", [False, True])
def test_a_copy_of_pages_that_dies_leaves_both_rows_their_tokens(llama, monkeypatch, layer, error, bracketed):
    """The table has given the row another page by then."""
    cache = aegis.PagedKVCache(llama.config, 3, 64)
    ids = tiny_models.prompts(1, 21)
    with cache.rows([cache.acquire_row()]):
        forward(llama, ids, cache)
    twin = cache.fork(0)

    def dies(pairs):
        raise error

    def try_to_feed():
        if bracketed:
            cache.begin_step()
        else:
            forward(llama, ids[:, :1].expand(2, 1), cache, **masks)

    with monkeypatch.context() as patch, cache.rows([twin, 2]):
        masks = {"attention_mask": cache.attention_mask(1), "position_ids": cache.position_ids(1)}
        patch.setattr(cache.layers[layer], "copy_pages", dies)
        with pytest.raises(error):
            try_to_feed()
    assert cache.row_lengths == cache.lengths.tolist() == [21, 21, 0]
    assert cache.rows_in_use == [0, 1]
    assert len(cache.table.pages_of(2)) == 0
    starts = ids.new_tensor([[5], [6]])
    for got, start in zip(decode(llama, cache, [twin, 0], starts, 6), starts, strict=True):
        assert torch.equal(got, alone(llama, torch.cat([ids[0], start]), 6))


def test_named_tokens_are_those_of_the_call(llama):
    """What the caller's memory holds later is not what was fed, and nothing may be shared by it."""
    for tokens in (tiny_models.prompts(1, 40)[0], tiny_models.prompts(1, 40)[0].numpy().astype("uint32")):
        cache = aegis.PagedKVCache(llama.config, 1, 64)
        was = tokens.tolist()
        row = cache.acquire_row(tokens)
        tokens[:] = 3
        with cache.rows([row]):
            forward(llama, torch.tensor([was]), cache)
        assert (cache.table.lookup(was), cache.table.lookup([3] * 40)) == (32, 0)


def test_memory_goes_with_the_last_reference(llama):
    options = {"dtype": torch.float32, "device": "cpu"}
    aegis.PagedKVCache(llama.config, 1, 64, **options)  # what the first one imports leaves cycles
    gc.collect()
    gc.disable()
    try:
        cache = aegis.PagedKVCache(llama.config, 1, 64, **options)
        forward(llama, tiny_models.prompts(1), cache)
        pool = weakref.ref(cache.layers[0].keys)
        del cache
        assert pool() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.free_row(1), ValueError, "row: expected one in use, got 1, which is free"),
        (lambda c: c.free_row(7), IndexError, "row"),
        (lambda c: c.fork(1), ValueError, "row: expected one in use, got 1"),
        (lambda c: c.fork(-1), IndexError, "row"),
        (
            lambda c: c.tell(0, [1]),
            ValueError,
            "tokens: expected at most 0, those of the row that are not known, got 1",
        ),
        (lambda c: c.tell(9, [1]), IndexError, "row: expected 0 to 1, got 9"),
        (lambda c: c.tell(-1, [1]), IndexError, "row: expected 0 to 1, got -1"),
        (lambda c: c.acquire_row([]), ValueError, "tokens: expected 1 to 32, what a row can hold, got 0"),
        (lambda c: c.acquire_row(range(33)), ValueError, "tokens: expected 1 to 32, what a row can hold, got 33"),
        (lambda c: c.acquire_row([0.5]), ValueError, "tokens: expected integers of one dimension, got float64"),
        (lambda c: c.acquire_row([[1]]), ValueError, "tokens: expected integers of one dimension"),
        (lambda c: c.acquire_row([-1, 2]), ValueError, "tokens: expected 0 to 4294967295, got -1"),
        (lambda c: c.acquire_row([1, 2**32]), ValueError, "tokens: expected 0 to 4294967295, got 4294967296"),
    ],
)
def test_bad_input(llama, call, error, message):
    cache = aegis.PagedKVCache(llama.config, 2, 32)
    cache.acquire_row([1, 2, 3])
    with pytest.raises(error, match=message):
        call(cache)
    assert cache.rows_in_use == [0]
    assert cache.table.free_pages == 4
    cache.table.check_invariants()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pages": 0}, ValueError, "pages: expected at least 1, got 0"),
        ({"pages": True}, TypeError, "pages: expected an int, got True"),
        ({"block_size": 0}, ValueError, "block_size: expected at least 1, got 0"),
        ({"block_size": 2.0}, TypeError, "block_size: expected an int, got 2.0"),
        ({"eviction": "fifo"}, ValueError, "eviction: expected 'none', 'lru' or 'frequency', got 'fifo'"),
    ],
)
def test_bad_sizes(llama, options, error, message):
    with pytest.raises(error, match=message):
        aegis.PagedKVCache(llama.config, 1, 64, **options)


def test_paged_beside_a_runner_is_refused(llama):
    runner = aegis.CUDAGraphFastRunner(llama, max_cache_len=64)
    with pytest.raises(ValueError, match="paged: expected False beside a runner"):
        aegis.generate(llama, tiny_models.prompts(1), runner=runner, paged=True, max_new_tokens=2)
