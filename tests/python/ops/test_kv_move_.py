"""torch.ops.aegis.kv_move_ against a gather of everything, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8]
kv_move_ = torch.ops.aegis.kv_move_


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(8).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8)


def reference(cache: torch.Tensor, sources: list[list[int]], positions: list[int], rows: list[int]) -> torch.Tensor:
    """All vectors are read before any is written."""
    want, slots = cache.clone(), cache.shape[2]
    for row, position, path in zip(rows, positions, sources, strict=True):
        for t, source in enumerate(path):
            if source >= 0:
                want[row, :, (position + t) % slots] = cache[row, :, source % slots]
    return bits(want)


def check(keys, values, sources, positions, rows=None):
    where = list(range(len(positions))) if rows is None else rows
    want = [reference(cache, sources, positions, where) for cache in (keys, values)]
    tokens = len(sources[0]) if sources else 0
    result = kv_move_(
        keys,
        values,
        torch.tensor(sources, dtype=torch.int64).view(len(sources), tokens),
        torch.tensor(positions, dtype=torch.int64),
        None if rows is None else torch.tensor(rows, dtype=torch.int64),
    )
    assert result is None
    assert torch.equal(bits(keys), want[0])
    assert torch.equal(bits(values), want[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 8, 33])
def test_reference(dtype, size):
    keys, values = random(3, 2, 6, size, dtype=dtype), random(3, 2, 6, size, dtype=dtype, seed=1)
    check(keys, values, [[0, 2, 5], [5, 8, -1]], [0, 4])
    check(keys, values, [[4, -1, 6], [7, 8, 9]], [3, 5], rows=[2, 0])


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES[:4]))
def test_reference_paths(data, dtype):
    """Any ascending path within the slots, ragged, over slices and permutations, keys and values of different sizes."""
    rows, heads, slots, batch, key_size, value_size, gap = (
        data.draw(st.integers(low, high)) for low, high in [(1, 4), (1, 3), (1, 9), (0, 4), (1, 40), (1, 40), (0, 3)]
    )
    batch = min(batch, rows)
    tokens = data.draw(st.integers(0, slots))
    positions = data.draw(st.lists(st.integers(0, 30), min_size=batch, max_size=batch))
    sources = []
    for position in positions:
        count = data.draw(st.integers(0, tokens))
        path = sorted(data.draw(st.sets(st.integers(position, position + slots - 1), min_size=count, max_size=count)))
        sources.append(path + [-1] * (tokens - count))

    def cache(size: int) -> torch.Tensor:
        return random(slots, rows, heads, size + gap, dtype=dtype)[..., gap:].permute(1, 2, 0, 3)

    chosen = data.draw(st.one_of(st.none(), st.permutations(range(rows)).map(lambda order: order[:batch])))
    check(cache(key_size), cache(value_size), sources, positions, rows=chosen)


def test_reference_threads():
    """Many vectors are shared out among torch's threads."""
    before = torch.get_num_threads()
    keys, values = random(8, 4, 64, 128), random(8, 4, 64, 128, seed=1)
    try:
        torch.set_num_threads(3)
        check(keys, values, [list(range(2, 62, 2))] * 8, [0] * 8)
    finally:
        torch.set_num_threads(before)


def test_reference_python_signature():
    keys, values = random(2, 1, 4, 3), random(2, 1, 4, 3, seed=1)
    last = keys[1, :, 3].clone()
    assert aegis.ops.kv_move_(keys, values, torch.tensor([[3]]), torch.tensor([2]), torch.tensor([1])) is None
    assert torch.equal(keys[1, :, 2], last)


def arguments(dtype: torch.dtype = torch.float32):
    """A call that is right: (keys, values, sources, positions, rows)."""
    keys, values = random(3, 2, 5, 8, dtype=dtype), random(3, 2, 5, 8, dtype=dtype, seed=1)
    return keys, values, torch.tensor([[4, 6], [1, -1]]), torch.tensor([3, 0]), torch.tensor([2, 0])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_opcheck(dtype):
    torch.library.opcheck(kv_move_.default, arguments(dtype))
    torch.library.opcheck(kv_move_.default, arguments(dtype)[:4])


