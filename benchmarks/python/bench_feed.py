"""Feeding a training loop: batches of 64 × 256 tokens from a file, against every other loader installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aegis
import numpy as np
import peers
import torch
from harness import Table, anonymous_bytes, main, median, percentile
from loader_process import LoaderProcess, take_turns

STARTUP = """
import json, sys, time
import torch, aegis
from torch.utils.data import DataLoader
def resident(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = resident("VmRSS")
began = time.perf_counter()
dataset = aegis.TokenDataset(sys.argv[1], 256, dtype="uint16", stride=1)
if sys.argv[2] == "torch":
    loader = DataLoader(dataset, 64, shuffle=True)
else:
    loader = aegis.FlatArenaDataLoader(dataset, 64, shuffle=True, seed=0, num_workers=1)
if sys.argv[2] == "resume":
    state = {**loader.state_dict(), "position": 64 * int(sys.argv[3]), "started": True}
    loader.load_state_dict(state)
x, y = next(iter(loader))
took = time.perf_counter() - began
if sys.argv[2] == "resume":
    uninterrupted = aegis.FlatArenaDataLoader(dataset, 64, shuffle=True, seed=0).sampler.schedule(0)
    expected = uninterrupted.batch(int(sys.argv[3]))
    assert x[:, 0].tolist() == (expected % 65536).tolist(), "resumed somewhere else"
print(json.dumps([took, resident("VmHWM") - before]))
"""
SUSTAINED = "sustained: "


def first_batch(path: Path, kind: str, step: int = 0) -> tuple[float, float]:
    """Seconds to the first batch and bytes that the process grew, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STARTUP, str(path), kind, str(step)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, grown = json.loads(run.stdout)
    return seconds, grown


def sparse(folder: str, tokens: int) -> Path:
    path = Path(folder) / f"{tokens}.bin"
    with path.open("wb") as file:
        file.truncate(2 * tokens)
    return path


def numbered(folder: str, tokens: int) -> Path:
    """Each token is its position, modulo 65,536: a window shows where it was cut."""
    path = Path(folder) / f"numbered-{tokens}.bin"
    period = np.tile(np.arange(65536, dtype=np.uint16), 64)
    with path.open("wb") as file:
        for _ in range(-(-tokens // len(period))):
            period.tofile(file)
        file.truncate(2 * tokens)
    return path


def sustained(table: Table, tokens: Path, rounds: int, measure: float) -> None:
    """Batches as fast as they come, each loader alone for a while, in turn."""
    others = os.environ.get("AEGIS_PEERS_PYTHON", sys.executable)
    loaders = {
        name: LoaderProcess(name, tokens, others if name in peers.PACKAGES else sys.executable)
        for name in peers.LOADERS
    }
    seconds, left_out = take_turns(loaders, rounds, measure, optional=peers.PACKAGES)
    us = {name: 1e6 * value for name, value in seconds.items()}
    per_sample = {name: value for name, value in us.items() if not name.startswith("aegis") and "__" not in name}
    best, thread = min(per_sample, key=per_sample.__getitem__), us["aegis, 1 thread"]
    what = "sustained, one filler thread, per batch"
    table.ratio(what, f"best per-sample peer: {best}", per_sample[best], thread, "µs", 15)
    table.ratio(what, "DataLoader, `__getitems__`", us["DataLoader, `__getitems__`"], thread, "µs", 3)
    for name, value in us.items():
        table.figure(f"{SUSTAINED}{name}", value, "µs")
    versions: dict[str, str] = {}
    for name in us.keys() & peers.PACKAGES.keys():
        versions |= loaders[name].versions
    table.notes.append("Each loader has a process of its own, which is stopped while another one has its turn.")
    if versions:
        listed = ", ".join(f"{name} {versions[name]}" for name in sorted(versions))
        table.notes.append(
            f"Loaders of other projects ran with {listed}. litData and mosaic streaming read files of their own, with "
            "the first 4 million tokens, in windows that do not overlap."
        )
    table.notes += [f"Left out: {name} ({reason})." for name, reason in left_out.items()]


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
    samples, step = (10**6, 10**4) if quick else (10**9, 10**7)
    seconds, _ = first_batch(numbered(folder, samples + 256), "resume", step)
    table.limit(f"first batch after resuming at step {step:,} (checked to be the right one)", 1e3 * seconds, "ms", 50)
    samples = 10**6 if quick else 5 * 10**7
    seconds, grown = first_batch(sparse(folder, samples + 256), "torch")
    table.figure(f"for comparison: DataLoader, first shuffled batch of {samples:,} samples", 1e3 * seconds, "ms")
    table.figure("and the memory it gains", grown / 1e6, "MB")


def draw(table: Table, path: Path) -> None:
    """Time of a batch by loader, on a logarithmic scale."""
    import matplotlib.pyplot as plt

    us = {row.what.removeprefix(SUSTAINED): row.ours for row in table.rows if row.what.startswith(SUSTAINED)}
    names = sorted(us, key=us.__getitem__, reverse=True)
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.36 * len(names)), layout="constrained")
    bars = axes.barh(
        [name.replace("`", "") for name in names],
        [us[name] for name in names],
        color=["#1b6ca8" if name.startswith("aegis") else "#b8b8b8" for name in names],
    )
    axes.bar_label(bars, [f"{us[name]:,.0f}" for name in names], padding=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(1, 3 * max(us.values()))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("µs a batch of 64 × 256 tokens, nothing else running (logarithmic, shorter is better)", size=10)
    figure.savefig(path, dpi=130)


def build(quick: bool) -> Table:
    """Feeding token batches: throughput, waits, start-up, memory."""
    torch.set_num_threads(1)
    table = Table("Feeding 64 × 256 tokens")
    with tempfile.TemporaryDirectory() as folder:
        path = numbered(folder, (8 if quick else 100) * 2**20)
        paced(table, path, 100 if quick else 1000)
        sustained(table, path, 1 if quick else 9, 0.2 if quick else 0.5)
        startup(table, folder, quick)
        memory(table, path, 3000 if quick else 100_000)
    return table


if __name__ == "__main__":
    main(build, draw)
