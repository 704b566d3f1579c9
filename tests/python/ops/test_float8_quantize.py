"""torch.ops.aegis.float8_quantize against torch's own cast, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
float8_quantize = torch.ops.aegis.float8_quantize


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator).mul(9).exp()).to(dtype)


def expected(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract, in torch: groups at a time, in float32."""
    values, scales = [], []
    for group in x.float().split(block or max(x.shape[-1], 1), dim=-1):
        finite = torch.where(group.isfinite(), group.abs(), 0)
        amax = finite.amax(-1, keepdim=True) if group.shape[-1] else finite.sum(-1, keepdim=True)
        scale = torch.where(amax == 0, 1.0, (amax / 448).clamp(min=2.0**-126))
        values.append((group / scale).clamp(-448, 448).to(torch.float8_e4m3fn))
        scales.append(scale)
    return torch.cat(values, -1), torch.cat(scales, -1)


def assert_same(got, want):
    (values, scales), (want_values, want_scales) = got, want
    assert values.dtype == torch.float8_e4m3fn
    assert scales.dtype == torch.float32
    assert values.is_contiguous()
    assert scales.is_contiguous()
    assert torch.equal(scales, want_scales)
    torch.testing.assert_close(values.float(), want_values.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize("shape", [(384,), (1, 384), (2, 3, 64), (8, 65), (4, 2, 1, 1), (300, 1027)], ids=str)
def test_reference(dtype, block, shape):
    x = random(*shape, dtype=dtype)
    assert_same(float8_quantize(x, block), expected(x, block))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), block=st.sampled_from([0, 128]))
def test_reference_strides(data, dtype, block):
    rows, k, step = (data.draw(st.integers(low, high)) for low, high in ((0, 5), (1, 300), (1, 3)))
    x = random(k * step, rows, dtype=dtype, seed=k)[::step].t()
    copy = x.clone()
    assert_same(float8_quantize(x, block), expected(x, block))
    assert torch.equal(x, copy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_every_bit_pattern_of_half_types(dtype):
    if dtype == torch.float32:
        x = torch.randint(-(2**31), 2**31, (1 << 16,), generator=torch.Generator().manual_seed(0))
        x = x.to(torch.int32).view(torch.float32)
    else:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    for block in (0, 128):
        assert_same(float8_quantize(x, block), expected(x, block))


@pytest.mark.parametrize("block", [0, 128])
def test_reference_zero_rows_and_blocks_case49_case50(block):
    x = random(3, 384)
    x[1] = 0
    x[2, 128:256] = -0.0
    values, scales = float8_quantize(x, block)
    assert scales[1].tolist() == [1] * (3 if block else 1)
    assert not block or scales[2, 1] == 1
    assert (values[1].float() == 0).all()
    assert scales.isfinite().all()
    assert_same((values, scales), expected(x, block))


def test_reference_saturation_case51():
    for largest in (448.0, 449.0, 464.0, 465.0, 480.0):
        x = torch.tensor([largest, torch.inf, -torch.inf, torch.nan])
        values, scales = float8_quantize(x)
        assert scales.item() == pytest.approx(largest / 448)
        assert values[:3].float().tolist() == [448, 448, -448]
        assert values[3].isnan()
    values, scales = float8_quantize(torch.tensor([torch.inf, torch.nan, -torch.inf, 0]))
    assert (scales.item(), values[0], values[2], values[3]) == (1, 448, -448, 0)


@pytest.mark.parametrize("amax", [2.0**-149, 1e-40, 2.0**-126, 3.4e38])
def test_reference_extreme_rows(amax):
    x = torch.tensor([[amax, -amax / 3, 0, amax / 2]])
    values, scales = float8_quantize(x)
    assert scales.item() >= 2.0**-126
    assert ((values.double() * scales.double() - x.double()).abs() <= amax / 16 + 2.0**-135).all()
    assert_same((values, scales), expected(x, 0))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)], ids=str)
@pytest.mark.parametrize("block", [0, 128])
def test_reference_empty(shape, block):
    values, scales = float8_quantize(torch.empty(shape), block)
    assert values.shape == shape
    assert scales.shape == (*shape[:-1], 1 if not block else (shape[-1] + 127) // 128)
    assert (scales == 1).all()


@pytest.mark.parametrize("threads", [1, 5])
def test_reference_threads(threads):
    before, x = torch.get_num_threads(), random(900, 513)
    try:
        torch.set_num_threads(threads)
        got = float8_quantize(x, 128)
    finally:
        torch.set_num_threads(before)
    assert_same(got, expected(x, 128))


def test_reference_error_is_that_of_three_bits():
    x = random(64, 300)
    for block in (0, 128):
        values, scales = aegis.ops.float8_quantize(x, block)
        scale = scales.repeat_interleave(block or 300, -1)[:, :300]
        error = (values.float() * scale - x).abs()
        assert (error <= x.abs() / 16 + scale * 2.0**-10).all()


@pytest.mark.parametrize("block", [0, 128])
def test_opcheck(block):
    torch.library.opcheck(float8_quantize.default, (random(2, 3, 200), block))
    torch.library.opcheck(float8_quantize.default, (random(5, 3).t(), block))


class Quantize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, scales = torch.ops.aegis.float8_quantize(x, 128)
        return values.to(torch.float32) + scales


def test_script_saved_and_loaded(tmp_path):
    x = random(4, 100)
    torch.jit.script(Quantize()).save(tmp_path / "quantize.pt")
    assert torch.equal(torch.jit.load(tmp_path / "quantize.pt")(x), Quantize()(x))


def test_compile_fullgraph():
    x = random(4, 100)
    assert torch.equal(torch.compile(Quantize(), fullgraph=True, backend="aot_eager")(x), Quantize()(x))
    compiled = torch.compile(aegis.ops.float8_quantize, fullgraph=True, dynamic=True, backend="aot_eager")
    for k in (5, 128, 300):
        assert_same(compiled(random(3, k), 128), expected(random(3, k), 128))


@pytest.mark.parametrize(
    ("x", "block", "message"),
    [
        (torch.ones(3, dtype=torch.float64), 0, "x: expected dtype float32, bfloat16 or float16, got float64"),
        (torch.ones(3).to(torch.float8_e4m3fn), 0, "x: expected dtype .* got float8_e4m3fn"),
        (torch.tensor(1.0), 0, "x: expected at least 1 dimension, got a 0-D tensor"),
        (torch.ones(3), 64, r"block: expected 0 \(a scale for each row\) or 128, got 64"),
        (torch.ones(3), -1, "block: expected 0 .* got -1"),
    ],
)
def test_bad_input_arguments(x, block, message):
    with pytest.raises(ValueError, match=message):
        float8_quantize(x, block)


@pytest.mark.parametrize("operator", [float8_quantize, aegis.ops.float8_quantize])
def test_bad_input_gradient(operator):
    _, scales = operator(torch.ones(3, requires_grad=True), 0)
    with pytest.raises(RuntimeError, match="float8_quantize: expected no gradient to be asked for"):
        scales.sum().backward()
    with torch.no_grad():
        assert operator(torch.ones(3, requires_grad=True), 0)[1].item() == pytest.approx(1 / 448)
