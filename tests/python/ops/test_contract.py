"""Every operator has every kind of test, and every layer of it has the same name."""

import ast
import subprocess
import sys
from pathlib import Path

import aegis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("reference", "opcheck", "script", "compile", "bad_input")
OPERATORS = sorted(
    {s.name.removeprefix("aegis::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("aegis::")}
)
# Weights are packed once for a model: aegis.ops moves those on a GPU to the CPU, and nothing waits for it.
ONCE_FOR_A_MODEL = {"pack_ternary", "unpack_ternary"}


def test_there_are_operators():
    assert "extract_batch" in OPERATORS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_this_kind_of_test(name, kind):
    tests = ROOT / "tests/python/ops" / f"test_{name}.py"
    functions = [node.name for node in ast.walk(ast.parse(tests.read_text())) if isinstance(node, ast.FunctionDef)]
    assert any(function.startswith(f"test_{kind}") for function in functions), f"{tests.name} has no test_{kind}*"


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_one_name_in_every_layer(name):
    for path in (
        f"csrc/ops/cpu/{name}.cpp",
        f"csrc/kernels/{name}.h",
        f"csrc/kernels/{name}.cpp",
        f"csrc/kernels/scalar/{name}.cpp",
        f"tests/cpp/kernels/test_{name}.cpp",
    ):
        assert (ROOT / path).exists(), path
    benchmark = ROOT / f"benchmarks/python/bench_{name}.py"
    assert benchmark.exists() == (name not in ONCE_FOR_A_MODEL), benchmark
    for path in (f"csrc/kernels/cuda/{name}.cuh", f"csrc/ops/cuda/{name}.cpp"):
        assert (ROOT / path).exists() == (name not in ONCE_FOR_A_MODEL), path
    assert callable(getattr(aegis.ops, name))


MIXED = {
    "decode_attention": lambda t: (t(1, 2, 1, 8), t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, dtype=torch.int64), 1.0),
    "extract_batch": lambda t: (t(9, dtype=torch.int64), t(2, dtype=torch.int64), 3),
    "float8_linear": lambda t: (t(2, 8), t(4, 8, dtype=torch.float8_e4m3fn), t(4, 1), t(4)),
    "float8_quantize": None,
    "gather_records": lambda t: (t(4, 3), t(2, dtype=torch.int64)),
    "gather_records_scaled": lambda t: (
        t(4, 3, dtype=torch.uint8),
        t(2, dtype=torch.int64),
        t(3),
        t(3),
        0,
    ),
    "kv_append_": lambda t: (
        t(1, 2, 4, 8),
        t(1, 2, 4, 8),
        t(1, 2, 1, 8),
        t(1, 2, 1, 8),
        t(1, dtype=torch.int64),
    ),
    "kv_move_": lambda t: (
        t(1, 2, 4, 8),
        t(1, 2, 4, 8),
        t(1, 1, dtype=torch.int64),
        t(1, dtype=torch.int64),
    ),
    "pack_ternary": lambda t: (t(4, 8), t(4)),
    "sample": lambda t: (t(2, 8), t(2, 4), t(2, 4, dtype=torch.int64)),
    "skinny_linear": lambda t: (t(2, 8), t(4, 8), t(4)),
    "ternary_linear": lambda t: (t(2, 8), t(4, 1, dtype=torch.uint32), t(4), t(4)),
    "to_bfloat16_rne": None,
    "token_probabilities": lambda t: (t(2, 8), t(2, 4)),
    "unpack_ternary": lambda t: (t(4, 1, dtype=torch.uint32), t(4), 8),
}
"""Arguments of each operator; None where it takes one tensor alone."""


@pytest.mark.parametrize("name", [name for name in OPERATORS if MIXED[name]])
def test_operator_refuses_tensors_of_several_devices(name):
    """torch gives a call with one meta tensor to the function for meta tensors, whose result nobody would fill."""
    arguments = MIXED[name](torch.zeros)
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            mixed = [*arguments[:i], argument.to("meta"), *arguments[i + 1 :]]
            with pytest.raises(ValueError, match="expected to be on the device of"):
                getattr(torch.ops.aegis, name)(*mixed)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_mutates_only_what_it_says_and_returns_none_of_it(name):
    for schema in torch._C._jit_get_schemas_for_operator(f"aegis::{name}"):
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        assert not (written and schema.returns), schema
        assert all(r.alias_info is None for r in schema.returns), schema


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_no_two_overloads_with_equal_arguments(name):
    """Taking schemas away at exit, torch would mistake one for the other and abort the process."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aegis::{name}")
    arguments = [[a.name for a in schema.arguments] for schema in schemas]
    assert all(arguments.count(a) == 1 for a in arguments), arguments


def test_process_that_used_operators_exits_normally():
    code = "import aegis, torch; torch.ops.aegis.skinny_linear(torch.ones(1, 4), torch.ones(2, 4))"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
