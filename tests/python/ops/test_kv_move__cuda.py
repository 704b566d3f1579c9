"""torch.ops.aegis.kv_move_ on a GPU: the same results as on the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

kv_move_ = torch.ops.aegis.kv_move_
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def caches(dtype: torch.dtype, size: int, slots: int = 7) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(3, 2, slots, size, generator=draw).to(dtype) for _ in range(2)]


def check(operands: list[torch.Tensor], *numbers: torch.Tensor) -> None:
    on_gpu = [t.cuda() for t in operands]
    kv_move_(*on_gpu, *(n.cuda() for n in numbers))
    kv_move_(*operands, *numbers)
    for got, want in zip(on_gpu, operands, strict=True):
        assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 3, 8, 128, 300])
def test_equals_the_cpu(dtype, size):
    check(caches(dtype, size), torch.tensor([[1, 2, 5], [9, 10, -1]]), torch.tensor([0, 7]))
    check(caches(dtype, size), torch.tensor([[5, 8], [3, -1]]), torch.tensor([4, 0]), torch.tensor([2, 0]))


def test_numbers_that_make_no_sense_are_left_out():
    keys, values = (t.cuda() for t in caches(torch.float32, 8))
    before = keys.clone(), values.clone()
    sources = torch.tensor([[1, 2], [1, 0], [2**63 - 1, -5]]).cuda()
    kv_move_(keys, values, sources, torch.tensor([-1, 2, 0]).cuda(), torch.tensor([0, 1, 2]).cuda())
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


def test_operands_on_two_devices_are_refused():
    keys, values = (t.cuda() for t in caches(torch.float32, 8))
    with pytest.raises(ValueError, match="positions: expected to be on the device of keys"):
        kv_move_(keys, values, torch.tensor([[1]]).cuda(), torch.tensor([0]))


def test_runs_on_the_current_stream_case11():
    keys, values = (t.cuda() for t in caches(torch.float32, 8))
    want = keys[0, :, 5].clone()
    sources, position = torch.zeros(1, 1, dtype=torch.int64, device="cuda"), torch.tensor([2], device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # work before it on the same stream: the call must queue behind
        sources.fill_(5)
        kv_move_(keys, values, sources, position)
    stream.synchronize()
    assert torch.equal(keys[0, :, 2], want)


def test_graph_replays_follow_the_numbers_case10():
    keys = torch.arange(6.0, device="cuda").view(1, 1, 6, 1).clone()
    values = keys.clone()
    sources, position = torch.tensor([[1]], device="cuda"), torch.tensor([0], device="cuda")
    kv_move_(keys, values, torch.tensor([[-1]], device="cuda"), position)  # nothing is set up inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kv_move_(keys, values, sources, position)
        sources.add_(1)
        position.add_(1)
    for _ in range(3):
        graph.replay()
    assert keys.flatten().tolist() == [1, 2, 3, 3, 4, 5]
    assert torch.equal(keys, values)
