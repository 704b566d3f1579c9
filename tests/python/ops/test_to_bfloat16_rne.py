"""torch.ops.aegis.to_bfloat16_rne against torch's conversion."""

import os
import subprocess
import sys

import aegis
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

to_bfloat16_rne = torch.ops.aegis.to_bfloat16_rne
NAN = 0x7FFF


def of_bits(words):
    return torch.from_numpy(np.asarray(words).astype(np.uint32).view(np.float32))


def assert_as_torch(x, got):
    """The same bits as torch's, and one NaN where torch has any."""
    nan = x.isnan()
    assert got.dtype is torch.bfloat16
    assert got.shape == x.shape
    want = torch.where(nan, NAN, x.to(torch.bfloat16).view(torch.int16).to(torch.int32))
    assert torch.equal(got.contiguous().view(torch.int16).to(torch.int32), want)


def spread():
    """Every upper half with rests on both sides of a tie, and every 4099th float: 1.4 million values of every kind."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    rests = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    return of_bits(np.concatenate([upper | rest for rest in rests] + [np.arange(0, 1 << 32, 4099)]))


SPECIAL = [
    (0x00000000, 0x0000, "zero"),
    (0x80000000, 0x8000, "minus zero"),
    (0x00000001, 0x0000, "the smallest denormal number"),
    (0x00008000, 0x0000, "half of the smallest bfloat16: a tie, to the even zero"),
    (0x00008001, 0x0001, "just above that"),
    (0x00018000, 0x0002, "a tie between denormal numbers"),
    (0x007FFFFF, 0x0080, "the largest denormal number, to the smallest normal one"),
    (0x00800000, 0x0080, "the smallest normal number"),
    (0x3F800000, 0x3F80, "one"),
    (0x3F808000, 0x3F80, "a tie, to the even below"),
    (0x3F818000, 0x3F82, "a tie, to the even above"),
    (0x3F80FFFF, 0x3F81, "just below the next"),
    (0x7F7F7FFF, 0x7F7F, "just below the tie at the end of the range"),
    (0x7F7F8000, 0x7F80, "the tie at the end of the range, to infinity"),
    (0x7F7FFFFF, 0x7F80, "the largest float"),
    (0x7F800000, 0x7F80, "infinity"),
    (0xFF800000, 0xFF80, "minus infinity"),
    (0x7F800001, NAN, "a NaN that would round to infinity"),
    (0x7FC00000, NAN, "torch's NaN"),
    (0xFFC00000, NAN, "a negative NaN"),
    (0xFFFFFFFF, NAN, "a NaN of all ones, which would wrap to zero"),
    (0x7FFFFFFF, NAN, "a NaN that would become minus zero"),
]


@pytest.mark.parametrize(("word", "want", "what"), SPECIAL, ids=[what for _, _, what in SPECIAL])
@pytest.mark.parametrize("count", [1, 7, 16, 33])
def test_reference_special_values(word, want, what, count):
    got = to_bfloat16_rne(of_bits([word] * count))
    assert set(got.view(torch.uint16).tolist()) == {want}


def test_reference_spread():
    x = spread()
    assert_as_torch(x, to_bfloat16_rne(x))


CHECK = """
import sys, torch, aegis
assert aegis.cpu_isa() == sys.argv[1], aegis.cpu_isa()
sys.path.insert(0, sys.argv[2])
import test_to_bfloat16_rne as tests
x = tests.spread()
tests.assert_as_torch(x, tests.to_bfloat16_rne(x))
tests.assert_as_torch(x[:-1:7], tests.to_bfloat16_rne(x[:-1:7]))
for word, want, _ in tests.SPECIAL:
    assert tests.to_bfloat16_rne(tests.of_bits([word])).view(torch.uint16).item() == want, hex(word)
torch.set_flush_denormal(True)
denormal = tests.of_bits([0x00018000, 0x80018000, 0x007FFFFF] * 20)
assert tests.to_bfloat16_rne(denormal).view(torch.uint16).tolist() == [2, 0x8002, 0x80] * 20
if len(sys.argv) > 3:
    for begin in range(0, 1 << 32, 1 << 24):
        x = torch.arange(begin - (1 << 31), begin - (1 << 31) + (1 << 24)).to(torch.int32).view(torch.float32)
        tests.assert_as_torch(x, tests.to_bfloat16_rne(x))
