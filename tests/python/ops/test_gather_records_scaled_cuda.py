"""torch.ops.aegis.gather_records_scaled on a GPU: the same bits as on the CPU.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

gather_records_scaled = torch.ops.aegis.gather_records_scaled
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def make_source(rows: int, *row: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, *row), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("dtype", [0, 1])
@pytest.mark.parametrize("row", [(1,), (40,), (3, 5), (3, 32, 32), (2, 700), (4, 0)], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 33])
def test_the_same_bits_as_on_the_cpu(dtype, row, batch):
    source, indices = make_source(50, *row), torch.randint(0, 50, (batch,))
    scale, bias = torch.randn(row[0]) / 3, torch.randn(row[0])
    got = gather_records_scaled(source.cuda(), indices.cuda(), scale.cuda(), bias.cuda(), dtype)
    assert got.is_cuda
    assert torch.equal(got.cpu(), gather_records_scaled(source, indices, scale, bias, dtype))


@pytest.mark.parametrize("dtype", [0, 1])
def test_nothing_is_fused_or_flushed(dtype):
    """Every value under scales whose products round, overflow and are denormal."""
    source = torch.arange(256, dtype=torch.uint8).view(1, 1, 256).expand(1, 5, 256).contiguous()
    scale = torch.tensor([1 / 3, 1e-40, 3e38, -7.7777e-3, 1.0000001])
    bias = torch.tensor([-1.0, 1e-41, -1e38, 0.999, 0.0])
    arguments = (source, torch.tensor([0]), scale, bias)
    got = gather_records_scaled(*(tensor.cuda() for tensor in arguments), dtype)
    assert torch.equal(got.cpu(), gather_records_scaled(*arguments, dtype))


def test_more_lines_than_the_grid_has():
    source, indices = make_source(30, 2, 256), torch.randint(0, 30, (65535,))
    scale, bias = torch.rand(2), torch.rand(2)
    got = gather_records_scaled(source.cuda(), indices.cuda(), scale.cuda(), bias.cuda(), 1)
    assert torch.equal(got.cpu(), gather_records_scaled(source, indices, scale, bias, 1))


def test_rows_outside_of_the_source_become_zeroes():
    source, scale, bias = make_source(10, 3, 5).cuda(), torch.ones(3).cuda(), torch.ones(3).cuda()
    indices = torch.tensor([0, -1, 9, 10, 2**62, -(2**63)], device="cuda")
    out = torch.full((6, 3, 5), 7.0, device="cuda")
    gather_records_scaled.out(source, indices, scale, bias, out=out)
    for row, index in zip(out, indices.tolist(), strict=True):
        assert torch.equal(row, source[index] + 1.0 if 0 <= index < 10 else torch.zeros_like(row))


def test_operands_on_two_devices_are_refused():
    source, indices = make_source(10, 3).cuda(), torch.tensor([0], device="cuda")
    with pytest.raises(ValueError, match="bias: expected to be on the device of source"):
        gather_records_scaled(source, indices, torch.ones(3, device="cuda"), torch.ones(3), 0)
