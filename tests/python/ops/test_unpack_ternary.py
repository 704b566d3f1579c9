"""torch.ops.aegis.unpack_ternary, and in every way a torch program can call it."""

import aegis
import pytest
import torch

unpack_ternary = torch.ops.aegis.unpack_ternary


def words(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64).to(torch.uint32)


TWO_ROWS = words([0b10_01_00, 0], [0, 0b01])
SCALE = torch.tensor([0.5, 3.0])


def test_reference():
    weight = unpack_ternary(TWO_ROWS, SCALE, 18)
    want = torch.zeros(2, 18)
    want[0, 1], want[0, 2], want[1, 16] = 0.5, -0.5, 3
    assert torch.equal(weight, want)
    assert torch.equal(unpack_ternary(TWO_ROWS, torch.ones(1), 18), want.sign())
    assert torch.equal(aegis.ops.unpack_ternary(TWO_ROWS, SCALE, 18, dtype=torch.float16), want.half())
    assert unpack_ternary(words()[:, None].reshape(0, 2), torch.ones(0), 30).shape == (0, 30)
    assert unpack_ternary(torch.empty(3, 0, dtype=torch.uint32), torch.ones(3), 0).shape == (3, 0)


@pytest.mark.parametrize("k", [1, 15, 16, 17, 300])
def test_reference_round_trip(k):
    trits = torch.randint(-1, 2, (7, k), generator=torch.Generator().manual_seed(k)).float()
    packed, _ = torch.ops.aegis.pack_ternary(trits)
    assert torch.equal(unpack_ternary(packed, torch.ones(1), k), trits)


def test_gradient_is_refused():
    with pytest.raises(RuntimeError, match="unpack_ternary: expected no gradient to be asked for"):
        unpack_ternary(TWO_ROWS, SCALE.clone().requires_grad_(), 18).sum().backward()
    assert not aegis.ops.unpack_ternary(TWO_ROWS, SCALE.clone().requires_grad_(), 18).requires_grad


def test_opcheck():
    torch.library.opcheck(unpack_ternary.default, (TWO_ROWS, SCALE, 18))


class Unpack(torch.nn.Module):
    def forward(self, packed: torch.Tensor, scale: torch.Tensor):
        return torch.ops.aegis.unpack_ternary(packed, scale, 18)


def test_script_saved_and_loaded(tmp_path):
    torch.jit.script(Unpack()).save(tmp_path / "unpack.pt")
    got = torch.jit.load(tmp_path / "unpack.pt")(TWO_ROWS, SCALE)
    assert torch.equal(got, unpack_ternary(TWO_ROWS, SCALE, 18))


def test_compile_fullgraph():
    got = torch.compile(Unpack(), fullgraph=True)(TWO_ROWS, SCALE)
    assert torch.equal(got, unpack_ternary(TWO_ROWS, SCALE, 18))


@pytest.mark.parametrize(
    ("packed", "scale", "k", "message"),
    [
        (TWO_ROWS.int(), SCALE, 18, "packed: expected dtype uint32, got int32"),
        (TWO_ROWS, SCALE, 16, r"packed: expected .* with 1 words in a row \(for 16 trits\), got shape \[2, 2\]"),
        (TWO_ROWS, SCALE, 33, "packed: expected .* with 3 words in a row"),
        (TWO_ROWS[0], SCALE, 18, r"packed: expected .*got shape \[2\]"),
        (TWO_ROWS.t().contiguous().t(), SCALE, 18, "packed: expected .*not contiguous"),
        (TWO_ROWS, SCALE, -1, "k: expected at least 0, got -1"),
        (TWO_ROWS, torch.ones(3), 18, r"scale: expected shape \[2\] .*got \[3\]"),
        (TWO_ROWS, SCALE / 0, 18, "scale: expected finite values, got others"),
        (TWO_ROWS, torch.tensor([torch.nan]), 18, "scale: expected finite values, got others"),
        (TWO_ROWS, SCALE.half(), 18, "scale: expected dtype float32, got float16"),
        (words([0, 0], [3 << 4, 0]), SCALE, 18, "packed: expected codes 00, 01 and 10, got another at trit 2 of row 1"),
        (words([0, 0], [0, 1 << 4]), SCALE, 18, "zeros that fill up the row, got another at trit 18 of row 1"),
    ],
)
def test_bad_input(packed, scale, k, message):
    with pytest.raises(ValueError, match=message):
        unpack_ternary(packed, scale, k)
