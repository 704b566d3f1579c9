"""torch.ops.aegis.float8_linear against float64, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES, random
from torch.nn import functional

float8_linear = torch.ops.aegis.float8_linear


def dequantized(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    k, groups = values.shape[-1], scales.shape[-1]
    wide = scales.double().repeat_interleave(k if groups == 1 else 128, -1)[..., :k]
    return values.double() * wide


def assert_within_bound(got, x, weight, scales, bias=None):
    """The contract: of the exact product of what was quantised, two levels of float32 sums, then one rounding."""
    inputs = dequantized(*torch.ops.aegis.float8_quantize(x, 0 if scales.shape[1] == 1 else 128))
    weights = dequantized(weight, scales)
    exact = functional.linear(inputs, weights, None if bias is None else bias.double())
    size = functional.linear(inputs.abs(), weights.abs(), None if bias is None else bias.double().abs())
    error = (160 + x.shape[-1] / 128) * 2.0**-24 * size
    info = torch.finfo(got.dtype)
    rounding = 0 if got.dtype == torch.float32 else info.eps / 2 * (exact.abs() + error) + info.smallest_normal
    assert got.dtype == x.dtype
    assert got.shape == exact.shape
    assert ((got.double() - exact).abs() <= error + rounding + 2.0**-140).all()


def layer(n: int, k: int, block: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    values, scales = torch.ops.aegis.float8_quantize(random(n, k, seed=1), block)
    return values, scales


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(384,), (2, 3, 64), (8, 65), (4, 2, 1, 1), (5, 1027), (70, 300)], ids=str)
@pytest.mark.parametrize("n", [1, 9, 300])
@pytest.mark.parametrize("block", [0, 128])
def test_reference(dtype, shape, n, block):
    x, (weight, scales) = random(*shape, dtype=dtype), layer(n, shape[-1], block)
    bias = random(n, dtype=dtype, seed=2) if n != 9 else None
    assert_within_bound(float8_linear(x, weight, scales, bias), x, weight, scales, bias)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), block=st.sampled_from([0, 128]))
def test_reference_strides(data, dtype, block):
    """x of any strides; weights whose rows are apart, and begin anywhere."""
    rows, k, n = (data.draw(st.integers(low, high)) for low, high in ((0, 12), (1, 300), (1, 40)))
    gap, start = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    step = data.draw(st.integers(1, 3))
    x = random(k * step, rows, dtype=dtype)[::step].t()
    values, scales = layer(n, k, block)
    around = torch.full((n, start + k + gap), torch.nan).to(torch.float8_e4m3fn)
    weight = around[:, start : start + k]
    weight.copy_(values)
    bias = random(n * step, dtype=dtype, seed=2)[::step]
    assert_within_bound(float8_linear(x, weight, scales, bias), x, weight, scales, bias)


def test_reference_all_pairs_of_values():
    """Each of the 65,536 products of two E4M3 codes; 448 beside x holds its scale at 1."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = codes.float()
    x = torch.stack([numbers, torch.full((256,), 448.0)], 1)
    weight = torch.stack([codes, torch.zeros(256).to(torch.float8_e4m3fn)], 1).contiguous()
    want = numbers[:, None] * numbers
    for rows in (1, 8, 64):  # each way of going through rows
        got = torch.cat([float8_linear(part, weight, torch.ones(256, 1)) for part in x.split(rows)])
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_reference_long_sums_stay_exact_case53():
    k = 1 << 20
    x = torch.full((1, k), 1.0)
    x[0, 0] = 448
    weight = torch.full((2, k), 7.5)
    weight[:, 0] = 448
    got = float8_linear(x, weight.to(torch.float8_e4m3fn), torch.ones(2, 1))
    assert ((got.double() - (448.0**2 + 7.5 * (k - 1))).abs() <= 1).all()  # of 8 million


@pytest.mark.parametrize("block", [0, 128])
def test_reference_no_rows_no_columns(block):
    assert float8_linear(torch.empty(3, 0, 5), *layer(4, 5, block), random(4)).shape == (3, 0, 4)
    assert float8_linear(random(2, 5), *layer(0, 5, block)).shape == (2, 0)
    many = torch.empty(1 << 40, 0)  # that nothing may walk through
    assert float8_linear(many, *layer(0, 0, block)).shape == (1 << 40, 0)
    assert float8_linear(torch.empty(2, 0), *layer(3, 0, block), torch.ones(3)).tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize("rows", [2, 20])
def test_reference_nan_infinity_and_zero(block, rows):
    x, (weight, scales) = random(rows, 300), layer(7, 300, block)
    x[0, 299], x[1, 3] = torch.nan, torch.inf
    x[-1] = x[-1] * 0 if rows > 2 else x[-1]
    got = float8_linear(x, weight, scales)
    assert got[0].isnan().all()
    assert got[1:].isfinite().all()
    assert rows == 2 or (got[-1] == 0).all()
    weight.view(torch.uint8)[3, 150] = 0xFF
    assert float8_linear(x, weight, scales).isnan().sum() == 7 + rows - 1


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_reference_threads(threads):
    before = torch.get_num_threads()
    x, (weight, scales) = random(3, 513), layer(2001, 513)
    try:
        torch.set_num_threads(threads)
        got = float8_linear(x, weight, scales)
    finally:
        torch.set_num_threads(before)
    assert_within_bound(got, x, weight, scales)


def test_reference_more_rows_than_a_batch():
    x, (weight, scales) = random(1100, 40), layer(5, 40)
    whole = float8_linear(x, weight, scales)
    assert_within_bound(whole, x, weight, scales)


def test_reference_python_signature():
    x, (weight, scales), bias = random(2, 3, 20), layer(30, 20), random(30, seed=2)
    want = float8_linear(x, weight, scales, bias)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert torch.equal(aegis.ops.float8_linear(x, weight, scales, bias), want)


