"""The operator gather_records_scaled, called from Python, against indexing, conversion and arithmetic by torch."""

from __future__ import annotations

from collections.abc import Callable

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor


def contenders(source: Tensor, batch: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    random = torch.Generator().manual_seed(1)
    scale, bias = torch.tensor([0.017, 0.0175, 0.0174]), torch.tensor([-2.1, -2.0, -1.8])
    a, b = scale.view(3, 1, 1), bias.view(3, 1, 1)

    def rows() -> Tensor:
        return torch.randint(0, len(source), (batch,), generator=random)

    def by_torch(indices: Tensor) -> Tensor:
        return source[indices].float().mul_(a).add_(b).to(dtype)

    one = rows()
    got = aegis.ops.gather_records_scaled(source, one, scale, bias, dtype)
    assert torch.equal(got, by_torch(one))
    return {
        "torch": lambda: by_torch(rows()),
        "aegis": lambda: aegis.ops.gather_records_scaled(source, rows(), scale, bias, dtype),
        "aegis, out=": lambda: aegis.ops.gather_records_scaled(source, rows(), scale, bias, out=got),
        "indices alone": rows,
    }


def build(quick: bool) -> Table:
    """gather_records_scaled against torch's indexing, conversion and arithmetic."""
    torch.set_num_threads(1)
    table = Table("gather_records_scaled from Python: uint8 3 × 32 × 32 (isolated)")
    count = (16 if quick else 512) << 20  # of the source, in bytes: far more than the caches
    source = torch.empty(count // 8, dtype=torch.int64).random_().view(torch.uint8)
    source = source[: count // 3072 * 3072].view(-1, 3, 32, 32)
    for batch in (64, 512, 4096):
        for dtype in (torch.float32, torch.bfloat16):
            seconds = interleave(contenders(source, batch, dtype), rounds=2 if quick else 8, burst=4, warmup=1)
            drawing = median(seconds["indices alone"])
            us = {name: (median(times) - drawing) * 1e6 for name, times in seconds.items()}
            what = f"{batch:,} rows to {str(dtype).removeprefix('torch.')}"
            table.ratio(what, "source[indices].float() * scale + bias", us["torch"], us["aegis"], "µs", 1)
            table.ratio(f"{what}, out=", "the same", us["torch"], us["aegis, out="], "µs", 1)
    table.notes.append(
        "Both sides draw their own random indices; that time is subtracted. torch computes in one thread."
    )
    return table


if __name__ == "__main__":
    main(build)
