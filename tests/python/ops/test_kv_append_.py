"""torch.ops.aegis.kv_append_ against a loop over tokens, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8]
kv_append_ = torch.ops.aegis.kv_append_


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(8).to(dtype)


def reference(cache: torch.Tensor, fresh: torch.Tensor, positions: list[int], rows: list[int]) -> torch.Tensor:
    """What the cache must hold afterwards, as bytes."""
    want = cache.clone()
    for b, (position, row) in enumerate(zip(positions, rows, strict=True)):
        for t in range(fresh.shape[2]):
            want[row, :, (position + t) % cache.shape[2]] = fresh[b, :, t]
    return bits(want)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8)


def check(keys, values, new_keys, new_values, positions, rows=None):
    where = list(range(len(positions))) if rows is None else rows
    want = reference(keys, new_keys, positions, where), reference(values, new_values, positions, where)
    copies = new_keys.clone(), new_values.clone()
    numbers = torch.tensor(positions, dtype=torch.int64)
    result = kv_append_(
        keys, values, new_keys, new_values, numbers, None if rows is None else torch.tensor(rows, dtype=torch.int64)
    )
    assert result is None
    assert torch.equal(bits(keys), want[0])
    assert torch.equal(bits(values), want[1])
    assert torch.equal(bits(new_keys), bits(copies[0]))
    assert torch.equal(bits(new_values), bits(copies[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 6, 7, 20])
@pytest.mark.parametrize("size", [1, 8, 33, 128])
def test_reference(dtype, tokens, size):
    keys, values = random(3, 2, 6, size, dtype=dtype), random(3, 2, 6, size, dtype=dtype, seed=1)
    new_keys, new_values = (random(2, 2, tokens, size, dtype=dtype, seed=seed) for seed in (2, 3))
    check(keys, values, new_keys, new_values, [4, 0])
    check(keys, values, new_keys, new_values, [0, 11], rows=[2, 0])


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES[:4]))
def test_reference_strides(data, dtype):
    """New tokens as transposed views, caches as slices and permutations, keys and values of different sizes."""
    rows, heads, slots, batch, tokens, key_size, value_size = (
        data.draw(st.integers(low, high)) for low, high in [(1, 4), (1, 3), (1, 6), (0, 4), (0, 8), (1, 40), (1, 40)]
    )
    batch = min(batch, rows)
    start, gap = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))

    def cache(size: int) -> torch.Tensor:
        whole = random(slots, rows, heads, start + size + gap, dtype=dtype)
        return whole[..., start : start + size].permute(1, 2, 0, 3)

    def fresh(size: int) -> torch.Tensor:
        return random(batch, tokens, heads, start + size, dtype=dtype, seed=2)[..., start:].transpose(1, 2)

    positions = data.draw(st.lists(st.integers(0, 20), min_size=batch, max_size=batch))
    chosen = data.draw(st.permutations(range(rows)))[:batch]
    check(cache(key_size), cache(value_size), fresh(key_size), fresh(value_size), positions)
    check(cache(key_size), cache(value_size), fresh(key_size), fresh(value_size), positions, rows=chosen)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_reference_threads(threads):
    """A long prompt is shared out among torch's threads."""
    before = torch.get_num_threads()
    keys, values = torch.zeros(2, 4, 4000, 64), torch.zeros(2, 4, 4000, 64)
    new_keys, new_values = random(2, 4, 3000, 64), random(2, 4, 3000, 64, seed=1)
    try:
        torch.set_num_threads(threads)
        kv_append_(keys, values, new_keys, new_values, torch.tensor([0, 2500]))
    finally:
        torch.set_num_threads(before)
    for cache, fresh in ((keys, new_keys), (values, new_values)):
        assert torch.equal(cache[0, :, :3000], fresh[0])
        assert not cache[0, :, 3000:].any()
        assert torch.equal(cache[1, :, 2500:], fresh[1, :, :1500])
        assert torch.equal(cache[1, :, :1500], fresh[1, :, 1500:])
        assert not cache[1, :, 1500:2500].any()


def test_reference_position_is_read_when_the_call_runs_case10():
    keys, values, position = torch.zeros(1, 1, 8, 2), torch.zeros(1, 1, 8, 2), torch.zeros(1, dtype=torch.int64)
    for step in range(8):
        kv_append_(keys, values, torch.full((1, 1, 1, 2), step + 1.0), torch.full((1, 1, 1, 2), -1.0), position)
        position.add_(1)
    assert keys[0, 0, :, 0].tolist() == list(range(1, 9))
    assert (values == -1).all()


