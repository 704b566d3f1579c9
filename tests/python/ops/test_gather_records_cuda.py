"""torch.ops.aegis.gather_records on a GPU: the same results as on the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

gather_records = torch.ops.aegis.gather_records
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def make_source(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.cdouble], ids=str)
@pytest.mark.parametrize("row", [(), (1,), (5,), (16,), (3, 4, 2), (700,), (2, 0)], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 64])
def test_equals_the_cpu(dtype, row, batch):
    source, indices = make_source(dtype, 50, *row), torch.randint(0, 50, (batch,))
    got = gather_records(source.cuda(), indices.cuda())
    assert got.is_cuda
    assert got.shape == (batch, *row)
    assert torch.equal(got.cpu(), gather_records(source, indices))


def test_more_rows_and_columns_than_the_grid_has():
    for rows, columns, batch in ((50, 1, 256 * 65535 + 3), (3, 1024 * 256 + 401, 2)):
        source, indices = make_source(torch.uint8, rows, columns), torch.randint(0, rows, (batch,))
        got = gather_records(source.cuda(), indices.cuda())
        assert torch.equal(got.cpu(), source[indices])


@pytest.mark.parametrize("shift", [1, 2, 4, 8])
def test_views_that_are_not_aligned(shift):
    base = torch.arange(30 * 64, device="cuda").to(torch.uint8)
    source = base[shift : shift + 29 * 64].view(29, 64)[:, :32]  # rows lie apart, too
    indices = torch.tensor([0, 28, 7], device="cuda")
    assert torch.equal(gather_records(source, indices), source[indices])


def test_rows_outside_of_the_source_become_zeroes():
    source = torch.arange(1, 31, device="cuda").view(10, 3)
    indices = torch.tensor([0, -1, 9, 10, 2**62, -(2**63), 3], device="cuda")
    out = torch.full((7, 3), -5, device="cuda")
    gather_records.out(source, indices, out=out)
    for row, index in zip(out, indices.tolist(), strict=True):
        assert torch.equal(row, source[index] if 0 <= index < 10 else torch.zeros_like(row))


def test_operands_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="indices: expected to be on the device of source"):
        gather_records(torch.ones(20, device="cuda"), torch.tensor([0]))


def test_runs_on_the_current_stream():
    source, indices = torch.arange(5000, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # work before it on the same stream: the call must queue behind
        indices.fill_(100)
        got = gather_records(source, indices)
    stream.synchronize()
    assert got.tolist() == [100] * 8


def test_graph_replays_follow_the_indices():
    source, indices = torch.randn(500, 24, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    out = torch.empty(16, 24, device="cuda")
    gather_records.out(source, indices, out=out)  # nothing is set up inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather_records.out(source, indices, out=out)
    for seed in range(3):
        fresh = torch.randint(0, 500, (16,), generator=torch.Generator().manual_seed(seed))
        indices.copy_(fresh)
        graph.replay()
        assert torch.equal(out.cpu(), source.cpu()[fresh])
