"""Rows of a SlottedStaticCache that come and go, have lengths of their own, and move."""

from __future__ import annotations

import aegis
import pytest
import tiny_models
import torch
import transformers

FAMILIES = ["llama", "gemma3", "mistral"]


def slotted(model, batch_size, **options):
    return aegis.SlottedStaticCache(model.config, batch_size, 64, **options)


def forward(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


def uneven(model, ids, cache):
    """A pass over rows of different lengths."""
    tokens = ids.shape[1]
    return forward(
        model, ids, cache, attention_mask=cache.attention_mask(tokens), position_ids=cache.position_ids(tokens)
    )


def alone(model, ids):
    """Logits of every position of one sequence."""
    return forward(model, ids, transformers.DynamicCache(config=model.config))[0]


def close(got, want):
    """As far as eager attention, whose softmax is float32 even here, can be."""
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=["sdpa", "eager"])
def model(request, family):
    return tiny_models.make(family, torch.float64, request.param)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "aegis"])
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_padding_is_not_seen(family, attention, tokens):
    """Rows whose prompts were padded go on in blocks, each as if alone; with "aegis", blocks up to 8 have spans."""
    aegis.decode.register_attention()
    model = tiny_models.make(family, attention=attention)
    prompt, mask = tiny_models.padded(3)
    cache = slotted(model, 3, rollback=9)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    forward(model, prompt, cache, attention_mask=mask, position_ids=positions)
    cache.crop([0, -1, -3])
    padding = (mask == 0).sum(1)
    more = tiny_models.prompts(3, tokens, seed=2)
    seen = cache.attention_mask(tokens, padding=padding)
    got = forward(model, more, cache, attention_mask=seen, position_ids=cache.position_ids(tokens) - padding[:, None])
    for row, length in enumerate((10, 9, 7)):
        want = alone(model, torch.cat([prompt[row, padding[row] : length], more[row]])[None])[-tokens:]
        torch.testing.assert_close(got[row], want, rtol=1e-3, atol=1e-5)
    masks = seen.values() if isinstance(seen, dict) else [seen]
    assert {mask.dtype == torch.int64 for mask in masks} == {attention == "aegis" and tokens <= 8}
    for wrong in (padding[:2], padding.int()):
        with pytest.raises(ValueError, match=r"padding: expected int64 of shape \(3,\) on cpu"):
            cache.attention_mask(tokens, padding=wrong)


def test_continuous_batching_case7(model):
    """Requests of different lengths enter and leave; each sees the tokens it would see alone."""
    requests = [tiny_models.padded(1, length, seed=length)[0] for length in (20, 31, 14, 25, 17)]
    expected = [alone(model, ids) for ids in requests]
    cache = slotted(model, 3)
    waiting, running = list(range(len(requests))), {}
    addresses = None
    while waiting or running:
        while waiting and len(running) < 3:
            request, row = waiting.pop(0), cache.acquire_row()
            with cache.rows([row]):
                got = forward(model, requests[request][:, :9], cache)
            close(got[0], expected[request][:9])
            running[row] = request
        rows = sorted(running, reverse=True)
        at = {row: cache.row_lengths[row] for row in rows}
        with cache.rows(rows):
            got = uneven(model, torch.cat([requests[running[row]][:, at[row] : at[row] + 1] for row in rows]), cache)
        for row, logits in zip(rows, got, strict=True):
            close(logits[0], expected[running[row]][at[row]])
            if cache.row_lengths[row] == requests[running[row]].shape[1]:
                cache.free_row(row)
                del running[row]
        assert cache.lengths.tolist() == cache.row_lengths
        now = [layer.keys.data_ptr() for layer in cache.layers]
        addresses = addresses or now
        assert now == addresses
    assert cache.rows_in_use == []


@pytest.mark.parametrize("tokens", [1, 2, 5, 12])
def test_rows_of_different_lengths_take_several_tokens(model, tokens):
    """Also more than a sliding layer has slots."""
    ids = [tiny_models.padded(1, 50, seed=seed)[0] for seed in (1, 2, 3)]
    expected = [alone(model, one) for one in ids]
    cache = slotted(model, 3)
    starts = [3, 22, 9]
    for row, start in enumerate(starts):
        with cache.rows([row]):
            forward(model, ids[row][:, :start], cache)
    for _ in range(2):
        at = cache.row_lengths
        got = uneven(model, torch.cat([one[:, a : a + tokens] for one, a in zip(ids, at, strict=True)]), cache)
        for logits, want, a in zip(got, expected, at, strict=True):
            close(logits, want[a : a + tokens])
    assert cache.row_lengths == cache.lengths.tolist() == [start + 2 * tokens for start in starts]


