"""PagedKVCache: the tokens of other caches, in less memory."""

from __future__ import annotations

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
import transformers
from aegis.decode import PromptLookup, register_attention
from paged import alone, decode, forward

register_attention()
NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama", attention="aegis", max_position_embeddings=2048)


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
    full, sliding = 3 * 3, 3 * 2  # which a window of 6 does without
    assert cache.pages_in_use == {"mistral": sliding, "gemma2": full + sliding, "gemma3": full + sliding}.get(
        family, full
    )
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
