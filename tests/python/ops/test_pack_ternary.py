"""torch.ops.aegis.pack_ternary against its definition, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES, random

pack_ternary = torch.ops.aegis.pack_ternary
MEANINGS = torch.tensor([0, 1, -1, 9])


def trits_of(packed: torch.Tensor, k: int) -> torch.Tensor:
    """The format, read by torch."""
    words = packed.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    trits = MEANINGS[(words[:, :, None] >> torch.arange(0, 32, 2)) & 3].flatten(1)
    assert (trits[:, k:] == 0).all()
    return trits[:, :k]


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_reference(data, dtype):
    n, k = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 70))
    step = data.draw(st.integers(1, 3))
    weight = random(n, k * step, dtype=dtype, seed=data.draw(st.integers(0, 99)))[:, ::step]
    packed, scale = pack_ternary(weight)
    assert (packed.dtype, packed.shape) == (torch.uint32, (n, (k + 15) // 16))
    torch.testing.assert_close(scale, weight.double().abs().mean(1).float(), rtol=1e-6, atol=0)
    want = torch.where(weight.float().abs() > scale[:, None].double() / 2, weight.sign(), 0)
    assert torch.equal(trits_of(packed, k), want.long())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("per_tensor", [False, True])
def test_reference_ternary_weights_lose_nothing(dtype, per_tensor):
    trits = torch.randint(-1, 2, (30, 77), generator=torch.Generator().manual_seed(1))
    trits[4] = 0
    scale = torch.full((30, 1), 0.3) if per_tensor else random(30, 1).abs()
    weight = (trits * scale).to(dtype)
    packed, scales = aegis.ops.pack_ternary(weight, per_tensor=per_tensor)
    assert scales.shape == (1 if per_tensor else 30,)
    assert torch.equal(trits_of(packed, 77), trits)
    assert torch.equal(aegis.ops.unpack_ternary(packed, scales, 77, dtype=dtype), weight)


def test_reference_error_of_weights_that_are_not_ternary_case48():
    weight = random(64, 512)
    packed, scale = pack_ternary(weight)
    error = (weight - aegis.ops.unpack_ternary(packed, scale, 512)).norm() / weight.norm()
    assert 0.4 < error < 0.6


def test_reference_given_scale():
    weight = torch.tensor([[0.4, -0.6, 3.0], [0.2, 0.9, -1.1]])
    packed, scale = pack_ternary(weight, torch.tensor([1.0, 2.0]))
    assert trits_of(packed, 3).tolist() == [[0, -1, 1], [0, 0, -1]]
    assert scale.tolist() == [1, 2]
    given = torch.tensor([0.5])
    packed, scale = pack_ternary(weight, given, True)
    assert trits_of(packed, 3).tolist() == [[1, -1, 1], [0, 1, -1]]
    assert scale.data_ptr() != given.data_ptr()


def test_reference_zero_sizes():
    for n, k in ((0, 5), (3, 0), (0, 0)):
        packed, scale = pack_ternary(torch.empty(n, k))
        assert packed.shape == (n, (k + 15) // 16)
        assert scale.tolist() == [1] * n


def test_reference_leaves_gradients_out():
    weight = random(4, 20).requires_grad_()
    packed, scale = aegis.ops.pack_ternary(weight)
    assert not scale.requires_grad
    assert packed.shape == (4, 2)


def test_gradient_is_refused():
    weight = random(4, 20).requires_grad_()
    with pytest.raises(RuntimeError, match=r"pack_ternary: expected no gradient.*TernaryLinear\(\.\.\., train=True\)"):
        pack_ternary(weight)[1].sum().backward()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    torch.library.opcheck(pack_ternary.default, (random(5, 18, dtype=dtype),))
    torch.library.opcheck(pack_ternary.default, (random(5, 18, dtype=dtype).t(), None, True))
    torch.library.opcheck(pack_ternary.default, (random(5, 18, dtype=dtype), torch.ones(5)))


class Pack(torch.nn.Module):
    def forward(self, weight: torch.Tensor):
        return torch.ops.aegis.pack_ternary(weight)


def test_script_saved_and_loaded(tmp_path):
    torch.jit.script(Pack()).save(tmp_path / "pack.pt")
    for got, want in zip(torch.jit.load(tmp_path / "pack.pt")(random(3, 20)), pack_ternary(random(3, 20)), strict=True):
        assert torch.equal(got, want)


def test_compile_fullgraph():
    for got, want in zip(
        torch.compile(Pack(), fullgraph=True)(random(3, 20)), pack_ternary(random(3, 20)), strict=True
    ):
        assert torch.equal(got, want)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("weight", "scale", "per_tensor", "message"),
    [
        (random(2, 3).double(), None, False, "weight: expected dtype float32, bfloat16 or float16, got float64"),
        (random(3), None, False, r"weight: expected a 2-D tensor, got shape \[3\]"),
        (torch.tensor([[1.0], [NAN]]), None, False, "weight: expected finite values, got others in row 1"),
        (torch.tensor([[1.0], [-INF]]), None, True, "weight: expected finite values, got others in row 1"),
        (torch.tensor([[1.0], [-INF]]), torch.ones(1), False, "weight: expected finite values, got others in row 1"),
        (random(2, 3), torch.ones(2).double(), False, "scale: expected dtype float32, got float64"),
        (random(2, 3), torch.ones(3), False, r"scale: expected shape \[2\] \(the rows\) or \[1\], got \[3\]"),
        (random(2, 3), torch.ones(2), True, "scale: expected 1 for the whole tensor, got 2"),
        (random(2, 3), torch.tensor([1, 0.0]), False, "scale: expected finite values above 0, got 0"),
        (random(2, 3), torch.tensor([-1.0]), False, "scale: expected finite values above 0, got -1"),
        (random(2, 3), torch.tensor([INF]), False, "scale: expected finite values above 0, got inf"),
        (random(2, 3), torch.tensor([1, NAN]), False, "scale: expected finite values above 0, got nan"),
    ],
)
def test_bad_input(weight, scale, per_tensor, message):
    with pytest.raises(ValueError, match=message):
        pack_ternary(weight, scale, per_tensor)
