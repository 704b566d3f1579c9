"""The operator float8_linear against torch's linear layers, its scaled matrix product, and dequantised weights."""

from __future__ import annotations

import statistics

import aegis
import torch
from aegis.quant.float8 import dequantize
from harness import Table, interleave, main, median
from torch import Tensor
from torch.nn.functional import linear

SIZE = 4096


def scaled_mm(x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """torch's, with a scale for each row of both operands; quantising x is part of it."""
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    values = (x / scale).to(torch.float8_e4m3fn)
    return torch._scaled_mm(values, weight.t(), scale, weight_scale.t().contiguous(), out_dtype=torch.bfloat16)


def check(x: Tensor, weight: Tensor, weight_scale: Tensor) -> None:
    values, scales = aegis.ops.float8_quantize(x, 0 if weight_scale.shape[1] == 1 else 128)
    inputs, weights = (dequantize(v, s).double() for v, s in ((values, scales), (weight, weight_scale)))
    size = linear(inputs.abs(), weights.abs())
    error = (aegis.ops.float8_linear(x, weight, weight_scale).double() - linear(inputs, weights)).abs()
    assert (error <= (160 + SIZE / 128) * 2.0**-24 * size + torch.finfo(x.dtype).eps * size).all()


def row(table: Table, rows: int, block: int, dtype: torch.dtype, quick: bool) -> None:
    dense = torch.randn(SIZE, SIZE)
    weight, scales = aegis.ops.float8_quantize(dense, block)
    x, cast = torch.randn(rows, SIZE).to(dtype), dense.to(dtype)
    check(x, weight, scales)
    contenders = {
        "linear": lambda: linear(x, cast),
        "aegis": lambda: aegis.ops.float8_linear(x, weight, scales),
    }
    rounds = (3 if quick else 20) if rows < 100 else (1 if quick else 5)
    seconds = interleave(contenders, rounds, burst=3 if rows < 100 else 1, warmup=1)
    theirs, ours = median(seconds["linear"]) * 1e3, median(seconds["aegis"]) * 1e3
    name = str(dtype).removeprefix("torch.")
    scaled = f"blocks of {block}" if block else "a scale a row"
    what = f"{SIZE}², {rows} row{'s' * (rows > 1)} of {name}, {scaled}, 1 thread"
    if rows == 1 and not block and dtype == torch.bfloat16:
        table.ratio(what, "torch's linear in bfloat16", theirs, ours, "ms", 3)
    else:
        table.compared(what, f"torch's linear in {name}", theirs, ours, "ms")


def against_slow_ways(table: Table, quick: bool) -> None:
    """Ways that take so long that a few calls tell the ratio."""
    weight, scales = aegis.ops.float8_quantize(torch.randn(SIZE, SIZE))
    times = 1 if quick else 5
    x = torch.randn(1, SIZE, dtype=torch.bfloat16)
    got, want = aegis.ops.float8_linear(x, weight, scales), scaled_mm(x, weight, scales)
    assert (got - want).float().norm() < 0.01 * want.float().norm()
    seconds = interleave(
        {
            "scaled_mm": lambda: scaled_mm(x, weight, scales),
            "dequantise": lambda: linear(x.float(), dequantize(weight, scales)),
            "aegis": lambda: aegis.ops.float8_linear(x, weight, scales),
        },
        times,
        burst=1,
        warmup=1,
    )
    ours = statistics.median(seconds["aegis"]) * 1e3
    table.ratio(f"{SIZE}², 1 row, 1 thread", "`torch._scaled_mm`", median(seconds["scaled_mm"]) * 1e3, ours, "ms", 150)
    table.compared(f"{SIZE}², 1 row, 1 thread", "dequantise + linear", median(seconds["dequantise"]) * 1e3, ours, "ms")
    for dtype in (torch.float32, torch.bfloat16):
        many = torch.randn(512, SIZE, dtype=dtype)
        seconds = interleave(
            {
                "dequantise": lambda: linear(many, dequantize(weight, scales).to(dtype)),  # noqa: B023
                "aegis": lambda: aegis.ops.float8_linear(many, weight, scales),  # noqa: B023
            },
            times,
            burst=1,
            warmup=1,
        )
        name = str(dtype).removeprefix("torch.")
        theirs, ours = median(seconds["dequantise"]) * 1e3, median(seconds["aegis"]) * 1e3
        table.ratio(f"{SIZE}², 512 rows of {name}, 1 thread", "dequantise + linear", theirs, ours, "ms", 1)


def build(quick: bool) -> Table:
    """float8_linear against torch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = Table("float8_linear from Python (isolated)")
    with torch.no_grad():
        for rows, block, dtype in (
            (1, 0, torch.bfloat16),
            (1, 0, torch.float32),
            (1, 128, torch.bfloat16),
            (8, 0, torch.bfloat16),
            (32, 0, torch.bfloat16),
        ):
            row(table, rows, block, dtype, quick)
        against_slow_ways(table, quick)
    table.notes.append("Inputs are quantised within each call of aegis's and of `torch._scaled_mm`'s.")
    return table


if __name__ == "__main__":
    main(build)
