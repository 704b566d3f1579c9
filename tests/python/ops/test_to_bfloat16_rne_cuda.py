"""torch.ops.aegis.to_bfloat16_rne on a GPU: the same bits as on the CPU.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

to_bfloat16_rne = torch.ops.aegis.to_bfloat16_rne
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]


def test_all_floats():
    """All 2**32: torch's bits, and 0x7fff for every NaN."""
    for begin in range(-(1 << 31), 1 << 31, 1 << 28):
        x = torch.arange(begin, begin + (1 << 28), device="cuda").to(torch.int32).view(torch.float32)
        got = to_bfloat16_rne(x).view(torch.int16)
        assert torch.equal(got, torch.where(x.isnan(), 0x7FFF, x.to(torch.bfloat16).view(torch.int16)))


LAYOUTS = {
    "transposed": ((37, 53), lambda base: base.t()),
    "permuted": ((4, 5, 6, 7), lambda base: base.permute(2, 0, 3, 1)),
    "every other": ((40, 41), lambda base: base[::2, 1::3]),
    "expanded": ((5, 1, 3), lambda base: base.expand(5, 70, 3)),
    "many dimensions": ((2,) * 12, lambda base: base.permute(*range(11, -1, -1))),
    "one value": ((1,), lambda base: base[0]),
    "empty": ((0, 3), lambda base: base),
    "more than the grid": ((3_000_001,), lambda base: base[1:]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_as_on_the_cpu(layout):
    shape, view = LAYOUTS[layout]
    base = torch.randn(shape)
    want, x = to_bfloat16_rne(view(base)), view(base.cuda())
    got = to_bfloat16_rne(x)
    assert got.is_cuda
    assert torch.equal(got.cpu(), want)
    pairs = torch.full((*x.shape, 2), 7.0, dtype=torch.bfloat16, device="cuda")
    to_bfloat16_rne.out(x, out=pairs[..., 1])
    assert torch.equal(pairs[..., 1].cpu(), want)
    assert (pairs[..., 0] == 7).all()


def test_operands_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="out: expected to be on the device of x"):
        to_bfloat16_rne.out(torch.zeros(3, device="cuda"), out=torch.zeros(3, dtype=torch.bfloat16))
