"""torch.ops.aegis.extract_batch against three lines of torch, in every way a torch program can call it."""

import subprocess
from pathlib import Path

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.uint8, torch.uint16, torch.uint32, torch.int32, torch.int64]
extract_batch = torch.ops.aegis.extract_batch


def make_arena(dtype: torch.dtype, n: int = 1000) -> torch.Tensor:
    top = {torch.uint8: 2**8, torch.uint16: 2**16}.get(dtype, 2**31)
    return torch.randint(0, top, (n,), generator=torch.Generator().manual_seed(n)).to(dtype)


def reference(arena, offsets, block_size):
    windows = arena.long().unfold(0, block_size + 1, 1)[offsets]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 7, 8, 9, 255, 256, 999])
@pytest.mark.parametrize("batch", [0, 1, 3, 64])
def test_reference(dtype, batch, block_size):
    arena = make_arena(dtype)
    offsets = torch.randint(0, 1000 - block_size, (batch,))
    torch.testing.assert_close(
        extract_batch(arena, offsets, block_size), reference(arena, offsets, block_size), rtol=0, atol=0
    )


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), narrow=st.booleans())
def test_reference_out(data, dtype, narrow):
    n = data.draw(st.integers(2, 300))
    block_size = data.draw(st.integers(1, n - 1))
    offsets = torch.tensor(data.draw(st.lists(st.integers(0, n - block_size - 1), max_size=9)), dtype=torch.int64)
    arena = make_arena(dtype, n)
    inputs = torch.full((len(offsets), block_size), -5, dtype=torch.int32 if narrow else torch.int64)
    targets = torch.full((len(offsets), block_size), -5)
    assert extract_batch.out(arena, offsets, inputs=inputs, targets=targets) is None
    expected = reference(arena, offsets, block_size)
    assert torch.equal(inputs.long(), expected[0])
    assert torch.equal(targets, expected[1])


def test_reference_python_signature():
    arena, offsets = make_arena(torch.uint16), torch.tensor([3, 5])
    x, y = aegis.ops.extract_batch(arena, offsets, 4)
    inputs, targets = torch.empty_like(x), torch.empty_like(y)
    got = aegis.ops.extract_batch(arena, offsets, inputs=inputs, targets=targets)
    assert got[0] is inputs
    assert torch.equal(inputs, x)
    assert torch.equal(targets, y)


def test_reference_narrowing_saturates_case44():
    arena = torch.tensor([2**40, -(2**40), 70000, 5])
    inputs, targets = torch.empty(1, 3, dtype=torch.int32), torch.empty(1, 3, dtype=torch.int64)
    extract_batch.out(arena, torch.tensor([0]), inputs=inputs, targets=targets)
    assert inputs.tolist() == [[2**31 - 1, -(2**31), 70000]]
    assert targets.tolist() == [[-(2**40), 70000, 5]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    arena, offsets = make_arena(dtype), torch.tensor([0, 991])
    torch.library.opcheck(torch.ops.aegis.extract_batch.default, (arena, offsets, 8))
    out = {"inputs": torch.empty(2, 8, dtype=torch.int32), "targets": torch.empty(2, 8, dtype=torch.int64)}
    torch.library.opcheck(torch.ops.aegis.extract_batch.out, (arena, offsets), out)


class Extract(torch.nn.Module):
    def forward(self, arena: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x, y = torch.ops.aegis.extract_batch(arena, offsets, 8)
        return x + 2 * y


class ExtractInto(torch.nn.Module):
    def forward(self, arena: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = torch.empty((offsets.size(0), 8), dtype=torch.long)
        y = torch.empty_like(x)
        torch.ops.aegis.extract_batch(arena, offsets, inputs=x, targets=y)
        return x + 2 * y


MODULES = [Extract, ExtractInto]


@pytest.fixture
def case():
    arena, offsets = make_arena(torch.uint16), torch.tensor([0, 5, 991])
    x, y = reference(arena, offsets, 8)
    return (arena, offsets), x + 2 * y


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, case, tmp_path):
    arguments, expected = case
    torch.jit.script(module()).save(tmp_path / "extract.pt")
    assert torch.equal(torch.jit.load(tmp_path / "extract.pt")(*arguments), expected)


def test_script_in_a_cpp_program(case, tmp_path):
    """A program with libtorch and no Python loads the module that TorchScript saved."""
    (arena, offsets), expected = case
    script = torch.jit.script(Extract())
    script.save(tmp_path / "extract.pt")
    torch.jit.script(Holder(arena, offsets, expected)).save(tmp_path / "tensors.pt")
    root = Path(torch.__file__).parent
    program = tmp_path / "run"
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O0", str(Path(__file__).with_name("run_script.cpp")), "-o", str(program)),
            *(f"-isystem{root / 'include'}", f"-isystem{root / 'include/torch/csrc/api/include'}"),
            *(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", f"-L{root / 'lib'}"),
            *("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", f"-Wl,-rpath,{root / 'lib'}"),
        ],
        check=True,
    )
    library = Path(aegis.__file__).parent / "lib" / "libaegis_ops.so"
    run = subprocess.run(
        [program, library, tmp_path / "extract.pt", tmp_path / "tensors.pt"], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (0, "equal\n"), run.stderr


class Holder(torch.nn.Module):
    """Carries tensors to C++."""

    def __init__(self, arena, offsets, expected):
        super().__init__()
        self.register_buffer("arena", arena)
        self.register_buffer("offsets", offsets)
        self.register_buffer("expected", expected)

    def forward(self) -> torch.Tensor:
        return self.expected


@pytest.mark.parametrize("module", MODULES)
def test_compile_fullgraph(module, case):
    arguments, expected = case
    assert torch.equal(torch.compile(module(), fullgraph=True, backend="inductor")(*arguments), expected)


def test_compile_dynamic_batch():
    arena = make_arena(torch.uint16)
    compiled = torch.compile(Extract(), fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 7):
        offsets = torch.arange(batch)
        x, y = reference(arena, offsets, 8)
        assert torch.equal(compiled(arena, offsets), x + 2 * y)


@pytest.mark.parametrize("module", MODULES)
def test_export(module, case):
    arguments, expected = case
    program = torch.export.export(module(), arguments)
    assert torch.equal(program.module()(*arguments), expected)


def test_export_to_an_aoti_package(case, tmp_path):
    arguments, expected = case
    program = torch.export.export(Extract(), arguments)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "extract.pt2"))
    assert torch.equal(torch._inductor.aoti_load_package(package)(*arguments), expected)


