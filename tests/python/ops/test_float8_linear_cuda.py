"""torch.ops.aegis.float8_linear on a GPU: within its bound, for few rows and many, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import os

import aegis
import pytest
import torch

float8_linear, float8_quantize = torch.ops.aegis.float8_linear, torch.ops.aegis.float8_quantize
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(len(shape))).to(dtype)


def dequantized(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    k, groups = values.shape[-1], scales.shape[-1]
    return values.double() * scales.double().repeat_interleave(k if groups == 1 else 128, -1)[..., :k]


def assert_near(got, x, weight, scales, bias, by_torch=False):
    """The contract's bound; torch's own product has none, and is held to a relative 2⁻¹² of the sizes."""
    inputs = dequantized(*float8_quantize(x, 0 if scales.shape[1] == 1 else 128))
    weights = dequantized(weight, scales)
    exact, size = inputs @ weights.t() + bias.double(), inputs.abs() @ weights.abs().t() + bias.double().abs()
    error = size * (2.0**-12 if by_torch else (160 + x.shape[-1] / 128) * 2.0**-24)
    info = torch.finfo(x.dtype)
    rounding = 0 if x.dtype == torch.float32 else info.eps / 2 * (exact.abs() + error) + info.smallest_normal
    assert got.dtype == x.dtype
    assert ((got.double() - exact).abs() <= error + rounding).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (15, 300), (128, 64), (385, 77), (4096, 999)])
def test_few_rows(dtype, block, k, n):
    weight, scales = float8_quantize(random(n, k), block)
    around = torch.full((n, k + 3), torch.nan, device="cuda").to(torch.float8_e4m3fn)
    around[:, :k].copy_(weight)
    bias = random(n, dtype=dtype)
    for rows in (1, 2, 3, 7, 16, 17, 40):  # above 16, odd shapes go through the same kernel
        x = random(rows, k, dtype=dtype)
        for stored in (weight, around[:, :k]):
            assert_near(float8_linear(x, stored, scales, bias), x, stored, scales, bias, by_torch=k % 128 == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize("rows", [17, 64, 300])
@pytest.mark.parametrize(("k", "n"), [(16, 7), (4096, 512), (1040, 333)])
def test_many_rows(dtype, block, rows, k, n):
    weight, scales = float8_quantize(random(n, k), block)
    x, bias = random(rows, k, dtype=dtype), random(n, dtype=dtype)
    assert_near(float8_linear(x, weight, scales, bias), x, weight, scales, bias, by_torch=True)


@pytest.mark.skipif(os.environ.get("AEGIS_FLOAT8_TILES") != "1", reason="kernels of tiles have to be asked for")
def test_tiles_run_where_they_are_asked_for():
    if torch.cuda.get_device_capability() not in ((9, 0), (10, 0), (10, 3)):
        pytest.skip("there is no kernel of tiles for this GPU")
    weight, scales = float8_quantize(random(64, 256))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        float8_linear(random(40, 256), weight, scales)
        torch.cuda.synchronize()
    assert any("float8_tiles" in event.key for event in profile.key_averages())


def test_nan_and_zero():
    weight, scales = float8_quantize(random(9, 300))
    x = random(3, 300)
    x[0, 299], x[1] = torch.nan, 0
    got = float8_linear(x, weight, scales)
    assert got[0].isnan().all()
    assert (got[1] == 0).all()
    assert got[2].isfinite().all()


def test_all_pairs_of_values():
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    numbers, zeros = codes.float(), torch.zeros(256, device="cuda").to(torch.float8_e4m3fn)
    x = torch.stack([numbers, torch.full_like(numbers, 448)], 1)
    got = float8_linear(x, torch.stack([codes, zeros], 1).contiguous(), torch.ones(256, 1, device="cuda"))
    torch.testing.assert_close(got, numbers[:, None] * numbers, rtol=0, atol=0, equal_nan=True)


def test_captured_in_a_graph():
    weight, scales = float8_quantize(random(64, 256))
    x = random(2, 256)
    float8_linear(x, weight, scales)  # the library is loaded before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = float8_linear(x, weight, scales)
    x.copy_(random(2, 256) * 2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, float8_linear(x, weight, scales))


def test_operands_on_two_devices():
    x, bias = random(2, 6), random(5)
    weight, scales = float8_quantize(random(5, 6))
    for operands, name in (
        ((x, weight.cpu(), scales), "weight"),
        ((x, weight, scales.cpu()), "weight_scale"),
        ((x, weight, scales, bias.cpu()), "bias"),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected to be on the device of x, got another device"):
            float8_linear(*operands)


def test_layer_moves_to_the_gpu():
    layer = aegis.quant.Float8Linear.from_linear(torch.nn.Linear(64, 32), block=128)
    x = torch.randn(3, 64)
    want, moved = layer(x), layer.cuda()
    assert moved.weight.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(moved(x.cuda()).cpu(), want)