class Move(torch.nn.Module):
    def forward(
        self, keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        torch.ops.aegis.kv_move_(keys, values, sources, positions)
        positions.add_(1)
        return keys[:, :, :2] + values[:, :, :2]


def check_module(module):
    keys, values = random(2, 1, 4, 3), random(2, 1, 4, 3, seed=1)
    sources, positions = torch.tensor([[2], [3]]), torch.tensor([0, 1])
    want = keys[0, :, 2].clone(), values[1, :, 3].clone()
    addresses = keys.data_ptr(), values.data_ptr()
    got = module(keys, values, sources, positions)
    assert torch.equal(keys[0, :, 0], want[0])
    assert torch.equal(values[1, :, 1], want[1])
    assert torch.equal(got, keys[:, :, :2] + values[:, :, :2])
    assert positions.tolist() == [1, 2]
    assert addresses == (keys.data_ptr(), values.data_ptr())


def test_script_saved_and_loaded(tmp_path):
    torch.jit.script(Move()).save(tmp_path / "move.pt")
    check_module(torch.jit.load(tmp_path / "move.pt"))


def test_compile_fullgraph():
    check_module(torch.compile(Move(), fullgraph=True, backend="aot_eager"))


def test_export():
    sample = random(2, 1, 4, 3), random(2, 1, 4, 3), torch.tensor([[2], [3]]), torch.tensor([0, 1])
    check_module(torch.export.export(Move(), sample).module())


KEYS, VALUES, SOURCES, POSITIONS, ROWS = range(5)


@pytest.mark.parametrize(
    ("which", "replacement", "message"),
    [
        (KEYS, torch.zeros(3, 2, 5), r"keys: expected a 4-D tensor \(rows, heads, slots, size\), got .*\[3, 2, 5\]"),
        (KEYS, torch.zeros(3, 2, 5, 16)[..., ::2], "keys: expected a last dimension of stride 1, got stride 2"),
        (VALUES, torch.zeros(3, 2, 6, 8), r"values: expected rows, heads and slots of keys, \[3, 2, 5, 8\]"),
        (VALUES, torch.zeros(1, 2, 5, 8).expand(3, 2, 5, 8), "values: expected elements that share no memory"),
        (SOURCES, torch.tensor([[4, 6], [1, -1]]).int(), "sources: expected dtype int64, got int32"),
        (SOURCES, torch.tensor([4, 1]), r"sources: expected a contiguous tensor \(batch, tokens\), got shape \[2\]"),
        (SOURCES, torch.tensor([[4, 1], [6, -1]]).t(), "sources: expected .*not contiguous"),
        (POSITIONS, torch.tensor([3]), r"positions: expected a contiguous tensor of shape \[2\].*got shape \[1\]"),
        (POSITIONS, torch.tensor([3, 0]).int(), "positions: expected dtype int64, got int32"),
        (ROWS, torch.tensor([2, 0, 1]), r"rows: expected a contiguous tensor of shape \[2\]"),
        (ROWS, torch.tensor([2, 2]), r"rows\[1\]: expected a row that is not in the list before, got 2"),
    ],
)
def test_bad_input_arguments(which, replacement, message):
    given = list(arguments())
    given[which] = replacement
    before = bits(given[KEYS]), bits(given[VALUES])
    with pytest.raises(ValueError, match=message):
        kv_move_(*given)
    assert torch.equal(bits(given[KEYS]), before[0])
    assert torch.equal(bits(given[VALUES]), before[1])


@pytest.mark.parametrize(
    ("which", "numbers", "message"),
    [
        (SOURCES, [[4, 6], [-2, 3]], r"sources\[1\]\[0\]: expected -1, or at least 0 .*got -2"),
        (SOURCES, [[2, 6], [1, 3]], r"sources\[0\]\[0\]: expected -1, or at least 3 .*got 2"),
        (SOURCES, [[3, 5], [2, 2]], r"sources\[1\]\[1\]: expected -1, or at least 3 and .*got 2"),
        (SOURCES, [[3, 8], [1, 3]], r"sources\[0\]\[1\]: .*less than 5 \(the slots of keys\) more than 3, got 8"),
        (SOURCES, [[3, 2**63 - 1], [1, 3]], r"sources\[0\]\[1\]: .*got 9223372036854775807"),
        (POSITIONS, [3, -1], r"positions\[1\]: expected 0 to \d+, got -1"),
        (POSITIONS, [3, 2**63 - 1], r"positions\[1\]: expected 0 to \d+, got"),
        (ROWS, [2, 3], r"rows\[1\]: expected 0 to 2, got 3"),
        (ROWS, [2, -1], r"rows\[1\]: expected 0 to 2, got -1"),
    ],
)
def test_bad_input_numbers_are_an_index_error_before_any_write(which, numbers, message):
    given = list(arguments())
    given[which] = torch.tensor(numbers)
    before = bits(given[KEYS])
    with pytest.raises(IndexError, match=message):
        kv_move_(*given)
    assert torch.equal(bits(given[KEYS]), before)


def test_bad_input_positions_behind_which_no_source_would_follow():
    given = list(arguments())
    given[SOURCES], given[POSITIONS] = torch.tensor([[3, 5], [2**63 - 1] * 2]), torch.tensor([3, 2**63 - 3])
    with pytest.raises(IndexError, match=rf"positions\[1\]: expected 0 to {2**63 - 6}, got {2**63 - 3}"):
        kv_move_(*given)


def test_bad_input_batch_larger_than_the_cache():
    keys, values, *_ = arguments()
    with pytest.raises(ValueError, match=r"sources: expected a batch of at most 3 \(the rows of keys\), got 4"):
        kv_move_(keys, values, torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))


def test_bad_input_overlap_and_no_slots():
    memory = torch.zeros(1000)
    keys, values = memory[:80].view(1, 2, 5, 8), memory[80:160].view(1, 2, 5, 8)
    sources, position = torch.tensor([[1]]), torch.tensor([0])
    kv_move_(keys, values, sources, position)
    with pytest.raises(ValueError, match="values: expected memory of its own, got a tensor that overlaps keys"):
        kv_move_(keys, memory[79:159].view(1, 2, 5, 8), sources, position)
    numbers = torch.zeros(40, dtype=torch.int64)
    with pytest.raises(ValueError, match="keys: expected memory of its own, got a tensor that overlaps positions"):
        kv_move_(numbers.view(1, 2, 5, 4), torch.zeros(1, 2, 5, 4), sources, numbers[3:4])
    empty = torch.zeros(1, 1, 0, 2)
    kv_move_(empty, empty.clone(), torch.tensor([[-1]]), position)
    with pytest.raises(IndexError, match=r"sources\[0\]\[0\]: expected -1"):
        kv_move_(empty, empty.clone(), torch.tensor([[0]]), position)
