"""PagedKVCache: the tokens of other caches, in less memory."""

from __future__ import annotations

import gc
import weakref

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
import transformers
from aegis.decode import PagesExhausted, PromptLookup, register_attention

register_attention()
NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama", attention="aegis", max_position_embeddings=2048)


def forward(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


def decode(model, cache, rows, tokens, count):
    """Greedy tokens (rows, count) after feeding ``tokens`` (rows, n) to these rows."""
    picked = []
    for _ in range(count):
        with cache.rows(rows):
            options = {"position_ids": cache.position_ids(tokens.shape[1])}
            logits = forward(model, tokens, cache, attention_mask=cache.attention_mask(tokens.shape[1]), **options)
        tokens = logits[:, -1:].argmax(2)
        picked.append(tokens)
    return torch.cat(picked, 1)


def alone(model, ids, count):
    """What a text of its own goes on with."""
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids[None], attention_mask=torch.ones_like(ids[None]), **options)[0, len(ids) :]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager", "aegis"])
def test_model_generate_gives_the_same_tokens(family, attention):
    model = tiny_models.make(family)
    ids, mask = tiny_models.padded(3)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    want = model.generate(ids, **options)
    if family == "gemma2" and attention == "sdpa":
        pytest.skip("transformers offers no SDPA for it")
    model.set_attn_implementation(attention)
    cache = aegis.PagedKVCache(model.config, 3, 64)
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)
    assert cache.pages_in_use == 3 * 3
    cache.reset()
    options["attention_mask"] = mask[1:]
    assert torch.equal(model.generate(ids[1:], past_key_values=cache, **options), want[1:])


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("kind", [None, "random", "lookup"])
def test_aegis_generate_and_speculation_give_the_targets_tokens(family, kind):
    model = tiny_models.make(family)
    other = tiny_models.make(family)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5).add_(0.01)
    draft = {"random": other, "lookup": PromptLookup(), None: None}[kind]
    ids, mask = tiny_models.padded(3)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": [3, 4]}
    want = model.generate(ids, do_sample=False, **options)
    assert torch.equal(aegis.generate(model, ids, paged=True, draft=draft, **options), want)


@pytest.mark.parametrize("options", [{"tree": (3, 2, 1)}, {"overlap": True}], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_trees_and_overlap_give_the_targets_tokens(family, options):
    model, other = tiny_models.make(family), tiny_models.make(family)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.1).add_(0.003)
    ids, mask = tiny_models.padded(3)
    want = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    sizes = {"batch_size": 3, "max_cache_len": 96}
    with aegis.SpeculativeFastRunner(model, other, paged=True, **sizes, **options) as runner:
        runner.prefill(ids, mask)
        while min(runner.lengths) < want.shape[1]:
            runner.step()
        assert torch.equal(torch.stack([runner.text(row)[: want.shape[1]] for row in range(3)]), want)
        assert runner.stats()["accepted"] > 0
        runner.cache.table.check_invariants()


