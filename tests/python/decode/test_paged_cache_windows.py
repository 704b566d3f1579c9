"""PagedKVCache where layers have sliding windows: what lies before them is given back, and nobody misses it."""

from __future__ import annotations

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import PagesExhausted, block_decoder, register_attention
from paged import alone, decode, forward
from speculation import another

register_attention()
WINDOW, BLOCK = 6, 4
FAMILIES = ["mistral", "gemma3"]  # all layers slide; half of them do


def cache_of(model, rows=2, length=96, **options):
    return aegis.PagedKVCache(model.config, rows, length, block_size=BLOCK, **options)


def most_held(keep):
    """Blocks that so many positions can lie in."""
    return -(-(keep + BLOCK - 1) // BLOCK)


@pytest.mark.parametrize("attention", ["sdpa", "aegis"])
@pytest.mark.parametrize("family", FAMILIES)
def test_passes_and_rollback_give_what_a_slotted_cache_gives(family, attention):
    """Rows of unequal length, through prompts longer than the window, decoding, and what was promised taken back."""
    model = tiny_models.make(family, attention=attention)
    ids = tiny_models.prompts(2, 80)
    slotted = aegis.SlottedStaticCache(model.config, 2, 96, rollback=5)
    paged = cache_of(model, rollback=5)
    at = [0, 0]
    steps = [([0], 21), ([1], 9), ([0, 1], 1), ([1, 0], 7), *[([0, 1], 1)] * 9, "back", ([0, 1], 4), *[([1], 1)] * 20]
    for step in steps:
        if step == "back":
            for cache in (slotted, paged):
                cache.crop(-5)
            at = [length - 5 for length in at]
            continue
        rows, count = step
        new = torch.stack([ids[row, at[row] : at[row] + count] for row in rows])
        results = []
        for cache in (slotted, paged):
            with cache.rows(rows):
                options = {"attention_mask": cache.attention_mask(count), "position_ids": cache.position_ids(count)}
                results.append(forward(model, new, cache, **options))
        torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)
        for row in rows:
            at[row] += count
        assert paged.row_lengths == slotted.row_lengths == at
    sliding = paged.tables["sliding_attention"]
    assert (sliding.trimmed(0) > 0, sliding.trimmed(1) > 0) == (True, True)
    with pytest.raises(ValueError, match=r"row 0: expected to lose at most \d+ of its 37 tokens, since a sliding"):
        paged.crop(-20)
    assert paged.row_lengths == at


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_follows_the_window(family):
    """Rows hold their windows and nothing else, whatever their length; the full layers of a mixed model hold all."""
    model = tiny_models.make(family)
    cache = cache_of(model, 3, 200, pages={"sliding_attention": 40})
    ids = tiny_models.prompts(3, 60)
    for part in ids.split(20, 1):
        forward(model, part, cache)
    sliding = cache.tables["sliding_attention"]
    for _ in range(BLOCK):
        forward(model, ids[:, :1], cache)
        held = sliding.pages - sliding.free_pages - sliding.evictable_pages
        assert held <= 3 * most_held(WINDOW + 1)
    page = model.config.num_key_value_heads * BLOCK * 8 * 2 * 4  # of 8 float32 a head, keys and values
    layers = 4 if family == "gemma3" else 2
    full = 2 if family == "gemma3" else 0
    assert cache.page_bytes == layers * page
    assert cache.bytes_in_use == page * ((layers - full) * held + full * 3 * 16)
    dynamic = page // BLOCK * layers * 3 * 64
    assert cache.bytes_in_use < dynamic * {"mistral": 0.25, "gemma3": 0.65}[family]


def test_pools_are_no_larger_than_windows_and_chunks_need():
    """The pages that are there if no number is given do for every pass that was announced."""
    model = tiny_models.make("gemma3", attention="aegis")
    cache = cache_of(model, 2, 160, prefill_chunk=10)
    assert [cache.tables[kind].pages for kind in ("full_attention", "sliding_attention")] == [2 * 40, 2 * 5]
    ids = tiny_models.prompts(2, 150)
    for part in ids.split(10, 1):
        logits = forward(model, part, cache)
    torch.testing.assert_close(logits, forward(model, ids, None, use_cache=False)[:, -10:], atol=2e-5, rtol=1e-4)
    options = {"max_new_tokens": 20, "do_sample": False}
    want = model.generate(ids, **options)
    assert torch.equal(aegis.generate(model, ids, paged=True, prefill_chunk_size=10, **options), want)


