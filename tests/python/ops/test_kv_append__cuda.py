"""torch.ops.aegis.kv_append_ on a GPU: the same results as on the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

kv_append_ = torch.ops.aegis.kv_append_
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def arguments(dtype: torch.dtype, tokens: int, size: int, slots: int = 6) -> list[torch.Tensor]:
    """keys, values, new_keys, new_values, as transposed views."""
    draw = torch.Generator().manual_seed(1)
    shapes = [(3, 2, slots, size)] * 2 + [(2, tokens, 2, size)] * 2
    made = [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]
    return [*made[:2], *(new.transpose(1, 2) for new in made[2:])]


def check(operands: list[torch.Tensor], positions: list[int], rows: list[int] | None) -> None:
    numbers = [torch.tensor(positions), None if rows is None else torch.tensor(rows)]
    on_gpu = [t.cuda() for t in operands]
    kv_append_(*on_gpu, *(n if n is None else n.cuda() for n in numbers))
    kv_append_(*operands, *numbers)
    for got, want in zip(on_gpu, operands, strict=True):
        assert torch.equal(got.cpu().view(torch.uint8), want.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 20])
@pytest.mark.parametrize("size", [1, 3, 8, 128])
def test_equals_the_cpu(dtype, tokens, size):
    check(arguments(dtype, tokens, size), [4, 0], None)
    check(arguments(dtype, tokens, size), [0, 11], [2, 0])


def test_more_vectors_than_the_grid_has():
    slots = 65535 + 3
    check(arguments(torch.float32, slots - 5, 260, slots), [4, slots - 1], None)


def test_negative_positions_and_rows_that_are_not_there_are_left_out():
    keys, values, new_keys, new_values = (t.cuda() for t in arguments(torch.float32, 1, 8))
    before = keys.clone(), values.clone()
    kv_append_(keys, values, new_keys, new_values, torch.tensor([-1, 2]).cuda(), torch.tensor([0, 3]).cuda())
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


def test_operands_on_two_devices_are_refused():
    keys, values, new_keys, new_values = (t.cuda() for t in arguments(torch.float32, 1, 8))
    with pytest.raises(ValueError, match="positions: expected to be on the device of keys"):
        kv_append_(keys, values, new_keys, new_values, torch.tensor([0, 0]))


def test_runs_on_the_current_stream_case11():
    keys, values, new_keys, new_values = (t.cuda() for t in arguments(torch.float32, 1, 8))
    position = torch.zeros(2, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # work before it on the same stream: the call must queue behind
        position.fill_(4)
        kv_append_(keys, values, new_keys, new_values, position)
    stream.synchronize()
    assert torch.equal(keys[:2, :, 4:5], new_keys)
    assert torch.equal(values[:2, :, 4:5], new_values)


def test_graph_replays_follow_the_position_case10():
    keys, values = torch.zeros(1, 2, 6, 8, device="cuda"), torch.zeros(1, 2, 6, 8, device="cuda")
    new, position = torch.zeros(1, 2, 1, 8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    kv_append_(keys, values, new, new, position)  # nothing is set up inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kv_append_(keys, values, new, new, position)
        position.add_(1)
    position.zero_()
    for step in range(8):
        new.fill_(step + 1)
        graph.replay()
    assert position.item() == 8
    assert keys[0, 0, :, 0].tolist() == [7, 8, 3, 4, 5, 6]
    assert torch.equal(keys, values)


def test_equals_the_cpu_on_pages():
    operands = arguments(torch.bfloat16, 7, 33)
    pools = [torch.zeros(9, 2, 4, 33, dtype=torch.bfloat16) for _ in range(2)]
    positions, blocks = torch.tensor([3, 9]), torch.tensor([[8, 0, 5, 1], [2, 7, 3, 6]])
    on_gpu = [t.cuda() for t in (*pools, *operands[2:])]
    kv_append_.paged(*on_gpu, positions.cuda(), blocks.cuda())
    kv_append_.paged(*pools, *operands[2:], positions, blocks)
    for got, want in zip(on_gpu, pools, strict=False):
        assert torch.equal(got.cpu(), want)
    blocks[0, 1], blocks[1, 2] = 9, -1  # pages that are not there are left out
    before = on_gpu[0].clone()
    kv_append_.paged(*on_gpu, positions.cuda(), blocks.cuda())
    assert torch.equal(on_gpu[0], before)