def test_generate_into_a_cache_and_on_from_it(llama):
    ids = tiny_models.prompts(2)
    cache = aegis.PagedKVCache(llama.config, 2, 64)
    first = aegis.generate(llama, ids, max_new_tokens=10, past_key_values=cache)
    second = aegis.generate(llama, first, max_new_tokens=8, past_key_values=cache)
    assert torch.equal(second, llama.generate(ids, max_new_tokens=18, do_sample=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_those_of_a_slotted_cache_to_the_bit(dtype):
    model = tiny_models.make("llama", dtype, attention="aegis")
    ids = tiny_models.prompts(2, 40)
    slotted, paged = aegis.SlottedStaticCache(model.config, 2, 64), aegis.PagedKVCache(model.config, 2, 64)
    for part in (ids[:, :20], *ids[:, 20:].split(1, 1)):
        assert torch.equal(forward(model, part, paged), forward(model, part, slotted))


@pytest.mark.parametrize("attention", ["sdpa", "aegis"])
def test_steps_by_tensors_follow_the_pages(attention):
    """As compiled and captured passes do it: a free row is carried along, and its tokens go where nobody reads."""
    model = tiny_models.make("llama", attention=attention)
    ids = tiny_models.prompts(3, 36)
    cache = aegis.PagedKVCache(model.config, 3, 64)
    forward(model, ids[:, :14], cache)
    cache.free_row(1)
    for i in range(14, 36):
        want = forward(model, ids[[0, 2], : i + 1], None, use_cache=False)[:, -1]
        with cache.step():
            mask = cache.attention_mask(1, 3)
            got = forward(model, ids[:, i : i + 1], cache, attention_mask=mask, position_ids=cache.position_ids(1, 3))
        torch.testing.assert_close(got[[0, 2], 0], want, atol=2e-5, rtol=1e-4)
    assert cache.row_lengths == [36, 0, 36]
    assert cache.pages_in_use == 6


def test_compiled_steps_read_pages_from_the_mask(llama):
    """One graph for all positions and pages: the block table is behind the spans, as CUDAGraphFastRunner has it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ids = tiny_models.prompts(2, 36)
    cache = aegis.PagedKVCache(llama.config, 2, 64)
    want = forward(llama, ids, None, use_cache=False)
    forward(llama, ids[:, :10], cache)
    compiled = torch.compile(llama.forward, fullgraph=True, dynamic=False, backend="eager")
    mask = torch.zeros(2, 1, 1, 2 + cache.blocks.shape[1], dtype=torch.int64)
    for i in range(10, 36):
        with cache.step():
            mask[:, 0, 0, 1] = i + 1
            mask[:, 0, 0, 2:] = cache.blocks
            options = {"attention_mask": mask, "position_ids": cache.position_ids()}
            if not hasattr(transformers.Cache, "get_query_offset"):  # transformers 4
                options["cache_position"] = torch.tensor([i])
            got = forward(compiled, ids[:, i : i + 1], cache, **options)
        torch.testing.assert_close(got[:, 0], want[:, i], atol=2e-5, rtol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# --- sharing -----------------------------------------------------------------------------------------------------


def test_a_hundred_rows_with_a_common_prefix_take_fewer_than_five_percent_more_pages_than_one(llama):
    prefix = tiny_models.prompts(1, 1000)[0]
    cache = aegis.PagedKVCache(llama.config, 100, 1100, pages=400)
    first = cache.acquire_row(prefix)
    with cache.rows([first]):
        forward(llama, prefix[None], cache)
    one = cache.pages_in_use
    assert one == 63
    for _ in range(99):
        cache.fork(first)
    assert cache.pages_in_use < one * 1.05
    # Each goes on with a token of its own, in a copy of the last page; what is full stays shared.
    own = torch.arange(100)[:, None] % tiny_models.VOCABULARY
    got = forward(llama, own, cache)
    assert cache.pages_in_use == 62 + 100
    for row in (0, 57, 99):
        want = forward(llama, torch.cat([prefix, own[row]])[None], None, use_cache=False)
        torch.testing.assert_close(got[row, 0], want[0, -1], atol=1e-4, rtol=1e-4)


def test_equal_beginnings_of_prompts_are_fed_once(llama):
    ids = tiny_models.prompts(1, 50)[0]
    other = torch.cat([ids[:40], tiny_models.prompts(1, 9, seed=5)[0]])
    cache = aegis.PagedKVCache(llama.config, 3, 128)
    first = cache.acquire_row(ids)
    early = cache.acquire_row(ids)
    assert cache.row_lengths == [0, 0, 0], "what has not been fed is not there"
    got = decode(llama, cache, [first], ids[None], 5)
    late = cache.acquire_row(other)
    assert cache.row_lengths[late] == 32
    assert cache.table.pages_of(late).tolist() == cache.table.pages_of(first)[:2].tolist()
    assert torch.equal(decode(llama, cache, [late], other[None, 32:], 5)[0], alone(llama, other, 5))
    assert torch.equal(decode(llama, cache, [early], ids[None], 5), got)
    cache.free_row(first)
    again = cache.acquire_row(ids[:48])  # three full blocks, but its last token is to be fed
    assert cache.row_lengths[again] == 32
    assert torch.equal(decode(llama, cache, [again], ids[None, 32:48], 5)[0], alone(llama, ids[:48], 5))


def test_told_tokens_are_shared_in_the_next_turn(llama):
    ids = tiny_models.prompts(1, 20)[0]
    cache = aegis.PagedKVCache(llama.config, 2, 128)
    row = cache.acquire_row(ids)
    more = decode(llama, cache, [row], ids[None], 30)[0]
    cache.tell(row, more[:-1])  # the last one was not fed
    cache.free_row(row)
    text = torch.cat([ids, more])
    again = cache.acquire_row(text)
    assert cache.row_lengths[again] == 48
    assert torch.equal(decode(llama, cache, [again], text[None, 48:], 4)[0], alone(llama, text, 4))


def test_forks_go_their_own_ways(llama):
    ids = tiny_models.prompts(1, 21)[0]
    cache = aegis.PagedKVCache(llama.config, 3, 64)
    row = cache.acquire_row()
    with cache.rows([row]):
        forward(llama, ids[None], cache)
    twin = cache.fork(row)
    assert cache.pages_in_use == 2
    first, second = ids.new_tensor([[5]]), ids.new_tensor([[6]])
    got = decode(llama, cache, [twin, row], torch.cat([first, second]), 14)
    for tokens, start in zip(got, (first, second), strict=True):
        assert torch.equal(tokens, alone(llama, torch.cat([ids, start[0]]), 14))
    assert cache.table.stats()["copied"] == 1


def test_beams_share_pages(llama):
    """Beam search moves rows about at every token: they get each other's pages, and write into copies."""
    ids = tiny_models.prompts(2)
    options = {"num_beams": 3, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    cache = aegis.PagedKVCache(llama.config, 6, 64)
    assert torch.equal(llama.generate(ids, past_key_values=cache, **options), llama.generate(ids, **options))
    assert cache.table.stats()["copied"] > 0
    assert cache.pages_in_use < 6 * 3


def test_rows_of_unequal_length_come_and_go(llama):
    """Continuous batching in a pool of a fourth of what rows of full length would take."""
    cache = aegis.PagedKVCache(llama.config, 4, 128, pages=8)
    texts = [tiny_models.prompts(1, length, seed=length)[0] for length in (5, 33, 17, 40, 3, 29)]
    wanted = [alone(llama, text, 6) for text in texts]
    rows = {}
    for number, text in enumerate(texts):
        if len(rows) == 2:
            done = min(rows)
            cache.free_row(rows.pop(done))
        rows[number] = cache.acquire_row(text)
        assert torch.equal(decode(llama, cache, [rows[number]], text[None], 6)[0], wanted[number])
    assert cache.pages_in_use <= 8


def test_memory_beside_a_slotted_cache(llama):
    lengths = [16 * (1 + row % 8) for row in range(32)]
    cache = aegis.PagedKVCache(llama.config, 32, 128)
    for length in lengths:
        with cache.rows([cache.acquire_row()]):
            forward(llama, tiny_models.prompts(1, length), cache)
    slotted = aegis.SlottedStaticCache(llama.config, 32, 128, dtype=torch.float32, device="cpu")
    whole = sum(t.nbytes for layer in slotted.layers for t in (layer.keys, layer.values))
    assert cache.pages_in_use * cache.page_bytes == whole * sum(lengths) // (32 * 128)


# --- out of pages, and what is refused ---------------------------------------------------------------------------


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


def decode_prompt(model, cache, ids):
    row = cache.acquire_row(ids)
    with cache.rows([row]):
        forward(model, ids[None, cache.row_lengths[row] :], cache)
    return row


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