def test_reference_python_signature():
    keys, values = torch.zeros(2, 1, 4, 3), torch.zeros(2, 1, 4, 3)
    new = random(1, 1, 1, 3)
    assert aegis.ops.kv_append_(keys, values, new, new, torch.tensor([2]), torch.tensor([1])) is None
    assert torch.equal(keys[1, :, 2:3], new[0])
    assert keys.count_nonzero() == 3


def test_reference_inside_of_inference_mode():
    keys, values, new = torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 4, 3), random(1, 1, 1, 3)
    with torch.inference_mode():
        kv_append_(keys, values, new, new, torch.tensor([3]))
    assert torch.equal(keys[:, :, 3:], new)


def arguments(dtype: torch.dtype = torch.float32):
    """A call that is right: (keys, values, new_keys, new_values, positions, rows)."""
    keys, values = torch.zeros(3, 2, 5, 8, dtype=dtype), torch.zeros(3, 2, 5, 8, dtype=dtype)
    new_keys, new_values = (random(2, 4, 2, 8, dtype=dtype, seed=s).transpose(1, 2) for s in (2, 3))
    return keys, values, new_keys, new_values, torch.tensor([3, 0]), torch.tensor([2, 0])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_opcheck(dtype):
    torch.library.opcheck(kv_append_.default, arguments(dtype))
    torch.library.opcheck(kv_append_.default, arguments(dtype)[:5])


