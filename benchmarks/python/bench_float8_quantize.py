"""The operator float8_quantize against the same in torch's operations."""

from __future__ import annotations

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor


def in_torch(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    groups = x.view(len(x), -1, block or x.shape[1])
    scale = groups.abs().amax(-1, keepdim=True) / 448
    return (groups / scale).to(torch.float8_e4m3fn).view(x.shape), scale.squeeze(-1)


def build(quick: bool) -> Table:
    """float8_quantize against torch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = Table("float8_quantize from Python (isolated)")
    for rows, block, rounds in ((1, 0, 50), (1, 128, 50), (512, 0, 10), (512, 128, 10)):
        x = torch.randn(rows, 4096)
        for got, want in zip(aegis.ops.float8_quantize(x, block), in_torch(x, block), strict=True):
            assert torch.equal(got.float(), want.float())
        seconds = interleave(
            {"torch": lambda: in_torch(x, block), "aegis": lambda: aegis.ops.float8_quantize(x, block)},  # noqa: B023
            3 if quick else rounds,
            burst=3,
        )
        what = f"{rows} × 4096, float32, {f'blocks of {block}' if block else 'a scale for each row'}, 1 thread"
        table.compared(what, "torch", median(seconds["torch"]) * 1e6, median(seconds["aegis"]) * 1e6, "µs")
    table.notes.append(
        "torch: amax, a division, and its own cast to float8_e4m3fn. Values and scales are the same bits."
    )
    return table


if __name__ == "__main__":
    main(build)
