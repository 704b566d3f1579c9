"""torch.ops.aegis.decode_attention on a GPU: the results of the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

decode_attention = torch.ops.aegis.decode_attention
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def operands(dtype, heads=8, key_heads=2, size=64, pages=90):
    """query, keys, values, spans, blocks: three rows on pages of 16 slots."""
    draw = torch.Generator().manual_seed(size)
    query, keys, values = (
        torch.randn(shape, generator=draw).to(dtype)
        for shape in ((3, heads, 1, size), *[(pages, key_heads, 16, size)] * 2)
    )
    blocks = torch.randperm(pages, generator=draw)[: 3 * 25].view(3, 25)
    return query, keys, values, torch.tensor([[0, 400], [7, 39], [55, 55]]), blocks


def check(dtype, *tensors, rows=None, **options):
    query, keys, values, spans, blocks = tensors
    arguments = {"rows": rows, **options}
    want = decode_attention.paged(query, keys, values, spans, 0.2, blocks, **arguments)
    arguments["rows"] = None if rows is None else rows.cuda()
    got = decode_attention.paged(*(t.cuda() for t in (query, keys, values, spans)), 0.2, blocks.cuda(), **arguments)
    assert got.shape == want.shape
    torch.testing.assert_close(got.cpu(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("size", [1, 8, 33, 64, 128, 256])
@pytest.mark.parametrize(("heads", "key_heads"), [(2, 2), (8, 2), (14, 2), (32, 1)])
def test_equals_the_cpu_on_pages(dtype, size, heads, key_heads):
    check(dtype, *operands(dtype, heads, key_heads, size))


@pytest.mark.parametrize("window", [1, 30, 300])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_windows_caps_and_rows(window, softcap):
    check(torch.float32, *operands(torch.float32), rows=torch.tensor([2, 0, 0]), window=window, softcap=softcap)


def test_head_size_in_the_thousands_and_its_limit():
    check(torch.float32, *operands(torch.float32, 2, 1, 4096))
    query = torch.zeros(1, 1, 1, 4097, device="cuda")
    spans = torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match="query: expected a head size of at most 4096 on CUDA, got 4097"):
        decode_attention(query, query, query, spans, 1.0)


def test_more_slots_than_a_range_may_have_are_refused():
    query = torch.zeros(1, 1, 1, 16, device="cuda")
    keys, spans = query.expand(1, 1, 2**56, 16), torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match=f"keys: expected at most {2**35} slots for a row, got {2**56}"):
        decode_attention(query, keys, keys, spans, 1.0)


def test_one_buffer_that_goes_round():
    query, keys, values, _, _ = operands(torch.float32, pages=3)
    spans = torch.tensor([[0, 16], [100, 109], [15, 31]])
    got = decode_attention(*(t.cuda() for t in (query, keys, values, spans)), 0.2)
    torch.testing.assert_close(got.cpu(), decode_attention(query, keys, values, spans, 0.2), rtol=2e-5, atol=2e-5)


def test_rows_whose_pages_are_not_there_are_nan():
    query, keys, values, spans, blocks = (t.cuda() for t in operands(torch.float32))
    blocks[0, 3], spans[1, 1] = 90, 16 * 25 + 1
    got = decode_attention.paged(query, keys, values, spans, 0.2, blocks)
    assert got[:2].isnan().all()
    assert not got[2].isnan().any()


def test_operands_on_two_devices_are_refused():
    query, keys, values, spans, blocks = (t.cuda() for t in operands(torch.float32))
    with pytest.raises(ValueError, match="blocks: expected to be on the device of keys"):
        decode_attention.paged(query, keys, values, spans, 0.2, blocks.cpu())


def test_graph_replays_follow_spans_and_pages_on_the_current_stream_case10_case11():
    query, keys, values, spans, blocks = (t.cuda() for t in operands(torch.bfloat16))
    decode_attention.paged(query, keys, values, spans, 0.2, blocks)  # nothing is set up inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = decode_attention.paged(query, keys, values, spans, 0.2, blocks)
    for _ in range(3):
        spans[:, 1] -= 13
        spans[2] += 20
        blocks.copy_(blocks.roll(1, 1))
        graph.replay()
        assert torch.equal(got, decode_attention.paged(query, keys, values, spans, 0.2, blocks))