class Append(torch.nn.Module):
    def forward(
        self, keys: torch.Tensor, values: torch.Tensor, new: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        torch.ops.aegis.kv_append_(keys, values, new, new * 2, positions)
        positions.add_(new.size(2))
        return keys[:, :, :3] + values[:, :, :3]


def check_module(module):
    keys, values, positions = torch.zeros(2, 1, 4, 3), torch.zeros(2, 1, 4, 3), torch.zeros(2, dtype=torch.int64)
    addresses = keys.data_ptr(), values.data_ptr()
    for step in range(3):
        new = random(2, 1, 1, 3, seed=step)
        got = module(keys, values, new, positions)
        assert torch.equal(keys[:, :, step : step + 1], new)
        assert torch.equal(values[:, :, step : step + 1], new * 2)
        assert torch.equal(got, keys[:, :, :3] + values[:, :, :3])
    assert positions.tolist() == [3, 3]
    assert addresses == (keys.data_ptr(), values.data_ptr())


def test_script_saved_and_loaded(tmp_path):
    torch.jit.script(Append()).save(tmp_path / "append.pt")
    check_module(torch.jit.load(tmp_path / "append.pt"))


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compile_fullgraph(backend):
    check_module(torch.compile(Append(), fullgraph=True, backend=backend))


def test_compile_dynamic_tokens():
    compiled = torch.compile(Append(), fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (2, 3, 4):
        keys, values, new = torch.zeros(2, 1, 4, 3), torch.zeros(2, 1, 4, 3), random(2, 1, tokens, 3)
        compiled(keys, values, new, torch.zeros(2, dtype=torch.int64))
        assert torch.equal(keys[:, :, :tokens], new)


def test_export():
    sample = torch.zeros(2, 1, 4, 3), torch.zeros(2, 1, 4, 3), random(2, 1, 1, 3), torch.zeros(2, dtype=torch.int64)
    check_module(torch.export.export(Append(), sample).module())


KEYS, VALUES, NEW_KEYS, NEW_VALUES, POSITIONS, ROWS = range(6)


@pytest.mark.parametrize(
    ("which", "replacement", "message"),
    [
        (
            KEYS,
            torch.zeros(3, 2, 5),
            r"keys: expected a 4-D tensor \(rows, heads, slots, size\), got .*\[3, 2, 5\]",
        ),
        (
            NEW_VALUES,
            torch.zeros(8),
            r"new_values: expected a 4-D tensor \(batch, heads, tokens, size\)",
        ),
        (KEYS, torch.zeros(3, 2, 5, 16)[..., ::2], "keys: expected a last dimension of stride 1, got stride 2"),
        (NEW_KEYS, torch.zeros(2, 2, 4, 16)[..., ::2], "new_keys: expected a last dimension of stride 1, got stride 2"),
        (NEW_KEYS, torch.zeros(2, 2, 4, 8).half(), "new_keys: expected dtype float32, got float16"),
        (NEW_VALUES, torch.zeros(2, 2, 4, 8).double(), "new_values: expected dtype float32, got float64"),
        (
            NEW_KEYS,
            torch.zeros(2, 3, 4, 8),
            r"new_keys: expected 2 heads of size 8 as in keys, got .*\[2, 3, 4, 8\]",
        ),
        (NEW_VALUES, torch.zeros(2, 2, 4, 7), "new_values: expected 2 heads of size 8 as in values"),
        (VALUES, torch.zeros(3, 2, 6, 8), r"values: expected rows, heads and slots of keys, \[3, 2, 5, 8\]"),
        (
            NEW_VALUES,
            torch.zeros(2, 2, 3, 8),
            r"new_values: expected batch, heads and tokens of new_keys, \[2",
        ),
        (KEYS, torch.zeros(1, 2, 5, 8).expand(3, 2, 5, 8), "keys: expected elements that share no memory"),
        (VALUES, torch.zeros(90).as_strided((3, 2, 5, 8), (20, 10, 5, 1)), "values: expected elements that share no"),
        (POSITIONS, torch.tensor([3, 0]).int(), "positions: expected dtype int64, got int32"),
        (POSITIONS, torch.tensor([3]), r"positions: expected a contiguous tensor of shape \[2\].*got shape \[1\]"),
        (POSITIONS, torch.tensor([[3, 0]]), r"positions: expected .*got shape \[1, 2\]"),
        (POSITIONS, torch.tensor([3, 9, 0])[::2], "positions: expected .*not contiguous"),
        (ROWS, torch.tensor([2, 0]).int(), "rows: expected dtype int64, got int32"),
        (ROWS, torch.tensor([2, 0, 1]), r"rows: expected a contiguous tensor of shape \[2\]"),
        (ROWS, torch.tensor([2, 2]), r"rows\[1\]: expected a row that is not in the list before, got 2"),
    ],
)
def test_bad_input_arguments(which, replacement, message):
    given = list(arguments())
    given[which] = replacement
    with pytest.raises(ValueError, match=message):
        kv_append_(*given)
    assert not given[KEYS].any()
    assert not given[VALUES].any()


@pytest.mark.parametrize("position", [-1, -(2**63), 2**63 - 1])
def test_bad_input_position_is_an_index_error_before_any_write(position):
    keys, values, new_keys, new_values, _, rows = arguments()
    with pytest.raises(IndexError, match=rf"positions\[1\]: expected 0 to \d+, got {position}"):
        kv_append_(keys, values, new_keys, new_values, torch.tensor([3, position]), rows)
    assert not keys.any()


@pytest.mark.parametrize("row", [-1, 3, 2**40])
def test_bad_input_row_is_an_index_error_before_any_write(row):
    keys, values, new_keys, new_values, positions, _ = arguments()
    with pytest.raises(IndexError, match=rf"rows\[1\]: expected 0 to 2, got {row}"):
        kv_append_(keys, values, new_keys, new_values, positions, torch.tensor([2, row]))
    assert not keys.any()


def test_bad_input_batch_larger_than_the_cache():
    new = torch.zeros(4, 2, 1, 8)
    with pytest.raises(ValueError, match=r"new_keys: expected a batch of at most 3 \(the rows of keys\), got 4"):
        kv_append_(*arguments()[:2], new, new, torch.zeros(4, dtype=torch.int64))


def test_bad_input_no_slots():
    keys, new = torch.zeros(1, 1, 0, 2), torch.zeros(1, 1, 1, 2)
    with pytest.raises(ValueError, match="keys: expected at least 1 slot, got none"):
        kv_append_(keys, keys.clone(), new, new, torch.tensor([0]))


def test_bad_input_overlap():
    memory = torch.zeros(1000)
    keys, values = memory[:80].view(1, 2, 5, 8), memory[80:160].view(1, 2, 5, 8)
    new, position = torch.ones(1, 2, 1, 8), torch.tensor([0])
    kv_append_(keys, values, new, new, position)
    for overlapping, name in ((memory[79:159].view(1, 2, 5, 8), "values"), (keys, "values")):
        with pytest.raises(ValueError, match=f"{name}: expected memory of its own, got a tensor that overlaps keys"):
            kv_append_(keys, overlapping, new, new, position)
    inside = memory[70:86].view(1, 2, 1, 8)
    with pytest.raises(ValueError, match="keys: expected memory of its own, got a tensor that overlaps new_keys"):
        kv_append_(keys, values, inside, new, position)
    with pytest.raises(ValueError, match="keys: expected memory of its own, got a tensor that overlaps new_values"):
        kv_append_(keys, values, new, inside, position)
    numbers = torch.zeros(40, dtype=torch.int64)
    with pytest.raises(ValueError, match="keys: expected memory of its own, got a tensor that overlaps positions"):
        kv_append_(numbers.view(1, 2, 5, 4), torch.zeros(1, 2, 5, 4), new[..., :4].long(), new[..., :4], numbers[3:4])


# --- pages

BLOCKS, PAGED_ROWS = 5, 6


def paged_arguments():
    """A call that is right: (keys, values, new_keys, new_values, positions, blocks, rows)."""
    keys, values, new_keys, new_values, _, rows = arguments()
    blocks = torch.tensor([[2, 0], [1, 1], [7, 5]])
    return [
        keys.repeat(3, 1, 1, 1),
        values.repeat(3, 1, 1, 1),
        new_keys,
        new_values,
        torch.tensor([3, 6]),
        blocks,
        rows,
    ]


@settings(deadline=None, max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(DTYPES[:4]), slots=st.integers(1, 6))
def test_reference_on_pages(data, dtype, slots):
    """As into one buffer, of which each page is a part."""
    count = data.draw(st.integers(1, 5))
    tokens = data.draw(st.integers(0, count * slots))
    positions = [data.draw(st.integers(0, count * slots - tokens)) for _ in range(2)]
    chosen = data.draw(st.permutations(range(3)))[:2]
    buffers = [random(3, 2, count * slots, 7, dtype=dtype, seed=seed) for seed in (4, 5)]
    fresh = [random(2, tokens, 2, 7, dtype=dtype, seed=seed).transpose(1, 2) for seed in (2, 3)]
    blocks = torch.tensor(data.draw(st.permutations(range(3 * count + 2)))[: 3 * count]).view(3, count)
    pools = []
    for buffer in buffers:
        pool = random(3 * count + 2, 2, slots, 7, dtype=dtype, seed=9)
        pool[blocks] = buffer.view(3, 2, count, slots, 7).transpose(1, 2)
        pools.append(pool)
    others = [pool.clone() for pool in pools]
    check(*buffers, *fresh, positions, rows=chosen)
    kv_append_.paged(*pools, *fresh, torch.tensor(positions), blocks, torch.tensor(chosen))
    for pool, buffer, other in zip(pools, buffers, others, strict=True):
        assert torch.equal(pool[blocks].transpose(1, 2).reshape(buffer.shape), buffer)
        unused = [page for page in range(len(pool)) if page not in blocks]
        assert torch.equal(pool[unused], other[unused])


def test_opcheck_on_pages():
    torch.library.opcheck(kv_append_.paged, tuple(paged_arguments()))


@pytest.mark.parametrize(
    ("which", "replacement", "error", "message"),
    [
        (
            BLOCKS,
            torch.tensor([[2, 0], [1, 1], [7, 9]]),
            IndexError,
            r"blocks\[2, 1\]: expected a page in \[0, 9\), got 9",
        ),
        (BLOCKS, torch.tensor([[2, -1], [1, 1], [7, 5]]), IndexError, r"blocks\[0, 1\]: expected a page .*got -1"),
        (
            BLOCKS,
            torch.tensor([[2], [1], [7]]),
            IndexError,
            r"positions\[0\]: expected room for 4 tokens within 1 blocks of 5",
        ),
        (BLOCKS, torch.zeros(3, 2), ValueError, "blocks: expected dtype int64, got float32"),
        (BLOCKS, torch.zeros(3, dtype=torch.int64), ValueError, r"blocks: expected shape \(rows, blocks\), got \[3\]"),
        (PAGED_ROWS, torch.tensor([2, 3]), IndexError, r"rows\[1\]: expected 0 to 2, got 3"),
        (POSITIONS, torch.tensor([3, 2**62]), IndexError, r"positions\[1\]: expected room for 4 tokens"),
    ],
)
def test_bad_input_on_pages(which, replacement, error, message):
    given = paged_arguments()
    given[which] = replacement
    with pytest.raises(error, match=message):
        kv_append_.paged(*given)
    assert not given[KEYS].any()
    assert not given[VALUES].any()