ARENA = make_arena(torch.uint16)
ROOM = 1000 - 8


@pytest.mark.parametrize("offset", [-1, ROOM, 2**40, -(2**63)])
def test_bad_input_offset_is_an_index_error_before_any_write(offset):
    inputs, targets = torch.full((2, 8), 7), torch.full((2, 8), 7)
    with pytest.raises(IndexError, match=rf"offsets\[1\]: expected 0 to {ROOM - 1}, got {offset}"):
        extract_batch.out(ARENA, torch.tensor([0, offset]), inputs=inputs, targets=targets)
    assert (inputs == 7).all()
    assert (targets == 7).all()


@pytest.mark.parametrize(
    ("arena", "offsets", "block_size", "message"),
    [
        (ARENA.float(), torch.tensor([0]), 8, "arena: expected dtype uint8, .*got float32"),
        (ARENA.view(10, 100), torch.tensor([0]), 8, r"arena: expected a contiguous 1-D tensor, got shape \[10, 100\]"),
        (ARENA[::2], torch.tensor([0]), 8, r"arena: expected a contiguous 1-D .*not contiguous"),
        (ARENA, torch.tensor([0], dtype=torch.int32), 8, "offsets: expected dtype int64, got int32"),
        (ARENA, torch.tensor([[0]]), 8, "offsets: expected a contiguous 1-D tensor"),
        (ARENA, torch.tensor([0]), 0, r"block_size: expected 1 to 999 .*got 0"),
        (ARENA, torch.tensor([0]), -3, r"block_size: expected 1 to 999 .*got -3"),
        (ARENA, torch.tensor([0]), 1000, r"block_size: expected 1 to 999 .*got 1000"),
        (ARENA[:1], torch.tensor([0]), 1, "block_size: expected 1 to 0"),
        (ARENA[:0], torch.tensor([0]), 1, "block_size: expected"),
    ],
)
def test_bad_input_arguments(arena, offsets, block_size, message):
    with pytest.raises(ValueError, match=message):
        extract_batch(arena, offsets, block_size)


def wide(rows=2, columns=8, dtype=torch.int64):
    return torch.full((rows, columns), 7, dtype=dtype)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (wide(dtype=torch.float32), wide(), "inputs: expected dtype int64 or int32, got float32"),
        (wide(), wide(dtype=torch.int32), "targets: expected dtype int64, got int32"),
        (wide(3), wide(), r"inputs: expected a contiguous tensor of shape \[2, 8\], got shape \[3, 8\]"),
        (wide(), wide(2, 9), r"targets: expected .*shape \[2, 8\], got shape \[2, 9\]"),
        (wide(8, 2).t(), wide(), "inputs: expected .*not contiguous"),
        (wide(2, 16)[:, ::2], wide(), "inputs: expected .*not contiguous"),
        (torch.full((16,), 7), wide(), r"inputs: expected a 2-D tensor, got shape \[16\]"),
    ],
)
def test_bad_input_out(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        extract_batch.out(ARENA, torch.tensor([0, 1]), inputs=inputs, targets=targets)
    assert (inputs == 7).all()
    assert (targets == 7).all()


def test_bad_input_overlap():
    both = torch.full((3, 8), 7)
    with pytest.raises(ValueError, match="inputs: expected memory of its own, got a tensor that overlaps targets"):
        extract_batch.out(ARENA, torch.tensor([0, 1]), inputs=both[:2], targets=both[1:])
    arena = torch.arange(100)
    with pytest.raises(ValueError, match=r"inputs: .*overlaps arena"):
        extract_batch.out(arena, torch.tensor([0]), inputs=arena[8:16].view(1, 8), targets=wide(1))
    offsets = torch.zeros(8, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"targets: .*overlaps offsets"):
        extract_batch.out(arena, offsets, inputs=wide(8, 1), targets=offsets.view(8, 1))


def test_bad_input_python_signature():
    with pytest.raises(TypeError, match="block_size: expected an int, got None"):
        aegis.ops.extract_batch(ARENA, torch.tensor([0]))
    with pytest.raises(TypeError, match="inputs and targets: expected both or neither"):
        aegis.ops.extract_batch(ARENA, torch.tensor([0]), inputs=wide(1))
    with pytest.raises(ValueError, match=r"inputs: expected 9 columns \(block_size\), got 8"):
        aegis.ops.extract_batch(ARENA, torch.tensor([0]), 9, inputs=wide(1), targets=wide(1))
