"""torch.ops.aegis.skinny_linear on a GPU: within its bound, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

skinny_linear = torch.ops.aegis.skinny_linear
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", range(9))
@pytest.mark.parametrize(("k", "n"), [(1, 1), (8, 300), (385, 64), (1000, 77), (4096, 999)])
def test_whole_numbers_are_exact(dtype, rows, k, n):
    x = torch.randint(-4, 5, (rows, k), device="cuda").to(dtype)
    weight = torch.randint(-4, 5, (n, k + 3), device="cuda").to(dtype)[:, :k]
    bias = torch.randint(-4, 5, (n,), device="cuda").to(dtype)
    want = (x.double() @ weight.double().t() + bias.double()).to(dtype)
    for stored in (weight, weight.contiguous()):
        got = skinny_linear(x, stored, bias)
        assert got.is_cuda
        assert torch.equal(got, want)
        out = torch.full_like(want, 7)
        skinny_linear.out(x, stored, bias, out=out)
        assert torch.equal(out, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [1, 100, 4097])
def test_keeps_the_bound(dtype, k):
    x, weight = random(8, k, dtype=dtype), random(50, k, dtype=dtype)
    exact = x.double() @ weight.double().t()
    sum_error = k * 2.0**-23 * (x.double().abs() @ weight.double().abs().t())
    info = torch.finfo(dtype)
    rounding = 0 if dtype == torch.float32 else info.eps / 2 * (exact.abs() + sum_error) + info.smallest_normal
    assert ((skinny_linear(x, weight).double() - exact).abs() <= sum_error + rounding).all()


def test_gradients_equal_those_of_torch():
    def leaves():
        return [random(2, 3, 6).requires_grad_(), random(5, 6).requires_grad_(), random(5).requires_grad_()]

    ours, theirs = leaves(), leaves()
    aegis.ops.skinny_linear(*ours).sin().sum().backward()
    torch.nn.functional.linear(*theirs).sin().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_runs_on_the_current_stream():
    x, weight = torch.ones(1, 64, device="cuda"), torch.ones(9, 64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.fill_(2)  # an operator on another stream would read the ones
        got = skinny_linear(x, weight)
    stream.synchronize()
    assert (got == 128).all()


def test_captured_in_a_graph():
    x, weight, out = random(2, 64), random(9, 64), torch.empty(2, 9, device="cuda")
    skinny_linear.out(x, weight, None, out=out)  # the library is loaded before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        skinny_linear.out(x, weight, None, out=out)
    x.copy_(random(2, 64) * 2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, skinny_linear(x, weight))


def test_operands_on_two_devices():
    x, weight, bias = random(2, 6), random(5, 6), random(5)
    with pytest.raises(ValueError, match="weight: expected to be on the device of x, got another device"):
        skinny_linear(x.cpu(), weight)
    with pytest.raises(ValueError, match="weight: expected to be on the device of x, got another device"):
        skinny_linear(x, weight.cpu())
    with pytest.raises(ValueError, match="bias: expected to be on the device of x, got another device"):
        skinny_linear(x, weight, bias.cpu())
    with pytest.raises(ValueError, match="out: expected to be on the device of x, got another device"):
        skinny_linear.out(x, weight, bias, out=torch.empty(2, 5))