def test_generate_feeds_a_cache_no_larger_pieces_than_it_was_told():
    model = tiny_models.make("gemma3")
    ids = tiny_models.prompts(2, 60)
    cache = cache_of(model, prefill_chunk=BLOCK)
    want = aegis.generate(model, ids, max_new_tokens=5, pad_token_id=0)
    assert torch.equal(aegis.generate(model, ids, past_key_values=cache, max_new_tokens=5, pad_token_id=0), want)


@pytest.mark.parametrize("guesses", [{"num_speculative_tokens": 3}, {"tree": (3, 2, 1)}], ids=["line", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pools_of_speculation_are_no_larger_than_windows_and_chunks_need(family, guesses):
    """Of both models; and blocks of guesses, which are larger than a chunk of 2, have room."""
    model = tiny_models.make(family)
    ids = tiny_models.prompts(2, 60)
    options = {"batch_size": 2, "max_cache_len": 120, "paged": True, "prefill_chunk": 2, **guesses}
    runner = aegis.SpeculativeFastRunner(model, another(family), **options)
    want = aegis.generate(model, ids, max_new_tokens=50, pad_token_id=0)
    assert torch.equal(aegis.generate(model, ids, runner=runner, max_new_tokens=50, pad_token_id=0), want)
    for cache in (runner.cache, runner._draft.decoder.cache):
        keep = WINDOW + cache.rollback + 1
        assert cache.tables["sliding_attention"].pages == 2 * -(-(keep + cache.rollback + 15) // 16)


def test_generate_tells_speculation_its_chunks(monkeypatch):
    model = tiny_models.make("mistral")
    made = []
    monkeypatch.setattr(
        block_decoder, "PagedKVCache", lambda *a, **k: made.append(aegis.PagedKVCache(*a, **k)) or made[-1]
    )
    options = {"max_new_tokens": 8, "pad_token_id": 0, "prefill_chunk_size": 20}
    ids = tiny_models.prompts(2, 60)
    got = aegis.generate(model, ids, draft=another("mistral"), paged=True, **options)
    assert torch.equal(got, aegis.generate(model, ids, **options))
    assert [cache.prefill_chunk for cache in made] == [20, 20]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pages", [400, {"sliding_attention": 24}], ids=str)
def test_beginnings_are_shared_as_long_as_their_pages_are_there(family, pages):
    model = tiny_models.make(family, attention="aegis")
    ids = tiny_models.prompts(1, 41)[0]
    cache = cache_of(model, 3, 96, pages=pages)
    first = cache.acquire_row(ids)
    got = decode(model, cache, [first], ids[None], 12)[0]
    assert torch.equal(got, alone(model, ids, 12))
    sliding = cache.tables["sliding_attention"]
    assert sliding.trimmed(first) == (52 - WINDOW - 1) // BLOCK * BLOCK
    second = cache.acquire_row(ids)
    there = cache.row_lengths[second]
    assert there == 40
    assert sliding.trimmed(second) == (40 - WINDOW - 1) // BLOCK * BLOCK, "it holds no more than it needs"
    assert torch.equal(decode(model, cache, [second], ids[None, there:], 12)[0], got)
    other = tiny_models.prompts(1, 60, seed=3)[0]  # evicts, where there are few pages
    third = cache.acquire_row(other)
    assert torch.equal(decode(model, cache, [third], other[None], 6)[0], alone(model, other, 6))
    cache.free_row(second)
    again = cache.acquire_row(ids)
    there = cache.row_lengths[again]
    assert there == (40 if pages == 400 else 0)
    assert torch.equal(decode(model, cache, [again], ids[None, there:], 12)[0], got)
    for table in cache.tables.values():
        table.check_invariants()


@pytest.mark.parametrize("family", FAMILIES)
def test_forks_behind_a_window_go_their_own_ways(family):
    model = tiny_models.make(family, attention="aegis")
    ids = tiny_models.prompts(1, 21)[0]
    cache = cache_of(model, 3)
    row = cache.acquire_row()
    with cache.rows([row]):
        forward(model, ids[None], cache)
    twin = cache.fork(row)
    first, second = ids.new_tensor([[5]]), ids.new_tensor([[6]])
    got = decode(model, cache, [twin, row], torch.cat([first, second]), 14)
    for tokens, start in zip(got, (first, second), strict=True):
        assert torch.equal(tokens, alone(model, torch.cat([ids, start[0]]), 14))
    assert [table.stats()["copied"] for table in cache.tables.values()] == [1] * len(cache.tables)


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_share_pages_behind_a_window(family):
    model = tiny_models.make(family)
    options = {"num_beams": 3, "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    ids = tiny_models.prompts(2)
    cache = cache_of(model, 6, 64)
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), model.generate(ids, **options))
    assert all(table.stats()["copied"] > 0 for table in cache.tables.values())


@pytest.mark.parametrize("short", ["full_attention", "sliding_attention"])
def test_out_of_pages_in_one_table_changes_no_other(short):
    model = tiny_models.make("gemma3", attention="aegis")
    cache = cache_of(model, 2, 96, pages={"full_attention": 60, "sliding_attention": 60, short: 14})
    ids = tiny_models.prompts(2, 40)
    forward(model, ids[:, :20], cache)
    before = {kind: (blocks.clone(), cache.tables[kind].free_pages) for kind, blocks in cache.block_tables.items()}
    for feed in (lambda: forward(model, tiny_models.prompts(2, 60), cache), lambda: cache.begin_step(60)):
        with pytest.raises(PagesExhausted, match="of 14; nothing was changed"):
            feed()
        assert cache.row_lengths == [20, 20]
        for kind, (blocks, free) in before.items():
            assert torch.equal(cache.block_tables[kind], blocks)
            assert cache.tables[kind].free_pages == free


def test_out_of_pages_beside_a_text_of_more_blocks_than_there_are_pages():
    model = tiny_models.make("mistral")
    ids = tiny_models.prompts(2, 96)
    cache = cache_of(model, pages={"sliding_attention": 8})
    with cache.rows([0]):
        for part in ids[:1, :80].split(BLOCK, 1):
            forward(model, part, cache)
    table = cache.tables["sliding_attention"]
    before = table.free_pages + table.evictable_pages
    with pytest.raises(PagesExhausted, match=rf"expected 8 to be free or evictable, but {before} are free"):
        forward(model, ids[:, 80:95], cache)
    assert cache.row_lengths == [80, 0]
    table.check_invariants()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_that_dies_takes_no_window_away(family):
    model = tiny_models.make(family, attention="aegis")
    cache = cache_of(model, 1)
    ids = tiny_models.prompts(1, 70)
    forward(model, ids[:, :30], cache)
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward(model, ids[:, 30:60], cache)
    handle.remove()
    got = forward(model, ids[:, 30:32], cache)
    torch.testing.assert_close(got[0], forward(model, ids[:, :32], None, use_cache=False)[0, 30:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_read_each_kinds_pages_from_its_mask(family, monkeypatch):
    """What a compiled step does, uncompiled: spans and block tables arrive as masks, by kind where there are two."""
    monkeypatch.setattr("aegis.decode.runner.compiled", lambda step: step)
    model = tiny_models.make(family)
    ids = tiny_models.prompts(2, 21)
    want = model.generate(ids, max_new_tokens=30, do_sample=False)[:, 21:]
    cache = cache_of(model, prefill_chunk=21)
    with aegis.CUDAGraphFastRunner(model, cache=cache, mode="compiled", clone=True) as runner:
        tokens = [runner.prefill(ids), *(runner.step() for _ in range(29))]
    assert torch.equal(torch.stack(tokens, 1), want)
    assert cache.tables["sliding_attention"].trimmed(0) == (50 - WINDOW - 1) // BLOCK * BLOCK


def test_pages_for_kinds_that_are_not_there_are_refused():
    model = tiny_models.make("mistral")
    with pytest.raises(ValueError, match=r"pages: expected numbers for \['sliding_attention'\], got some for \['full"):
        cache_of(model, pages={"full_attention": 8})
    for pages, error in (({"sliding_attention": 0}, ValueError), ({"sliding_attention": "8"}, TypeError)):
        with pytest.raises(error, match="pages: expected"):
            cache_of(model, pages=pages)
