"""torch.ops.aegis.skinny_linear against float64, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES, random
from torch.nn import functional

skinny_linear = torch.ops.aegis.skinny_linear


def assert_within_bound(got, x, weight, bias=None):
    """The contract: sums in float32 in any order, then one rounding to the dtype.

    A float32 sum of k products, whatever its order, is off by at most k·2⁻²³ times the sum of their sizes; torch's own
    result obeys the same bound with an order of its own. So both are compared with float64 and not with each other.
    """
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = functional.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    sum_error = x.shape[-1] * 2.0**-23 * size
    info = torch.finfo(got.dtype)
    rounding = 0 if got.dtype == torch.float32 else info.eps / 2 * (exact.abs() + sum_error) + info.smallest_normal
    assert got.dtype == x.dtype
    assert got.shape == exact.shape
    assert ((got.double() - exact).abs() <= sum_error + rounding).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(384,), (1, 384), (2, 3, 64), (8, 65), (4, 2, 1, 1), (5, 1027)], ids=str)
@pytest.mark.parametrize("n", [1, 9, 300])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_reference(dtype, shape, n, with_bias):
    x, weight = random(*shape, dtype=dtype), random(n, shape[-1], dtype=dtype, seed=1)
    bias = random(n, dtype=dtype, seed=2) if with_bias else None
    assert_within_bound(skinny_linear(x, weight, bias), x, weight, bias)
    assert_within_bound(functional.linear(x, weight, bias), x, weight, bias)


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_reference_strides(data, dtype):
    """x of any strides; weights whose rows are apart, and begin anywhere."""
    rows, k, n = (data.draw(st.integers(low, high)) for low, high in ((0, 8), (1, 40), (1, 40)))
    gap, start = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    step = data.draw(st.integers(1, 3))
    x = random(k * step, rows, dtype=dtype)[::step].t()
    weight = random(n, start + k + gap, dtype=dtype, seed=1)[:, start : start + k]
    bias = random(n * step, dtype=dtype, seed=2)[::step]
    copies = [x.clone(), weight.clone(), bias.clone()]
    assert_within_bound(skinny_linear(x, weight, bias), x, weight, bias)
    out = torch.full((rows, n), 7, dtype=dtype)
    assert skinny_linear.out(x, weight, bias, out=out) is None
    assert torch.equal(out, skinny_linear(x, weight, bias))
    assert all(torch.equal(a, b) for a, b in zip(copies, (x, weight, bias), strict=True))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_reference_no_rows(shape):
    got = skinny_linear(torch.empty(shape), random(4, 5), random(4))
    assert got.shape == (*shape[:-1], 4)


def test_reference_no_columns():
    assert skinny_linear(random(2, 5), torch.empty(0, 5)).shape == (2, 0)
    assert skinny_linear(torch.empty(2, 0), torch.empty(3, 0)).tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("k", [1, 5])
def test_reference_strides_that_mean_nothing(k):
    """torch gives a dimension of size 1 any stride."""
    weight = torch.as_strided(random(100), (1, k), (1, 1))
    assert_within_bound(skinny_linear(random(2, k), weight), random(2, k), weight)
    column = random(7, 3)[:, 1:2]
    assert column.stride() == (3, 1)
    column = torch.as_strided(column, (7, 1), (3, 9))
    assert_within_bound(skinny_linear(random(2, 1), column), random(2, 1), column)
    same_row = random(1, 4).expand(6, 4)
    assert_within_bound(skinny_linear(random(2, 4), same_row), random(2, 4), same_row)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_nan_and_infinity_go_through(dtype):
    x, weight = torch.ones(4, 50, dtype=dtype), torch.ones(9, 50, dtype=dtype)
    x[1, 49], x[2, 0] = torch.nan, torch.inf
    weight[3, 20], weight[4, 7], weight[5, 0] = -torch.inf, torch.nan, 0
    got, want = skinny_linear(x, weight), functional.linear(x, weight)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert got.isnan().any()
    assert got.isinf().any()


def test_reference_small_numbers():
    tiny = torch.tensor([[1e-40, 2e-45]])
    assert torch.equal(skinny_linear(tiny, torch.ones(1, 2)), tiny.sum(1, keepdim=True))
    small = torch.tensor([[2.0**-24, 2.0**-23]], dtype=torch.float16)
    assert torch.equal(skinny_linear(small, torch.ones(1, 2, dtype=torch.float16)), small.sum(1, keepdim=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_threads(dtype, threads):
    """Columns are shared out among torch's threads; each column is one thread's, so nothing depends on their number
    but which columns are read side by side."""
    before = torch.get_num_threads()
    x, weight = torch.randint(-4, 5, (3, 129)).to(dtype), torch.randint(-4, 5, (4001, 129)).to(dtype)
    try:
        torch.set_num_threads(threads)
        got = skinny_linear(x, weight)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, (x.long() @ weight.long().t()).to(dtype))


def test_reference_python_signature():
    x, weight, bias = random(2, 3, 20), random(30, 20, seed=1), random(30, seed=2)
    want = skinny_linear(x, weight, bias)
    assert torch.equal(aegis.ops.skinny_linear(x, weight, bias), want)
    weight.requires_grad_()
    for disabled in (torch.no_grad(), torch.inference_mode()):
        with disabled:
            got = aegis.ops.skinny_linear(x, weight, bias)
            assert torch.equal(got, want)
            assert not got.requires_grad
    weight.requires_grad_(False)
    out = torch.empty(2, 3, 30)
    assert aegis.ops.skinny_linear(x, weight, bias, out=out) is out
    assert torch.equal(out, want)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 3, 6), (0, 6)], ids=str)
def test_gradients_equal_those_of_torch(shape):
    def leaves():
        return [t.requires_grad_() for t in (random(*shape), random(5, 6, seed=1), random(5, seed=2))]

    upstream = random(*shape[:-1], 5, seed=3)
    ours, theirs = leaves(), leaves()
    aegis.ops.skinny_linear(*ours).backward(upstream)
    functional.linear(*theirs).backward(upstream)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("wanted", range(1, 8))
def test_gradients_where_only_some_are_wanted(wanted):
    leaves = [random(2, 6), random(5, 6, seed=1), random(5, seed=2)]
    for bit, leaf in enumerate(leaves):
        leaf.requires_grad_(bool(wanted >> bit & 1))
    skinny_linear(*leaves).sum().backward()
    copies = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves]
    functional.linear(*copies).sum().backward()
    for mine, other in zip(leaves, copies, strict=True):
        assert (mine.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)


def test_gradients_agree_with_finite_differences():
    x, weight, bias = random(2, 4), random(3, 4, seed=1), random(3, seed=2)
    for operand in (x, weight, bias):
        operand.requires_grad_()

    def loss() -> torch.Tensor:
        return skinny_linear(x, weight, bias).sin().sum()

    loss().backward()
    for operand in (x, weight, bias):
        direction = torch.randn_like(operand)
        with torch.no_grad():
            operand += 1e-2 * direction
            above = loss().item()
            operand -= 2e-2 * direction
            below = loss().item()
            operand += 1e-2 * direction
        slope = (operand.grad * direction).sum().item()
        assert (above - below) / 2e-2 == pytest.approx(slope, rel=2e-3, abs=2e-3)


def test_gradients_of_gradients():
    x, weight = random(2, 4).requires_grad_(), random(3, 4, seed=1).requires_grad_()

    def penalty(linear):
        (gradient,) = torch.autograd.grad(linear(x, weight).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.pow(2).sum(), (x, weight))

    for mine, other in zip(penalty(skinny_linear), penalty(functional.linear), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    x, weight, bias = random(2, 3, 8, dtype=dtype), random(5, 8, dtype=dtype), random(5, dtype=dtype)
    torch.library.opcheck(skinny_linear.default, (x, weight, bias))
    torch.library.opcheck(skinny_linear.default, (x.transpose(0, 1), weight[:, :], None))
    torch.library.opcheck(skinny_linear.inference, (x, weight, bias))
    torch.library.opcheck(skinny_linear.out, (x, weight, bias), {"out": torch.empty(2, 3, 5, dtype=dtype)})
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(skinny_linear.default, leaves, atol=1e-2, rtol=1e-2)


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(random(7, 20))
        self.bias = torch.nn.Parameter(random(7, seed=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aegis.skinny_linear(x, self.weight, self.bias).relu()


class LinearInto(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((x.size(0), 7))
        torch.ops.aegis.skinny_linear(x, self.weight.detach(), None, out=out)
        return out.relu()


MODULES = [Linear, LinearInto]


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    layer, x = module(), random(3, 20)
    torch.jit.script(layer).save(tmp_path / "linear.pt")
    assert torch.equal(torch.jit.load(tmp_path / "linear.pt")(x), layer(x))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("grad", [False, True])
def test_compile_fullgraph(module, grad):
    layer, x = module(), random(3, 20)
    with torch.set_grad_enabled(grad):
        assert torch.equal(torch.compile(layer, fullgraph=True, backend="inductor")(x), layer(x))


def test_compile_python_signature():
    x, weight = random(3, 20), random(7, 20, seed=1)
    compiled = torch.compile(aegis.ops.skinny_linear, fullgraph=True, backend="aot_eager")
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert torch.equal(compiled(x, weight), skinny_linear(x, weight))
    out = torch.empty(3, 7)
    assert torch.equal(compiled(x, weight, out=out), skinny_linear(x, weight))


def test_compile_training_step():
    layer, twin, x = Linear(), Linear(), random(3, 20)
    torch.compile(layer, fullgraph=True, backend="aot_eager")(x).sum().backward()
    functional.linear(x, twin.weight, twin.bias).relu().sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
    torch.testing.assert_close(layer.bias.grad, twin.bias.grad)


def test_compile_dynamic_rows():
    layer = Linear()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 8):
        x = random(rows, 20)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("module", MODULES)
def test_export(module):
    layer, x = module(), random(3, 20)
    program = torch.export.export(layer, (x,))
    assert torch.equal(program.module()(x), layer(x))


def test_export_to_an_aoti_package(tmp_path):
    layer, x = Linear(), random(3, 20)
    with torch.no_grad():
        program = torch.export.export(layer, (x,))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "linear.pt2"))
        assert torch.equal(torch._inductor.aoti_load_package(package)(x), layer(x))


X, WEIGHT, BIAS = random(2, 6), random(5, 6, seed=1), random(5, seed=2)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        (X.double(), WEIGHT.double(), None, "x: expected dtype float32, bfloat16 or float16, got float64"),
        (X.int(), WEIGHT, None, "x: expected dtype float32, bfloat16 or float16, got int32"),
        (X, WEIGHT.bfloat16(), None, "weight: expected dtype float32, got bfloat16"),
        (X.half(), WEIGHT.bfloat16(), None, "weight: expected dtype float16, got bfloat16"),
        (X, WEIGHT, BIAS.half(), "bias: expected dtype float32, got float16"),
        (X[0, 0], WEIGHT, None, "x: expected at least 1 dimension, got a 0-D tensor"),
        (X, WEIGHT.view(5, 3, 2), None, r"weight: expected a 2-D tensor, got shape \[5, 3, 2\]"),
        (X, WEIGHT[0], None, r"weight: expected a 2-D tensor, got shape \[6\]"),
        (X, WEIGHT[:, :5], None, r"weight: expected 6 columns \(the last size of x\), got shape \[5, 5\]"),
        (X, random(6, 5).t(), None, r"weight: expected rows of adjacent elements \(stride 1\), got stride 5"),
        (X, random(5, 12)[:, ::2], None, r"weight: expected rows of adjacent elements \(stride 1\), got stride 2"),
        (X, WEIGHT, BIAS[:4], r"bias: expected shape \[5\] \(the rows of weight\), got \[4\]"),
        (X, WEIGHT, BIAS.view(1, 5), r"bias: expected shape \[5\] .*got \[1, 5\]"),
        (random(9, 6), WEIGHT, None, r"x: expected at most 8 rows .*got 9 \(shape \[9, 6\]\)"),
        (random(3, 3, 6), WEIGHT, None, r"x: expected at most 8 rows .*got 9 \(shape \[3, 3, 6\]\)"),
    ],
)
def test_bad_input_arguments(x, weight, bias, message):
    with pytest.raises(ValueError, match=message):
        skinny_linear(x, weight, bias)
    out = torch.full((2, 5), 7.0)
    with pytest.raises(ValueError, match=message):
        skinny_linear.out(x, weight, bias, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.empty(2, 5, dtype=torch.float16), "out: expected dtype float32, got float16"),
        (torch.empty(2, 4), r"out: expected a contiguous tensor of shape \[2, 5\], got shape \[2, 4\]"),
        (torch.empty(3, 5), r"out: .*got shape \[3, 5\]"),
        (torch.empty(10), r"out: .*got shape \[10\]"),
        (torch.empty(5, 2).t(), "out: expected a contiguous .*not contiguous"),
        (torch.empty(2, 10)[:, ::2], "out: expected a contiguous .*not contiguous"),
    ],
)
def test_bad_input_out(out, message):
    out.fill_(7)
    with pytest.raises(ValueError, match=message):
        skinny_linear.out(X, WEIGHT, BIAS, out=out)
    assert (out == 7).all()


def test_bad_input_overlap():
    memory = torch.zeros(200)
    x, weight = memory[:12].view(2, 6), memory[20:80].view(5, 12)[:, :6]
    bias = memory[90:95]
    for name, out in (
        ("x", memory[11:21].view(2, 5)),
        ("weight", memory[73:83].view(2, 5)),
        ("weight", memory[26:31].view(1, 5).expand(1, 5)),
        ("bias", memory[85:95].view(2, 5)),
    ):
        with pytest.raises(ValueError, match=f"out: expected memory of its own, got a tensor that overlaps {name}"):
            skinny_linear.out(x[: len(out)], weight, bias, out=out)
    fits = memory[80:90].view(2, 5)
    skinny_linear.out(x, weight, bias, out=fits)
    transposed = memory[100:112].view(6, 2).t()  # copied before it is read, and refused all the same
    with pytest.raises(ValueError, match="overlaps x"):
        skinny_linear.out(transposed, weight, bias, out=memory[100:110].view(2, 5))


def test_bad_input_out_with_gradients():
    weight = WEIGHT.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="out: expected operands without requires_grad"):
        aegis.ops.skinny_linear(X, weight, out=torch.empty(2, 5))
    with torch.no_grad():
        aegis.ops.skinny_linear(X, weight, out=torch.empty(2, 5))
