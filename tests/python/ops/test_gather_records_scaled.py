"""torch.ops.aegis.gather_records_scaled against `source[indices].float() * scale + bias`."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

gather_records_scaled = torch.ops.aegis.gather_records_scaled
DTYPES = [torch.float32, torch.bfloat16]


def make_source(rows: int, *row: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, *row), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


def reference(source, indices, scale, bias, dtype=torch.float32):
    channels = (-1, *(1,) * (source.ndim - 2))
    return (source[indices].float() * scale.view(channels) + bias.view(channels)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", [(1,), (40,), (3, 5), (3, 32, 32), (5, 1, 1), (4, 0)], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 33])
def test_reference(dtype, row, batch):
    source, indices = make_source(50, *row), torch.randint(0, 50, (batch,))
    scale, bias = torch.randn(row[0]), torch.randn(row[0])
    got = gather_records_scaled(source, indices, scale, bias, DTYPES.index(dtype))
    assert got.dtype is dtype
    assert torch.equal(got, reference(source, indices, scale, bias, dtype))
    out = torch.full((batch, *row), 7, dtype=dtype)
    assert gather_records_scaled.out(source, indices, scale, bias, out=out) is None
    assert torch.equal(out, got)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(scale=finite, bias=finite, dtype=st.sampled_from(DTYPES))
def test_reference_every_value_under_any_scale(scale, bias, dtype):
    source = torch.arange(256, dtype=torch.uint8).view(1, 1, 256)
    a, b, indices = torch.tensor([scale]), torch.tensor([bias]), torch.tensor([0])
    got = aegis.ops.gather_records_scaled(source, indices, a, b, dtype)
    assert torch.equal(got, reference(source, indices, a, b, dtype))


def test_reference_rows_may_lie_apart():
    base = make_source(20, 5, 6)
    source, indices = base[::2, 1:4], torch.tensor([9, 0, 4])
    scale, bias = torch.rand(3), torch.rand(3)
    assert torch.equal(
        aegis.ops.gather_records_scaled(source, indices, scale, bias), reference(source, indices, scale, bias)
    )


def test_reference_python_signature():
    source, indices = make_source(9, 2, 4), torch.tensor([8, 0, 8])
    scale, bias = torch.rand(2), torch.rand(2)
    out = torch.empty(3, 2, 4, dtype=torch.bfloat16)
    assert aegis.ops.gather_records_scaled(source, indices, scale, bias, out=out) is out
    assert torch.equal(out, reference(source, indices, scale, bias, torch.bfloat16))


SOURCE, INDICES, SCALE, BIAS = make_source(30, 3, 7), torch.tensor([3, 29, 0, 3]), torch.rand(3), torch.rand(3)
EXPECTED = reference(SOURCE, INDICES, SCALE, BIAS)


@pytest.mark.parametrize("dtype", [0, 1])
def test_opcheck(dtype):
    torch.library.opcheck(gather_records_scaled.default, (SOURCE, INDICES, SCALE, BIAS, dtype))
    out = torch.empty(4, 3, 7, dtype=DTYPES[dtype])
    torch.library.opcheck(gather_records_scaled.out, (SOURCE, INDICES, SCALE, BIAS), {"out": out})


class Gather(torch.nn.Module):
    def forward(self, source: torch.Tensor, indices: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor):
        return torch.ops.aegis.gather_records_scaled(source, indices, scale, bias, 0) * 2


class GatherInto(torch.nn.Module):
    def forward(self, source: torch.Tensor, indices: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor):
        out = torch.empty((indices.size(0), source.size(1), source.size(2)))
        torch.ops.aegis.gather_records_scaled(source, indices, scale, bias, out=out)
        return out * 2


MODULES = [Gather, GatherInto]
ARGUMENTS = (SOURCE, INDICES, SCALE, BIAS)


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    torch.jit.script(module()).save(tmp_path / "gather.pt")
    assert torch.equal(torch.jit.load(tmp_path / "gather.pt")(*ARGUMENTS), EXPECTED * 2)


@pytest.mark.parametrize("module", MODULES)
def test_compile_fullgraph(module):
    compiled = torch.compile(module(), fullgraph=True, backend="inductor")
    assert torch.equal(compiled(*ARGUMENTS), EXPECTED * 2)


def test_compile_dynamic_batch():
    compiled = torch.compile(Gather(), fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 7):
        indices = torch.arange(batch)
        assert torch.equal(compiled(SOURCE, indices, SCALE, BIAS), reference(SOURCE, indices, SCALE, BIAS) * 2)


@pytest.mark.parametrize("module", MODULES)
def test_export(module):
    program = torch.export.export(module(), ARGUMENTS)
    assert torch.equal(program.module()(*ARGUMENTS), EXPECTED * 2)


@pytest.mark.parametrize("index", [-1, 30, 2**40])
def test_bad_input_index_is_an_index_error_before_any_write(index):
    out = torch.full((2, 3, 7), 7.0)
    with pytest.raises(IndexError, match=rf"indices\[1\]: expected 0 to 29, got {index}"):
        gather_records_scaled.out(SOURCE, torch.tensor([0, index]), SCALE, BIAS, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("source", "scale", "bias", "dtype", "message"),
    [
        (SOURCE.char(), SCALE, BIAS, 0, "source: expected dtype uint8, got int8"),
        (SOURCE[:, 0, 0], SCALE, BIAS, 0, r"source: expected at least 2 dimensions, rows and channels, got \[30\]"),
        (SOURCE[:, :, ::2], SCALE, BIAS, 0, "source: expected contiguous rows"),
        (SOURCE, SCALE.double(), BIAS, 0, "scale: expected dtype float32, got float64"),
        (SOURCE, SCALE[:2], BIAS, 0, r"scale: expected a contiguous tensor of shape \[3\], one value for each channel"),
        (SOURCE, SCALE, BIAS.view(1, 3), 0, r"bias: expected .* of shape \[3\], .* got shape \[1, 3\]"),
        (SOURCE, SCALE, torch.rand(6)[::2], 0, "bias: .*not contiguous"),
        (SOURCE, torch.tensor([1, torch.inf, 1]), BIAS, 0, r"scale\[1\]: expected a finite number, got inf"),
        (SOURCE, SCALE, torch.tensor([1, 1, torch.nan]), 0, r"bias\[2\]: expected a finite number, got nan"),
        (SOURCE, SCALE, BIAS, 2, r"dtype: expected 0 \(float32\) or 1 \(bfloat16\), got 2"),
        (SOURCE, SCALE, BIAS, -1, "dtype: expected .*, got -1"),
    ],
)
def test_bad_input_arguments(source, scale, bias, dtype, message):
    with pytest.raises(ValueError, match=message):
        gather_records_scaled(source, INDICES, scale, bias, dtype)


def test_bad_input_python_signature():
    with pytest.raises(ValueError, match=r"dtype: expected torch.float32 or torch.bfloat16, got torch.float16"):
        aegis.ops.gather_records_scaled(SOURCE, INDICES, SCALE, BIAS, torch.float16)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.full((4, 3, 7), 7.0).half(), "out: expected dtype float32 or bfloat16, got float16"),
        (torch.full((4, 21), 7.0), r"out: expected a contiguous tensor of shape \[4, 3, 7\], got shape \[4, 21\]"),
        (torch.full((4, 7, 3), 7.0).mT, "out: expected .*not contiguous"),
    ],
)
def test_bad_input_out(out, message):
    with pytest.raises(ValueError, match=message):
        gather_records_scaled.out(SOURCE, INDICES, SCALE, BIAS, out=out)
    assert (out == 7).all()


def test_bad_input_overlap():
    memory = torch.zeros(24)
    with pytest.raises(ValueError, match="out: expected memory of its own, got a tensor that overlaps scale"):
        gather_records_scaled.out(SOURCE[:, :, 0].contiguous(), INDICES, memory[:3], BIAS, out=memory[:12].view(4, 3))
    raw = torch.zeros(240, dtype=torch.uint8)
    with pytest.raises(ValueError, match="overlaps source"):
        gather_records_scaled.out(
            raw[:60].view(20, 3), INDICES, SCALE, BIAS, out=raw[48:96].view(torch.float32).view(4, 3)
        )