def test_a_row_is_refilled_while_others_go_on(model):
    cache = slotted(model, 2)
    ids, _ = tiny_models.padded(2, 30)
    ids[1] = tiny_models.padded(1, 30, seed=5)[0]
    forward(model, ids[:, :12], cache)
    cache.free_row(0)
    assert cache.lengths.tolist() == [0, 12]
    new = tiny_models.padded(1, 30, seed=8)[0]
    assert cache.acquire_row() == 0
    with cache.rows([0]):
        forward(model, new[:, :4], cache)
    got = uneven(model, torch.cat([new[:, 4:5], ids[1:, 12:13]]), cache)
    close(got[0, 0], alone(model, new)[4])
    close(got[1, 0], alone(model, ids[1:])[12])


def test_masks_that_transformers_would_make_wrongly_are_refused():
    model = tiny_models.make("llama")
    cache = slotted(model, 2)
    ids, _ = tiny_models.padded(2)
    forward(model, ids, cache)
    cache.crop([-3, 0])
    assert cache.lengths.tolist() == [7, 10]
    assert cache.get_seq_length() == 10
    with pytest.raises(ValueError, match="cache: expected rows of one length, got 7 to 10"):
        forward(model, ids[:, :1], cache)
    assert cache.lengths.tolist() == [7, 10]
    with cache.rows([1]):
        forward(model, ids[1:, :1], cache)
    assert cache.lengths.tolist() == [7, 11]


def test_selected_rows_side_by_side_are_views():
    model = tiny_models.make("llama")
    cache = slotted(model, 4)
    keys = torch.randn(2, 2, 3, 8)
    with cache.rows([1, 2]):
        seen, _ = cache.update(keys, keys, 0)
        assert seen.data_ptr() == cache.layers[0].keys[1:].data_ptr()
        assert torch.equal(seen, keys)
    with cache.rows([3, 0]):
        seen, _ = cache.update(keys, keys * 2, 0)
        assert torch.equal(seen, keys)
    assert torch.equal(cache.layers[0].values[[3, 0], :, :3], keys * 2)


def test_rows_that_are_wrong():
    cache = slotted(tiny_models.make("llama"), 2)
    for rows in ([], [0, 0]):
        with pytest.raises(ValueError, match="rows: expected different rows, at least one"), cache.rows(rows):
            pass
    with pytest.raises(IndexError, match="row: expected 0 to 1, got 2"), cache.rows([2]):
        pass
    with pytest.raises(IndexError, match="row: expected 0 to 1, got -1"):
        cache.free_row(-1)
    keys = torch.zeros(2, 2, 1, 8)
    with cache.rows([1]), pytest.raises(ValueError, match="batch: expected 1 rows, as many as are selected, got 2"):
        cache.update(keys, keys, 0)
    assert [cache.acquire_row(), cache.acquire_row()] == [0, 1]
    with pytest.raises(RuntimeError, match="acquire: expected a free row, but all 2 are in use"):
        cache.acquire_row()
    with cache.rows([1]), pytest.raises(ValueError, match="expected none to be selected"):
        cache.reorder_cache(torch.tensor([1, 0]))


def test_layers_of_one_pass_have_one_shape():
    cache = slotted(tiny_models.make("llama"), 2)
    cache.update(torch.zeros(2, 2, 3, 8), torch.zeros(2, 2, 3, 8), 0)
    with pytest.raises(ValueError, match=r"layer 1: expected \(batch, tokens\) \(2, 3\), as in the layers before"):
        cache.update(torch.zeros(2, 2, 2, 8), torch.zeros(2, 2, 2, 8), 1)


@pytest.mark.parametrize("family", ["llama", "gemma3"], indirect=True)
def test_moving_rows_in_place_case2(family):
    model = tiny_models.make(family).double()
    ids = torch.cat([tiny_models.padded(1, 30, seed=seed)[0] for seed in range(4)])
    cache = slotted(model, 6)
    forward(model, ids[:, :20], cache)
    before = [layer.keys.data_ptr() for layer in cache.layers]

    def goes_on(rows: list[int]) -> None:
        got = forward(model, ids[rows, 20:21], cache)
        cache.crop(-1)
        for logits, row in zip(got, rows, strict=True):
            close(logits[0], alone(model, ids[row : row + 1])[20])

    cache.reorder_cache(torch.tensor([3, 0, 0, 2]))
    goes_on([3, 0, 0, 2])
    cache.batch_select_indices(torch.tensor([True, False, True, True]))
    goes_on([3, 0, 2])
    cache.batch_select_indices(torch.tensor([2, 0]))
    goes_on([2, 3])
    cache.batch_repeat_interleave(3)
    goes_on([2, 2, 2, 3, 3, 3])
    assert [layer.keys.data_ptr() for layer in cache.layers] == before
    with pytest.raises(ValueError, match="sources: expected at most 6 rows, got 12"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(IndexError, match="row: expected 0 to 5, got 6"):
        cache.reorder_cache(torch.tensor([6]))
    goes_on([2, 2, 2, 3, 3, 3])


def test_moving_rows_of_an_empty_cache_changes_nothing():
    cache = slotted(tiny_models.make("llama"), 2)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.rows_in_use == []
