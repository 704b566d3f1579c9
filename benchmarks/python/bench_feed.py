"""Feeding a training loop: batches of 64 × 256 tokens from a file, against every other loader installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aegis
import numpy as np
import peers
import torch
from harness import Table, anonymous_bytes, interleave, main, median, percentile

STARTUP = """
import json, resource, sys, time
start = time.perf_counter()
import torch, aegis
from torch.utils.data import DataLoader
imported = time.perf_counter()
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dataset = aegis.TokenDataset(sys.argv[1], 256, dtype="uint16", stride=1)
if sys.argv[2] == "torch":
    loader = DataLoader(dataset, 64, shuffle=True)
else:
    loader = aegis.FlatArenaDataLoader(dataset, 64, shuffle=True, seed=0, num_workers=1)
if sys.argv[2] == "resume":
    steps = 10**7
    loader.load_state_dict({**loader.state_dict(), "position": 64 * steps, "started": True})
    expected = aegis.FlatArenaDataLoader(dataset, 64, shuffle=True, seed=0).sampler.schedule(0).batch(steps)
began = time.perf_counter()
x, y = next(iter(loader))
took = time.perf_counter() - began
if sys.argv[2] == "resume":
    rows = dataset.arena[torch.as_tensor(dataset.windows.offsets(expected))]
    assert torch.equal(x[:, 0].to(torch.uint16), rows), "resumed somewhere else"
print(json.dumps([took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024]))
"""


def first_batch(path: Path, kind: str) -> tuple[float, float]:
    """Seconds to the first batch and bytes that the process grew, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STARTUP, str(path), kind], capture_output=True, text=True, check=True
    )
    seconds, grown = json.loads(run.stdout)
    return seconds, grown


def sparse(folder: str, tokens: int) -> Path:
    path = Path(folder) / f"{tokens}.bin"
    with path.open("wb") as file:
        file.truncate(2 * tokens)
    return path


def sustained(table: Table, path: Path, rounds: int) -> None:
    streams = {name: peers.checked(name, peer(path)) for name, peer in peers.installed().items()}
    ours = {
        "aegis, 0 threads": peers.aegis_loader(0),
        "aegis, 1 thread": peers.aegis_loader(1, prefetch_factor=8),
    }
    streams |= {name: peers.checked(name, peer(path)) for name, peer in ours.items()}
    seconds = interleave({name: (lambda s=stream: next(s)) for name, stream in streams.items()}, rounds, burst=40)
    mean = {name: 1e6 * sum(times) / len(times) for name, times in seconds.items()}
    per_sample = {n: us for n, us in mean.items() if n not in ours and "__getitems__" not in n}
    best = min(per_sample, key=per_sample.__getitem__)
    thread = mean["aegis, 1 thread"]
    table.ratio(
        "sustained, one filler thread, per batch", f"best per-sample peer: {best}", per_sample[best], thread, "µs", 15
    )
    table.ratio(
        "sustained, one filler thread, per batch",
        "DataLoader, `__getitems__`",
        mean["DataLoader, `__getitems__`"],
        thread,
        "µs",
        3,
    )
    for name, us in mean.items():
        table.figure(f"sustained: {name}", us, "µs")
    if peers.missing():
        table.notes.append(f"Not installed, so not measured: {', '.join(peers.missing())}.")


def paced(table: Table, path: Path, steps: int) -> None:
    """A consumer that computes for 10 ms between batches, as a training step does."""
    loader = aegis.FlatArenaDataLoader(
        aegis.TokenDataset(path, peers.BLOCK, dtype="uint16", stride=1),
        peers.BATCH, shuffle=True, seed=0, num_workers=1,
    )  # fmt: skip
    a, step = torch.rand(192, 192), 0.010
    waits, iterator, began = [], iter(loader), time.perf_counter()
    for _ in range(steps):
        until = time.perf_counter() + step
        while time.perf_counter() < until:
            a = a @ a
            a /= a.norm()
        start = time.perf_counter()
        next(iterator)
        waits.append(time.perf_counter() - start)
    whole = time.perf_counter() - began
    table.limit("`next(loader)` beside 10 ms steps, median", 1e6 * median(waits), "µs", 5)
    table.limit("`next(loader)` beside 10 ms steps, p99", 1e6 * percentile(waits, 99), "µs", 50)
    table.limit("share of the time spent in `next(loader)`", 100 * sum(waits) / whole, "%", 1)


def memory(table: Table, path: Path, batches: int) -> None:
    loader = aegis.FlatArenaDataLoader(
        aegis.TokenDataset(path, peers.BLOCK, dtype="uint16", stride=1),
        peers.BATCH, shuffle=True, seed=0, num_workers=1,
    )  # fmt: skip
    count = 0
    at_start = 0
    while count < batches:
        for _ in loader:
            count += 1
            if count == 1000:
                at_start = anonymous_bytes()
            if count == batches:
                break
    drift = (anonymous_bytes() - at_start) / 1e6
    table.limit(f"anonymous memory gained from batch 1,000 to {batches:,}", max(0.0, drift), "MB", 1)
    table.limit("native allocations after warm-up, counted in the core", loader.stats()["native_allocations"], "", 0)
    grown = {}
    for threads in (1, 8):
        before = anonymous_bytes()
        iterator = iter(
            aegis.FlatArenaDataLoader(
                aegis.TokenDataset(path, peers.BLOCK, dtype="uint16", stride=1),
                peers.BATCH,
                seed=0,
                num_workers=threads,
                prefetch_factor=8 // threads,
            )
        )
        for _ in range(50):
            next(iterator)
        grown[threads] = (anonymous_bytes() - before) / 1e6
        del iterator
    table.limit("anonymous memory of 8 filler threads beyond that of 1, same slots", grown[8] - grown[1], "MB", 1)


def startup(table: Table, folder: str, quick: bool) -> None:
    seconds, grown = first_batch(sparse(folder, 10**9 + 256), "aegis")
    table.limit("first shuffled batch of 10⁹ samples", 1e3 * seconds, "ms", 50)
    table.limit("memory gained by it", grown / 1e6, "MB", 50)
    seconds, _ = first_batch(sparse(folder, 10**9 + 256), "resume")
    table.limit("first batch after resuming at step 10⁷ (checked)", 1e3 * seconds, "ms", 50)
    samples = 10**6 if quick else 5 * 10**7
    seconds, grown = first_batch(sparse(folder, samples + 256), "torch")
    table.figure(f"for comparison: DataLoader, first shuffled batch of {samples:,} samples", 1e3 * seconds, "ms")
    table.figure("and the memory it gains", grown / 1e6, "MB")


def build(quick: bool) -> Table:
    """Feeding token batches: throughput, waits, start-up, memory."""
    torch.set_num_threads(1)
    table = Table("Feeding 64 × 256 tokens")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50257, (8 if quick else 100) * 2**20, dtype=np.uint16).tofile(path)
        paced(table, path, 100 if quick else 1000)
        sustained(table, path, 2 if quick else 12)
        startup(table, folder, quick)
        memory(table, path, 3000 if quick else 100_000)
    return table


if __name__ == "__main__":
    main(build)