# test_schema multiplies the operands to see whether one was written, and torch cannot multiply float8.
CHECKS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    x, bias = random(2, 3, 200, dtype=dtype), random(5, dtype=dtype)
    torch.library.opcheck(float8_linear.default, (x, *layer(5, 200), bias), test_utils=CHECKS)
    torch.library.opcheck(float8_linear.default, (x.transpose(0, 1), *layer(5, 200, 128), None), test_utils=CHECKS)
    torch.library.opcheck(float8_linear.inference, (x, *layer(5, 200), bias), test_utils=CHECKS)


def test_opcheck_operands_are_not_written():
    operands = (random(9, 200), *layer(5, 200, 128), random(5))
    copies = [operand.clone() for operand in operands]
    float8_linear(*operands)
    for operand, copy in zip(operands, copies, strict=True):
        assert torch.equal(operand.view(torch.uint8), copy.view(torch.uint8))


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight, scales = layer(7, 20)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aegis.float8_linear(x, self.weight, self.scales).relu()


def test_script_saved_and_loaded(tmp_path):
    module, x = Linear(), random(3, 20)
    torch.jit.script(module).save(tmp_path / "linear.pt")
    assert torch.equal(torch.jit.load(tmp_path / "linear.pt")(x), module(x))


def test_compile_fullgraph():
    module, x = Linear(), random(3, 20)
    assert torch.equal(torch.compile(module, fullgraph=True, backend="inductor")(x), module(x))
    compiled = torch.compile(aegis.ops.float8_linear, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 9):
        x = random(rows, 20)
        assert torch.equal(compiled(x, module.weight, module.scales), float8_linear(x, module.weight, module.scales))


def test_export():
    module, x = Linear(), random(3, 20)
    assert torch.equal(torch.export.export(module, (x,)).module()(x), module(x))


X, (WEIGHT, SCALES), BIAS = random(2, 300), layer(5, 300), random(5, seed=2)
NOT_FINITE = SCALES.clone()
NOT_FINITE[3] = torch.nan


@pytest.mark.parametrize(
    ("x", "weight", "scales", "bias", "message"),
    [
        (X.double(), WEIGHT, SCALES, None, "x: expected dtype float32, bfloat16 or float16, got float64"),
        (X.to(torch.float8_e4m3fn), WEIGHT, SCALES, None, "x: expected dtype .* got float8_e4m3fn"),
        (X[0, 0], WEIGHT, SCALES, None, "x: expected at least 1 dimension, got a 0-D tensor"),
        (X, WEIGHT.float(), SCALES, None, "weight: expected dtype float8_e4m3fn, got float32"),
        (X, WEIGHT.view(torch.uint8), SCALES, None, "weight: expected dtype float8_e4m3fn, got uint8"),
        (X, WEIGHT.view(torch.float8_e5m2), SCALES, None, "weight: expected dtype float8_e4m3fn, got"),
        (X, WEIGHT[0], SCALES, None, r"weight: expected a 2-D tensor, got shape \[300\]"),
        (X[:, 1:], WEIGHT, SCALES, None, r"weight: expected 299 columns .*got shape \[5, 300\]"),
        (X[:, :5], WEIGHT[:, :5].t(), SCALES, None, r"weight: expected rows of adjacent elements .* stride 300"),
        (X, WEIGHT, SCALES.double(), None, "weight_scale: expected dtype float32, got float64"),
        (X, WEIGHT, SCALES.view(5), None, r"weight_scale: expected .* shape \[5, 1\] or \[5, 3\] .*got shape \[5\]"),
        (X, WEIGHT, SCALES[:4], None, r"weight_scale: .*got shape \[4, 1\]"),
        (X, WEIGHT, SCALES.repeat(1, 5), None, r"weight_scale: .* 128 elements of it\), got shape \[5, 5\]"),
        (X, WEIGHT, SCALES.repeat(1, 6)[:, ::2], None, "weight_scale: .*not contiguous"),
        (X, WEIGHT, NOT_FINITE, None, r"weight_scale\[3, 0\]: expected a finite number, got nan"),
        (X, WEIGHT, SCALES / 0, None, r"weight_scale\[0, 0\]: expected a finite number, got inf"),
        (X, WEIGHT, SCALES, BIAS.half(), "bias: expected dtype float32, got float16"),
        (X, WEIGHT, SCALES, BIAS[:4], r"bias: expected shape \[5\] \(the rows of weight\), got \[4\]"),
        (X, WEIGHT, SCALES, BIAS.view(1, 5), r"bias: expected shape \[5\] .*got \[1, 5\]"),
    ],
)
def test_bad_input_arguments(x, weight, scales, bias, message):
    with pytest.raises(ValueError, match=message):
        float8_linear(x, weight, scales, bias)


@pytest.mark.parametrize("operator", [float8_linear, aegis.ops.float8_linear])
def test_bad_input_gradient(operator):
    for x, bias in ((X.clone().requires_grad_(), BIAS), (X, BIAS.clone().requires_grad_())):
        got = operator(x, WEIGHT, SCALES, bias)
        with pytest.raises(RuntimeError, match="float8_linear: expected no gradient to be asked for"):
            got.sum().backward()
        with torch.no_grad():
            assert torch.equal(operator(x, WEIGHT, SCALES, bias), got)


def test_reference_sums_beyond_float32():
    """Not finite, but no garbage in other rows."""
    x = random(3, 300)
    x[1] = 3e38
    got = float8_linear(x, WEIGHT, SCALES)
    assert not got[1].isfinite().all()
    assert torch.equal(got[[0, 2]], float8_linear(random(3, 300), WEIGHT, SCALES)[[0, 2]])