"""
ISAS = ["scalar", "avx2", "avx512"]


def check_in_a_process(isa, *more):
    if isa not in aegis.build_info()["isas"]:
        pytest.skip(f"this processor has no {isa}")
    command = [sys.executable, "-W", "ignore", "-c", CHECK, isa, os.path.dirname(__file__), *more]
    run = subprocess.run(command, env={**os.environ, "AEGIS_FORCE_ISA": isa}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("isa", ISAS)
def test_reference_on_every_instruction_set(isa):
    if aegis.cpu_isa().startswith(isa):
        test_reference_spread()  # levels above avx512 have no version of their own
    else:
        check_in_a_process(isa)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_reference_all_floats(isa):
    """All 2**32, about a minute each."""
    check_in_a_process(isa, "all")


LAYOUTS = {
    "0-d": lambda: torch.tensor(1.00390625),
    "empty": lambda: torch.empty(3, 0, 5),
    "transposed": lambda: torch.randn(37, 53).t(),
    "permuted": lambda: torch.randn(4, 5, 6, 7).permute(2, 0, 3, 1),
    "every other": lambda: torch.randn(40, 41)[::2, 1::3],
    "rows apart": lambda: torch.randn(9, 100)[:, 3:80],
    "expanded": lambda: torch.randn(5, 1, 3).expand(5, 70, 3),
    "one value": lambda: torch.randn(1).expand(50, 60),
    "channels last": lambda: torch.randn(2, 3, 8, 9).contiguous(memory_format=torch.channels_last),
    "overlapping windows": lambda: torch.randn(300).unfold(0, 64, 5),
    "of many dimensions": lambda: torch.randn(2**13)[: 2**12].view([2] * 12).permute(*range(11, -1, -1)),
    "shifted": lambda: torch.randn(1000)[1:],
    "above the grain": lambda: torch.randn(300, 700).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reference_any_strides(layout):
    x = LAYOUTS[layout]()
    got = to_bfloat16_rne(x)
    assert got.is_contiguous()
    assert_as_torch(x, got)
    for out in (torch.empty_like(got), torch.empty(*x.shape, 3, dtype=torch.bfloat16)[..., 1] if x.ndim else got):
        out.fill_(7)
        assert to_bfloat16_rne.out(x, out=out) is None
        assert_as_torch(x, out)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_reference_any_shape_and_strides_of_both(data):
    ndim = data.draw(st.integers(1, 5))
    shape = data.draw(st.lists(st.integers(1, 6), min_size=ndim, max_size=ndim))
    tensors = []
    for dtype in (torch.float32, torch.bfloat16):
        order = data.draw(st.permutations(range(ndim)))
        steps = data.draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim))
        base = torch.randn([shape[d] * steps[d] for d in order]).to(dtype)
        back = [order.index(d) for d in range(ndim)]
        tensors.append(base.permute(back)[tuple(slice(None, None, step) for step in steps)])
    x, out = tensors
    whole = out.untyped_storage()
    before = torch.empty(0, dtype=torch.bfloat16).set_(whole).clone()
    to_bfloat16_rne.out(x, out=out)
    assert_as_torch(x, out)
    after = torch.empty(0, dtype=torch.bfloat16).set_(whole)
    assert (before.view(torch.int16) != after.view(torch.int16)).sum() <= x.numel(), "nothing else is written"


def test_reference_python_signature():
    x = torch.randn(4, 5)
    out = torch.empty(4, 5, dtype=torch.bfloat16)
    assert aegis.ops.to_bfloat16_rne(x, out=out) is out
    assert torch.equal(out, aegis.ops.to_bfloat16_rne(x))


def test_reference_lazily_negated():
    x = torch._neg_view(torch.randn(9))
    assert_as_torch(x.clone(), to_bfloat16_rne(x))


X = torch.randn(6, 35)
EXPECTED = X.to(torch.bfloat16)


@pytest.mark.parametrize("x", [X, X.t(), X[::2, 1:]], ids=["dense", "transposed", "apart"])
def test_opcheck(x):
    torch.library.opcheck(to_bfloat16_rne.default, (x,))
    torch.library.opcheck(to_bfloat16_rne.out, (x,), {"out": torch.empty(x.shape, dtype=torch.bfloat16)})


class Convert(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return torch.ops.aegis.to_bfloat16_rne(x) * 2


class ConvertInto(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        out = torch.empty(x.shape, dtype=torch.bfloat16)
        torch.ops.aegis.to_bfloat16_rne(x, out=out)
        return out * 2


MODULES = [Convert, ConvertInto]


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    torch.jit.script(module()).save(tmp_path / "convert.pt")
    assert torch.equal(torch.jit.load(tmp_path / "convert.pt")(X), EXPECTED * 2)


@pytest.mark.parametrize(("module", "backend"), [(Convert, "inductor"), (ConvertInto, "aot_eager")])
def test_compile_fullgraph(module, backend):
    compiled = torch.compile(module(), fullgraph=True, backend=backend)
    assert torch.equal(compiled(X), EXPECTED * 2)


def test_compile_dynamic_shapes():
    compiled = torch.compile(Convert(), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 7):
        x = torch.randn(5, rows).t()
        assert torch.equal(compiled(x), x.to(torch.bfloat16) * 2)


@pytest.mark.parametrize("module", MODULES)
def test_export(module):
    program = torch.export.export(module(), (X,))
    assert torch.equal(program.module()(X), EXPECTED * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64])
def test_bad_input_dtype(dtype):
    with pytest.raises(ValueError, match="x: expected dtype float32, got "):
        to_bfloat16_rne(torch.zeros(3, dtype=dtype))


def bf16(*shape):
    return torch.full(shape, 7.0, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (bf16(6, 35).float(), "out: expected dtype bfloat16, got float32"),
        (bf16(6, 35).half(), "out: expected dtype bfloat16, got float16"),
        (bf16(35, 6), r"out: expected shape \[6, 35\], that of x, got \[35, 6\]"),
        (bf16(6, 35, 1), r"out: expected shape \[6, 35\], that of x, got \[6, 35, 1\]"),
        (bf16(210), r"out: expected shape \[6, 35\], that of x, got \[210\]"),
        (bf16(6, 1).expand(6, 35), r"out: expected elements apart from each other, got strides \[1, 0\]"),
        (bf16(50).unfold(0, 35, 3), r"out: expected elements apart from each other, got strides \[3, 1\]"),
    ],
)
def test_bad_input_out(out, message):
    with pytest.raises(ValueError, match=message):
        to_bfloat16_rne.out(X, out=out)
    assert (out == 7).all()


def test_bad_input_overlap():
    memory = torch.zeros(100)
    x, out = memory[:50], memory.view(torch.bfloat16)[98:148]
    with pytest.raises(ValueError, match="out: expected memory of its own, got a tensor that overlaps x"):
        to_bfloat16_rne.out(x, out=out)
    assert not memory.any()
    to_bfloat16_rne.out(x, out=memory.view(torch.bfloat16)[100:150])
