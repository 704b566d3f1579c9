"""Host to device: one copy of a batch from pinned and from pageable memory, until it is there."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
from report import Options, Row, check, seconds_of

BENCH = "copies: host to device"
# A 64 x 256 pair of int64 batches is 256 KiB.
SIZES = {"16 KiB": 1 << 14, "256 KiB": 1 << 18, "4 MiB": 1 << 22, "64 MiB": 1 << 26}


def run(options: Options) -> Iterator[Row]:
    for label, size in SIZES.items():
        if options.quick and size > 1 << 20:
            continue
        target = torch.empty(size, dtype=torch.uint8, device=options.device)
        source = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        kinds = {"pageable": source}
        if options.cuda:
            kinds = {"pinned": source.pin_memory(), **kinds}
        for kind, host in kinds.items():
            times = 20 if options.quick else 200
            taken = seconds_of(lambda h=host, t=target: t.copy_(h, non_blocking=True), options, warm=10, times=times)
            check(torch.equal(target.cpu(), source), f"{label} {kind}: the copy differs")
            median = statistics.median(taken)
            values = {"us": round(median * 1e6, 1), "GB_per_s": round(size / median / 1e9, 2)}
            yield Row(BENCH, f"{label} {kind}", values)
            target.zero_()
