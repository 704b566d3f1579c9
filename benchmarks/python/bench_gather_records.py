"""The operator gather_records, called from Python, against `source[indices]`."""

from __future__ import annotations

from collections.abc import Callable

import aegis  # noqa: F401
import torch
from harness import Table, interleave, main, median
from torch import Tensor

BATCH = 4096


def contenders(source: Tensor) -> dict[str, Callable[[], object]]:
    random = torch.Generator().manual_seed(1)

    def rows() -> Tensor:
        return torch.randint(0, len(source), (BATCH,), generator=random)

    one = rows()
    got = torch.ops.aegis.gather_records(source, one)
    assert torch.equal(got, source[one])
    out = torch.empty_like(got)
    return {
        "source[indices]": lambda: source[rows()],
        "index_select, out=": lambda: torch.index_select(source, 0, rows(), out=out),
        "aegis": lambda: torch.ops.aegis.gather_records(source, rows()),
        "aegis, out=": lambda: torch.ops.aegis.gather_records.out(source, rows(), out=out),
        "indices alone": rows,
    }


def build(quick: bool) -> Table:
    """gather_records against torch's indexing."""
    torch.set_num_threads(1)
    table = Table(f"gather_records from Python: {BATCH:,} random rows (isolated)")
    size = (32 if quick else 512) << 20  # of the source, in bytes: far more than the caches
    for what, dtype, row in (
        ("int64", torch.int64, ()),
        ("float32 × 16", torch.float32, (16,)),
        ("float32 × 64", torch.float32, (64,)),
        ("uint8 3 × 32 × 32", torch.uint8, (3, 32, 32)),
    ):
        values = torch.empty(size // 8, dtype=torch.int64).random_(2**7).view(torch.uint8)  # no NaN in them
        rows = values.view(dtype)
        width = torch.Size(row).numel()
        source = rows[: len(rows) // width * width].view(-1, *row)
        seconds = interleave(contenders(source), rounds=5 if quick else 30, burst=5)
        drawing = median(seconds["indices alone"])
        us = {name: (median(times) - drawing) * 1e6 for name, times in seconds.items()}
        table.ratio(what, "source[indices]", us["source[indices]"], us["aegis"], "µs", 1)
        table.ratio(f"{what}, out=", "index_select, out=", us["index_select, out="], us["aegis, out="], "µs", 1)
    table.notes.append(
        "Both sides draw their own random indices; that time is subtracted. torch computes in one thread."
    )
    return table


if __name__ == "__main__":
    main(build)
