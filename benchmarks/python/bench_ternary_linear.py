"""The operator ternary_linear against torch's linear on the same, dense weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor
from torch.nn.functional import linear

SIZE = 4096
VNNI = ("avx512_vnni", "avx512_bf16")


def operands(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, the dense weight, and the packed one."""
    generator = torch.Generator().manual_seed(0)
    trits = torch.randint(-1, 2, (SIZE, SIZE), generator=generator).float()
    weight = trits * torch.rand(SIZE, 1, generator=generator)
    packed, scale = aegis.ops.pack_ternary(weight)
    assert torch.equal(aegis.ops.unpack_ternary(packed, scale, SIZE), weight)
    x = torch.randn(rows, SIZE, generator=generator).to(dtype)
    want, got = x.float() @ weight.t(), aegis.ops.ternary_linear(x, packed, scale).float()
    assert (got - want).norm() < 0.02 * want.norm()
    return x, weight.to(dtype), packed, scale


def against_torch(rows: int, rounds: int, precision: str = "int8", dtype: str = "float32") -> tuple[float, float]:
    """Milliseconds of torch and of aegis, on one thread."""
    torch.set_num_threads(1)
    x, weight, packed, scale = operands(rows, getattr(torch, dtype))
    with torch.no_grad():
        seconds = interleave(
            {
                "torch": lambda: linear(x, weight),
                "aegis": lambda: aegis.ops.ternary_linear(x, packed, scale, precision=precision),
            },
            rounds,
            burst=3,
        )
    return median(seconds["torch"]) * 1e3, median(seconds["aegis"]) * 1e3


def prefill(rows: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of unpacking the weights for torch's linear, and of aegis."""
    x, _, packed, scale = operands(rows)
    with torch.no_grad():
        seconds = interleave(
            {
                "torch": lambda: linear(x, aegis.ops.unpack_ternary(packed, scale, SIZE)),
                "aegis": lambda: aegis.ops.ternary_linear(x, packed, scale),
            },
            rounds,
            burst=1,
            warmup=1,
        )
    return median(seconds["torch"]) * 1e3, median(seconds["aegis"]) * 1e3


def under_avx2(rounds: int) -> tuple[float, float]:
    """against_torch(1) in a process whose kernels are those of AVX2; torch's are what they were."""
    code = f"import json; from bench_ternary_linear import against_torch as a; print(json.dumps(a(1, {rounds})))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = os.environ | {"AEGIS_FORCE_ISA": "avx2"}
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parent, check=True, capture_output=True, text=True
    )
    theirs, ours = json.loads(done.stdout)
    return theirs, ours


def build(quick: bool) -> Table:
    """ternary_linear against torch."""
    torch.set_num_threads(1)
    rounds = 5 if quick else 20
    table = Table("ternary_linear from Python (isolated)")
    isa = aegis.cpu_isa()
    what = f"{SIZE} × {SIZE}, 1 thread"
    theirs, ours = against_torch(1, rounds)
    if isa in VNNI:
        table.ratio(f"{what}, 1 row, AVX-512 VNNI", "torch's linear, float32", theirs, ours, "ms", 18)
        theirs, ours = under_avx2(rounds)
    if isa != "scalar":
        table.ratio(f"{what}, 1 row, AVX2", "torch's linear, float32", theirs, ours, "ms", 14)
    theirs, ours = against_torch(1, rounds, dtype="bfloat16")
    table.compared(f"{what}, 1 row", "torch's linear, bfloat16", theirs, ours, "ms")
    theirs, ours = against_torch(8, rounds)
    table.compared(f"{what}, 8 rows", "torch's linear, float32", theirs, ours, "ms")
    theirs, ours = against_torch(1, rounds, "exact")
    table.compared(f"{what}, 1 row, exact activations", "torch's linear, float32", theirs, ours, "ms")
    theirs, ours = prefill(512, 2 if quick else 5)
    table.ratio(f"{what}, 512 rows", "unpacking, then torch's linear", theirs, ours, "ms", 1)
    table.notes.append(
        "Rounding of the activations is part of every call. Torch multiplies by the same weights, dense; results agree "
        "within 2 % of their norm, which is what 8-bit activations cost."
    )
    return table


if __name__ == "__main__":
    main(build)
