"""torch.ops.aegis.gather_records against `source[indices]`."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [
    *(torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64),
    *(torch.bool, torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
]
gather_records = torch.ops.aegis.gather_records


def make_source(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), generator=torch.Generator().manual_seed(1))
    return bits.to(torch.uint8).flatten(-2).view(dtype).view(shape)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() == 0:
        return one.dtype is other.dtype and one.shape == other.shape
    return one.dtype is other.dtype and torch.equal(bytes_of(one), bytes_of(other))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def reference(source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    if source.numel() == 0:
        return source.new_empty((len(indices), *source.shape[1:]))
    return bytes_of(source)[indices].view(source.dtype).view(len(indices), *source.shape[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", [(), (1,), (5,), (3, 4, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 33])
def test_reference(dtype, row, batch):
    source = make_source(dtype, 50, *row)
    indices = torch.randint(0, 50, (batch,))
    got = gather_records(source, indices)
    assert got.shape == (batch, *row)
    assert got.is_contiguous()
    assert same_bytes(got, reference(source, indices))


@settings(deadline=None)
@given(data=st.data(), rows=st.integers(1, 40), columns=st.integers(0, 70), step=st.integers(1, 3))
def test_reference_rows_may_lie_apart(data, rows, columns, step):
    base = make_source(torch.int16, rows * step, columns + 2)
    source = base[::step, 1 : columns + 1]
    indices = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), dtype=torch.int64)
    assert torch.equal(gather_records(source, indices), source[indices])
    out = torch.full((len(indices), columns), -9, dtype=torch.int16)
    assert gather_records.out(source, indices, out=out) is None
    assert torch.equal(out, source[indices])


def test_reference_one_row_for_all():
    source = torch.randn(1, 6).expand(1000, 6)
    assert torch.equal(gather_records(source, torch.tensor([0, 999])), source[:2])


def test_reference_python_signature():
    source, indices = torch.randn(9, 4), torch.tensor([8, 0, 8])
    out = torch.empty(3, 4)
    assert aegis.ops.gather_records(source, indices, out=out) is out
    assert torch.equal(out, source[indices])
    assert torch.equal(aegis.ops.gather_records(source, indices), out)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype):
    source, indices = make_source(dtype, 20, 3, 5), torch.tensor([0, 19, 7])
    torch.library.opcheck(gather_records.default, (source, indices))
    torch.library.opcheck(gather_records.default, (source[::2, 1], indices // 3))
    torch.library.opcheck(gather_records.out, (source, indices), {"out": torch.empty(3, 3, 5, dtype=dtype)})


class Gather(torch.nn.Module):
    def forward(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return torch.ops.aegis.gather_records(source, indices) * 2


class GatherInto(torch.nn.Module):
    def forward(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        out = torch.empty((indices.size(0), source.size(1)))
        torch.ops.aegis.gather_records(source, indices, out=out)
        return out * 2


MODULES = [Gather, GatherInto]
SOURCE, INDICES = torch.randn(30, 6), torch.tensor([3, 29, 0, 3])


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    torch.jit.script(module()).save(tmp_path / "gather.pt")
    assert torch.equal(torch.jit.load(tmp_path / "gather.pt")(SOURCE, INDICES), SOURCE[INDICES] * 2)


@pytest.mark.parametrize("module", MODULES)
def test_compile_fullgraph(module):
    compiled = torch.compile(module(), fullgraph=True, backend="inductor")
    assert torch.equal(compiled(SOURCE, INDICES), SOURCE[INDICES] * 2)


def test_compile_dynamic_batch():
    compiled = torch.compile(Gather(), fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 7):
        assert torch.equal(compiled(SOURCE, torch.arange(batch)), SOURCE[:batch] * 2)


@pytest.mark.parametrize("module", MODULES)
def test_export(module):
    program = torch.export.export(module(), (SOURCE, INDICES))
    assert torch.equal(program.module()(SOURCE, INDICES), SOURCE[INDICES] * 2)


@pytest.mark.parametrize("index", [-1, 30, 2**40, -(2**63)])
def test_bad_input_index_is_an_index_error_before_any_write(index):
    out = torch.full((3, 6), 7.0)
    with pytest.raises(IndexError, match=rf"indices\[2\]: expected 0 to 29, got {index}"):
        gather_records.out(SOURCE, torch.tensor([0, 1, index]), out=out)
    assert (out == 7).all()


def test_bad_input_source_without_rows():
    assert gather_records(SOURCE[:0], INDICES[:0]).shape == (0, 6)
    with pytest.raises(IndexError, match=r"indices\[0\]: expected 0 to -1 \(source has no rows\), got 3"):
        gather_records(SOURCE[:0], INDICES)


@pytest.mark.parametrize(
    ("source", "indices", "message"),
    [
        (torch.tensor(1.0), INDICES, "source: expected at least 1 dimension"),
        (SOURCE.t(), INDICES, r"source: expected contiguous rows, got shape \[6, 30\] with other strides"),
        (SOURCE[:, ::2], INDICES, "source: expected contiguous rows"),
        (SOURCE[:, :1].expand(30, 6), INDICES, "source: expected contiguous rows"),
        (SOURCE, INDICES.int(), "indices: expected dtype int64, got int32"),
        (SOURCE, INDICES.view(2, 2), r"indices: expected a contiguous 1-D tensor, got shape \[2, 2\]"),
        (SOURCE, INDICES[::2], "indices: expected a contiguous 1-D tensor.*not contiguous"),
    ],
)
def test_bad_input_arguments(source, indices, message):
    with pytest.raises(ValueError, match=message):
        gather_records(source, indices)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.full((4, 6), 7, dtype=torch.float64), "out: expected dtype float32, got float64"),
        (torch.full((3, 6), 7.0), r"out: expected a contiguous tensor of shape \[4, 6\], got shape \[3, 6\]"),
        (torch.full((4, 6, 1), 7.0), r"out: expected .* got shape \[4, 6, 1\]"),
        (torch.full((6, 4), 7.0).t(), "out: expected .*not contiguous"),
        (torch.full((4, 12), 7.0)[:, ::2], "out: expected .*not contiguous"),
    ],
)
def test_bad_input_out(out, message):
    with pytest.raises(ValueError, match=message):
        gather_records.out(SOURCE, INDICES, out=out)
    assert (out == 7).all()


def test_bad_input_overlap():
    memory = torch.zeros(20, 6)
    with pytest.raises(ValueError, match="out: expected memory of its own, got a tensor that overlaps source"):
        gather_records.out(memory[:10], torch.tensor([0]), out=memory[9:10])
    with pytest.raises(ValueError, match="overlaps source"):  # also between the rows
        gather_records.out(memory[::2], torch.tensor([0]), out=memory[1:2])
    gather_records.out(memory[:10], torch.tensor([0]), out=memory[10:11])
    indices = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="overlaps indices"):
        gather_records.out(torch.arange(9), indices, out=indices)
