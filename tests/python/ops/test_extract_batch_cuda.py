"""torch.ops.aegis.extract_batch on a GPU: the same results as on the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

extract_batch = torch.ops.aegis.extract_batch
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
DTYPES = [torch.uint8, torch.uint16, torch.uint32, torch.int32, torch.int64]


def make_arena(dtype: torch.dtype, n: int) -> torch.Tensor:
    top = {torch.uint8: 2**8, torch.uint16: 2**16}.get(dtype, 2**31)
    return torch.randint(0, top, (n,), generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 33, 256, 999])
@pytest.mark.parametrize("batch", [0, 1, 64])
def test_equals_the_cpu(dtype, batch, block_size):
    arena, offsets = make_arena(dtype, 1000), torch.randint(0, 1000 - block_size, (batch,))
    x, y = extract_batch(arena.cuda(), offsets.cuda(), block_size)
    assert x.is_cuda
    assert y.is_cuda
    want_x, want_y = extract_batch(arena, offsets, block_size)
    assert torch.equal(x.cpu(), want_x)
    assert torch.equal(y.cpu(), want_y)


def test_more_rows_than_the_grid_has():
    arena, offsets = make_arena(torch.uint16, 1000), torch.randint(0, 990, (65535 + 3,))
    x, y = extract_batch(arena.cuda(), offsets.cuda(), 3)
    want_x, want_y = extract_batch(arena, offsets, 3)
    assert torch.equal(x.cpu(), want_x)
    assert torch.equal(y.cpu(), want_y)


def test_views_that_are_not_aligned():
    arena = make_arena(torch.uint8, 1001).cuda()[1:]
    offsets = torch.arange(11, device="cuda")[1:]
    x, _ = extract_batch(arena, offsets, 7)
    want, _ = extract_batch(arena.cpu(), offsets.cpu(), 7)
    assert torch.equal(x.cpu(), want)


def test_out_narrows_and_saturates_case44():
    arena = torch.tensor([2**40, -(2**40), 70000, 5], device="cuda")
    inputs = torch.empty(1, 3, dtype=torch.int32, device="cuda")
    targets = torch.empty(1, 3, dtype=torch.int64, device="cuda")
    extract_batch.out(arena, torch.tensor([0], device="cuda"), inputs=inputs, targets=targets)
    assert inputs.tolist() == [[2**31 - 1, -(2**31), 70000]]
    assert targets.tolist() == [[-(2**40), 70000, 5]]


def test_windows_outside_of_the_arena_become_minus_one():
    arena = torch.arange(20, device="cuda")
    offsets = torch.tensor([0, -1, 15, 16, 2**62, -(2**63), 3], device="cuda")
    x, y = extract_batch(arena, offsets, 4)
    outside = torch.full((4,), -1, device="cuda")
    for row, start in enumerate(offsets.tolist()):
        inside = 0 <= start <= 15
        assert torch.equal(x[row], arena[start : start + 4] if inside else outside)
        assert torch.equal(y[row], arena[start + 1 : start + 5] if inside else outside)


def test_operands_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="offsets: expected to be on the device of arena"):
        extract_batch(torch.arange(20, device="cuda"), torch.tensor([0]), 4)


def test_runs_on_the_current_stream():
    arena, offsets = torch.arange(5000, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # work before it on the same stream: the call must queue behind
        offsets.fill_(100)
        x, _ = extract_batch(arena, offsets, 4)
    stream.synchronize()
    assert x.tolist() == [[100, 101, 102, 103]] * 8


def test_graph_replays_follow_the_offsets():
    arena, offsets = make_arena(torch.uint16, 5000).cuda(), torch.zeros(16, dtype=torch.int64, device="cuda")
    inputs = torch.empty(16, 128, dtype=torch.int64, device="cuda")
    targets = torch.empty_like(inputs)
    extract_batch.out(arena, offsets, inputs=inputs, targets=targets)  # nothing is set up inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        extract_batch.out(arena, offsets, inputs=inputs, targets=targets)
    for seed in range(3):
        fresh = torch.randint(0, 5000 - 128, (16,), generator=torch.Generator().manual_seed(seed))
        offsets.copy_(fresh)
        graph.replay()
        want, want_targets = extract_batch(arena.cpu(), fresh, 128)
        assert torch.equal(inputs.cpu(), want)
        assert torch.equal(targets.cpu(), want_targets)
