"""torch.ops.aegis.ternary_linear on a GPU: the bits of the CPU, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

ternary_linear = torch.ops.aegis.ternary_linear
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def layer(rows, k, n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + k)
    packed, scale = torch.ops.aegis.pack_ternary(torch.randn(n, k, generator=generator))
    return torch.randn(rows, k, generator=generator).to(dtype), packed, scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 9, 200])
@pytest.mark.parametrize("k", [1, 300, 4096])
def test_same_bits_as_on_the_cpu(dtype, rows, k):
    x, packed, scale = layer(rows, k, 77, dtype)
    bias = torch.randn(77).to(dtype)
    operands = (x, packed, scale, bias)
    got = ternary_linear(*(t.cuda() for t in operands))
    assert torch.equal(got.cpu(), ternary_linear(*operands))
    exact = ternary_linear(*(t.cuda() for t in operands), True)
    torch.testing.assert_close(exact.cpu(), ternary_linear(*operands, True), rtol=0.01, atol=0.01)


def test_a_code_of_11_gives_nan():
    x, packed, scale = layer(2, 40, 5)
    words = packed.to(torch.int64)
    words[3, 1] |= 3
    for exact in (False, True):
        got = ternary_linear(x.cuda(), words.to(torch.uint32).cuda(), scale.cuda(), None, exact)
        assert got.isnan().all(0).tolist() == [False, False, False, True, False]


def test_packing_and_layers_on_the_gpu():
    linear = torch.nn.Linear(40, 12).cuda()
    layer = aegis.quant.TernaryLinear.from_linear(linear)
    assert {t.device.type for t in layer.state_dict().values()} == {"cuda"}
    x = torch.randn(3, 40)
    with torch.no_grad():
        assert torch.equal(layer(x.cuda()).cpu(), layer.cpu()(x))


def test_captured_in_a_graph():
    x, packed, scale = (t.cuda() for t in layer(2, 64, 9))
    ternary_linear(x, packed, scale)  # the library is loaded before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ternary_linear(x, packed, scale)
    x.mul_(-2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, ternary_linear(x, packed, scale))


def test_operands_on_two_devices():
    x, packed, scale = (t.cuda() for t in layer(2, 64, 9))
    with pytest.raises(ValueError, match="packed: expected to be on the device of x, got another device"):
        ternary_linear(x, packed.cpu(), scale)
    with pytest.raises(ValueError, match="scale: expected to be on the device of x, got another device"):
        ternary_linear(x, packed, scale.cpu())
