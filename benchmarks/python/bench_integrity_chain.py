"""IntegrityChain: what a record costs a training loop, and how fast it goes over batches."""

from __future__ import annotations

import zlib

import torch
from aegis import _C
from aegis.evidence import IntegrityChain
from harness import Table, interleave, main, median


def build(quick: bool) -> Table:
    """A record of a step and its loss, and batches of bytes beside zlib's checksum of them."""
    torch.set_num_threads(1)
    table = Table("IntegrityChain from Python (isolated)")
    assert _C.fnv1a(b"foobar", 32) == 0xBF9CF968
    rounds = 3 if quick else 60
    plain = IntegrityChain()
    seconds = interleave({"record": lambda: plain.add(1, 2.5)}, rounds, burst=200)
    table.limit("a record of step and loss", 1e6 * median(seconds["record"]), "µs", 1)
    for mb in (0.25, 64):
        batch = torch.randint(0, 256, (int(mb * (1 << 20)),), dtype=torch.uint8)
        data = batch.numpy()
        lanes, serial = IntegrityChain(), IntegrityChain(lanes=False)
        seconds = interleave(
            {
                "lanes": lambda c=lanes, b=batch: c.add(1, 2.5, b),  # type: ignore[misc]
                "serial": lambda c=serial, b=batch: c.add(1, 2.5, b),  # type: ignore[misc]
                "crc32": lambda d=data: zlib.crc32(d),  # type: ignore[misc]
            },
            2 if quick or mb > 1 else rounds,
            burst=3,
        )
        rate = {name: data.nbytes / median(times) / 1e9 for name, times in seconds.items()}
        table.rate(f"{mb:g} MB batch, 64 lanes", "4 GB/s", 4, rate["lanes"], "GB/s", 1)
        table.compared(f"{mb:g} MB batch, 64 lanes", "zlib.crc32", rate["crc32"], rate["lanes"], "GB/s")
        table.compared(f"{mb:g} MB batch, 64 lanes", "one chain", rate["serial"], rate["lanes"], "GB/s")
    return table


if __name__ == "__main__":
    main(build)
