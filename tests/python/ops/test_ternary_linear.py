"""torch.ops.aegis.ternary_linear against its definition, and in every way a torch program can call it."""

import os
import subprocess
import sys

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES, random

ternary_linear = torch.ops.aegis.ternary_linear


def layer(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Trits as float32, the same packed, and a scale for each row."""
    trits = torch.randint(-1, 2, (n, k), generator=torch.Generator().manual_seed(seed)).float()
    return trits, torch.ops.aegis.pack_ternary(trits)[0], random(n, seed=seed + 1).abs()


def definition(x, trits, scale, bias=None):
    """The contract of int8 activations, operation by operation."""
    amax = x.float().abs().amax(-1, keepdim=True)
    row_scale = torch.where(amax == 0, 1.0, amax / 127)
    factor = torch.full_like(amax, 127) / amax  # 127 / amax would be reciprocals times 127
    values = (x.float() * factor).round().nan_to_num(0)
    sums = (values.double() @ trits.double().t()).float()  # whole numbers: exact
    out = sums * (row_scale * scale)
    return (out if bias is None else out + bias.float()).to(x.dtype)


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_reference(data, dtype):
    n, k, rows = (data.draw(st.integers(1, high)) for high in (40, 300, 12))
    trits, packed, scale = layer(n, k, seed=data.draw(st.integers(0, 99)))
    x = random(k, rows, dtype=dtype).t()
    bias = random(n, dtype=dtype, seed=2) if data.draw(st.booleans()) else None
    scale = scale if data.draw(st.booleans()) else scale[:1]
    assert torch.equal(ternary_linear(x, packed, scale, bias), definition(x, trits, scale, bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(20,), (2, 3, 20), (9, 1027), (4, 512)], ids=str)
def test_reference_exact_activations(dtype, shape):
    k = shape[-1]
    trits, packed, scale = layer(30, k)
    x, bias = random(*shape, dtype=dtype), random(30, dtype=dtype, seed=2)
    got = ternary_linear(x, packed, scale, bias, True)
    weight = trits.double() * scale.double()[:, None]
    exact = x.double() @ weight.t() + bias.double()
    bound = (k + 2) * 2.0**-23 * (x.double().abs() @ weight.abs().t() + bias.double().abs())
    info = torch.finfo(dtype)
    rounding = 0 if dtype == torch.float32 else info.eps / 2 * (exact.abs() + bound) + info.smallest_normal
    assert ((got.double() - exact).abs() <= bound + rounding).all()


def test_reference_zero_sizes():
    _, packed, scale = layer(4, 5)
    for shape in ((0, 5), (3, 0, 5)):
        assert ternary_linear(torch.empty(shape), packed, scale).shape == (*shape[:-1], 4)
    nothing = torch.empty(3, 0, dtype=torch.uint32)
    for exact in (False, True):
        assert ternary_linear(torch.empty(2, 0), nothing, torch.ones(3), torch.ones(3), exact).tolist() == [[1] * 3] * 2
        assert ternary_linear(random(2, 5), packed[:0], torch.ones(0), None, exact).shape == (2, 0)
        many = torch.empty(1 << 40, 0)  # that nothing may walk through
        assert ternary_linear(many, nothing[:0], torch.ones(0), None, exact).shape == (1 << 40, 0)


def test_reference_rows_that_are_not_finite():
    _, packed, scale = layer(6, 40)
    x = random(4, 40)
    x[1, 3], x[2, 39] = torch.nan, -torch.inf
    got = ternary_linear(x, packed, scale)
    assert got.isnan().all(1).tolist() == [False, True, True, False]
    assert torch.equal(got[[0, 3]], ternary_linear(x[[0, 3]], packed, scale))
    assert (ternary_linear(torch.zeros(2, 40), packed, scale) == 0).all()
    assert ternary_linear(torch.full((1, 40), 1e-42), packed, scale).isfinite().all()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_reference_threads(threads, rows):
    trits, packed, scale = layer(4001, 129)
    x, before = random(rows, 129), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = ternary_linear(x, packed, scale)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, definition(x, trits, scale))


PROGRAM = """
import aegis, torch
generator = torch.Generator().manual_seed(3)
for k in (1, 31, 300, 4096):
    packed, scale = torch.ops.aegis.pack_ternary(torch.randn(77, k, generator=generator))
    for rows in (1, 2, 7, 33):
        out = torch.ops.aegis.ternary_linear(torch.randn(rows, k, generator=generator), packed, scale)
        print(hash(tuple(out.flatten().tolist())))
"""


def test_reference_same_bits_on_every_isa_case46():
    def outputs(isa):
        environment = os.environ | {"AEGIS_FORCE_ISA": isa, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout

    every = ["scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16"]
    isas = every[: every.index(aegis.cpu_isa()) + 1]
    first, *others = [outputs(isa) for isa in isas]
    assert len(first.splitlines()) == 16
    assert all(other == first for other in others)


def test_reference_python_signature():
    trits, packed, scale = layer(30, 20)
    x, bias = random(2, 3, 20), random(30)
    assert torch.equal(aegis.ops.ternary_linear(x, packed, scale, bias), definition(x, trits, scale, bias))
    exact = aegis.ops.ternary_linear(x, packed, scale, precision="exact")
    torch.testing.assert_close(exact, x @ (trits * scale[:, None]).t())
    with pytest.raises(ValueError, match="precision: expected 'int8' or 'exact', got 'int4'"):
        aegis.ops.ternary_linear(x, packed, scale, precision="int4")


def test_gradient_is_refused_when_asked_for():
    _, packed, scale = layer(30, 20)
    x = random(2, 20).requires_grad_()
    out = aegis.ops.ternary_linear(x, packed, scale)
    with pytest.raises(
        RuntimeError, match=r"ternary_linear: expected no gradient.*TernaryLinear\(\.\.\., train=True\)"
    ):
        out.sum().backward()
    with torch.no_grad():
        assert not aegis.ops.ternary_linear(x, packed, scale).requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("exact", [False, True])
def test_opcheck(dtype, exact):
    _, packed, scale = layer(5, 18)
    x, bias = random(2, 3, 18, dtype=dtype), random(5, dtype=dtype)
    for operator in (ternary_linear.default, ternary_linear.inference):
        torch.library.opcheck(operator, (x, packed, scale, bias, exact))
    torch.library.opcheck(ternary_linear.default, (x.transpose(0, 1), packed, scale[:1], None, exact))


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        _, packed, scale = layer(7, 20)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aegis.ternary_linear(x, self.packed, self.scale).relu()


def test_script_saved_and_loaded(tmp_path):
    module, x = Linear(), random(3, 20)
    torch.jit.script(module).save(tmp_path / "linear.pt")
    assert torch.equal(torch.jit.load(tmp_path / "linear.pt")(x), module(x))


@pytest.mark.parametrize("grad", [False, True])
def test_compile_fullgraph(grad):
    module, x = Linear(), random(3, 20)
    with torch.set_grad_enabled(grad):
        assert torch.equal(torch.compile(module, fullgraph=True)(x), module(x))


def test_compile_dynamic_rows():
    module = Linear()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 8):
        x = random(rows, 20)
        assert torch.equal(compiled(x), module(x))


def test_export():
    module, x = Linear(), random(3, 20)
    assert torch.equal(torch.export.export(module, (x,)).module()(x), module(x))


X = random(2, 20)
TRITS, PACKED, SCALE = layer(5, 20)
BIAS = random(5)


def with_two(row: int, trit: int) -> torch.Tensor:
    words = PACKED.to(torch.int64)
    words[row, trit // 16] |= 3 << 2 * (trit % 16)
    return words.to(torch.uint32)


@pytest.mark.parametrize(
    ("x", "packed", "scale", "bias", "message"),
    [
        (X.double(), PACKED, SCALE, None, "x: expected dtype float32, bfloat16 or float16, got float64"),
        (X[0, 0], PACKED, SCALE, None, "x: expected at least 1 dimension"),
        (X, PACKED.int(), SCALE, None, "packed: expected dtype uint32, got int32"),
        (random(2, 33), PACKED, SCALE, None, r"packed: .* 3 words in a row \(for 33 trits\), got shape \[5, 2\]"),
        (random(2, 16), PACKED, SCALE, None, "packed: expected .* with 1 words in a row"),
        (X, PACKED[0], SCALE, None, r"packed: .*got shape \[2\]"),
        (X, PACKED.t().contiguous().t(), SCALE, None, "packed: .*not contiguous"),
        (X, PACKED, SCALE.double(), None, "scale: expected dtype float32, got float64"),
        (X, PACKED, SCALE[:4], None, r"scale: expected shape \[5\] .*got \[4\]"),
        (X, PACKED, SCALE / 0, None, "scale: expected finite values, got others"),
        (X, PACKED, torch.tensor([torch.nan]), None, "scale: expected finite values, got others"),
        (X, PACKED, SCALE, BIAS.half(), "bias: expected dtype float32, got float16"),
        (X, PACKED, SCALE, BIAS[:4], r"bias: expected shape \[5\] \(the rows of packed\), got \[4\]"),
        (X, with_two(3, 17), SCALE, None, "packed: expected codes 00, 01 and 10, .*, got others"),
        (X[:, :19], PACKED, SCALE, None, "packed: .* and zeros past the 19 trits of a row, got others"),
        (torch.empty(0, (1 << 22) + 1), PACKED, SCALE, None, "x: expected at most 4194304 elements in a row"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_bad_input(x, packed, scale, bias, message, exact):
    with pytest.raises(ValueError, match=message):
        ternary_linear(x, packed, scale, bias, exact)


def test_bad_input_meta_and_others():
    with pytest.raises(ValueError, match="precision"):
        aegis.ops.ternary_linear(X, PACKED, SCALE, precision=None)
    assert ternary_linear(X.to("meta"), PACKED.to("meta"), SCALE.to("meta")).shape == (2, 5)
