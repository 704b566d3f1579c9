"""torch.ops.aegis.float8_quantize on a GPU: the bits of the CPU's, on torch's stream.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

float8_quantize = torch.ops.aegis.float8_quantize
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize(("rows", "k"), [(0, 5), (3, 0), (1, 1), (70, 129), (9, 512), (5, 513), (33, 4100)])
def test_bits_are_those_of_the_cpu(dtype, block, rows, k):
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(k)).to(dtype)
    if x.numel() > 1000:
        x[1], x[2, 7], x[2, 8], x[2, 9] = 0, torch.nan, torch.inf, -torch.inf
    for source in (x, x.t().contiguous().t()):
        values, scales = float8_quantize(source.cuda(), block)
        want_values, want_scales = float8_quantize(x, block)
        assert torch.equal(scales.cpu(), want_scales)
        got, want = values.cpu().float(), want_values.float()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_every_half_is_cast_as_on_the_cpu():
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(-1, 1)
        values, scales = float8_quantize(x.cuda())
        want_values, want_scales = float8_quantize(x)
        assert torch.equal(scales.cpu(), want_scales)
        torch.testing.assert_close(values.cpu().float(), want_values.float(), rtol=0, atol=0, equal_nan=True)


def test_runs_on_the_current_stream():
    x = torch.ones(1, 64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.fill_(896)  # an operator on another stream would read the ones
        _, scales = float8_quantize(x)
    stream.synchronize()
    assert scales.item() == 2
