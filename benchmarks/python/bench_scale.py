"""A run over 10^12 tokens in 10^4 files on 4,096 ranks, as far as one machine can play it: starts, memory, descriptors.

The files are sparse, so nothing is on the disk but names. A start is a process of its own; 4,096 ranks are the order of
each rank, asked for the same step; ranks on one machine are processes that hold the same files open at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from aegis.data.order import SeededSampler
from harness import Table, main, median

BLOCK, BATCH, RANKS = 4096, 4, 4096


def start(folder: str, step: int, hold: bool) -> dict[str, float]:
    """One rank's start in this process, from the names of the files to a batch of ``step``: seconds of processor time,
    of all threads."""
    before = usage()
    begin = time.process_time()
    paths = sorted(str(path) for path in Path(folder).iterdir())
    named = time.process_time()
    dataset = aegis.TokenDataset(paths, BLOCK, dtype="uint16")
    opened = time.process_time()
    given: dict[str, Any] = {"shuffle": True, "seed": 1, "rank": 7, "world_size": RANKS}
    with aegis.FlatArenaDataLoader(dataset, BATCH, num_workers=1, **given) as loader:
        state = loader.state_dict()
        described = time.process_time()
        if step > 0:
            loader.load_state_dict({**state, "position": step * BATCH * RANKS, "started": True})
        resumed = time.process_time()
        next(iter(loader))
        end = time.process_time()
        after = usage()
        result = {
            "names": named - begin,
            "open": opened - named,
            "state": described - opened,
            "batch": end - resumed,
            "all": end - begin,
            "state_bytes": len(json.dumps(state)),
            "tokens": dataset.tokens,
            "samples": len(dataset),
            **{name: after[name] - before[name] for name in after},
        }
        if hold:
            print(json.dumps(result), flush=True)
            sys.stdin.readline()
            result = {**result, **{name: value - before[name] for name, value in usage().items()}}
    return result


def usage() -> dict[str, float]:
    """Of this process: kilobytes that no file backs, its share of all that is resident, page tables, and counts."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: float(line.split()[1]) for line in rollup[1:]}
    return {
        "anonymous_kb": sizes["Anonymous"],
        "pss_kb": sizes["Pss"],
        "tables_kb": page_tables(),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def page_tables() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPTE"):
            return float(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmPTE")


def process(folder: Path, step: int, *, hold: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--start", str(folder), "--step", str(step), *["--hold"] * hold]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def starts(folder: Path, step: int, count: int) -> dict[str, float]:
    """Medians of ``count`` processes one after the other."""
    found = [json.loads(process(folder, step).communicate()[0]) for _ in range(count)]
    return {name: median([one[name] for one in found]) for name in found[0]}


def together(folder: Path, count: int) -> list[dict[str, float]]:
    """``count`` processes that are all there when each is measured."""
    running = [process(folder, 0, hold=True) for _ in range(count)]
    for one in running:
        assert one.stdout is not None
        one.stdout.readline()
    found = []
    for one in running:
        out, _ = one.communicate("\n")
        found.append(json.loads(out))
    return found


def ranks(samples: int, step: int) -> tuple[float, float, bool]:
    """Microseconds that one of 4,096 ranks takes to make its order, and to find a batch of ``step`` in it; and whether
    all of them together have that step's samples, each once."""
    data = range(samples)
    made, found, batches = [], [], []
    for rank in range(RANKS):
        begin = time.perf_counter()
        sampler = SeededSampler(data, BATCH, shuffle=True, seed=1, rank=rank, world_size=RANKS)
        schedule = sampler.schedule(0, step * BATCH * RANKS)
        middle = time.perf_counter()
        batches.append(schedule.batch(0))
        found.append(time.perf_counter() - middle)
        made.append(middle - begin)
    one = SeededSampler(data, BATCH * RANKS, shuffle=True, seed=1).schedule(0, step * BATCH * RANKS).batch(0)
    complete = np.array_equal(np.sort(np.concatenate(batches)), np.sort(one)) and len(np.unique(one)) == BATCH * RANKS
    return median(made) * 1e6, median(found) * 1e6, complete


def build(quick: bool) -> Table:
    """10^12 tokens, 4,096 ranks."""
    torch.set_num_threads(1)
    files = 1000 if quick else 10_000
    each = 10**12 // files
    step = 10**12 // BLOCK // (BATCH * RANKS) // 2
    table = Table(f"Scale: 10¹² tokens in {files:,} sparse files, {RANKS:,} ranks, {BATCH} × {BLOCK} tokens a rank")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for at in range(files):
            with (folder / f"{at:05}.bin").open("wb") as file:
                file.truncate(2 * each)
        first = starts(folder, 0, 3)
        later = starts(folder, step, 3)
        if first["tokens"] != 10**12:
            raise RuntimeError(f"expected 10^12 tokens, got {first['tokens']}")
        table.limit("opening the files", first["open"] * 1e3, "ms", 1000)
        table.figure("reading the names of the folder", first["names"] * 1e3, "ms")
        table.figure("first state_dict(), with the files' fingerprints", first["state"] * 1e3, "ms")
        table.figure("from iter() to the first batch", first["batch"] * 1e3, "ms")
        table.limit("a rank's start, all of these", first["all"] * 1e3, "ms", 1000)
        table.limit(f"a rank's start, resumed at step {step:,}", later["all"] * 1e3, "ms", 1000)
        table.figure("size of a state as JSON", first["state_bytes"] / 1e3, "kB")
        table.limit("memory of a rank that no file backs", first["anonymous_kb"] / 1e3, "MB", 100)
        table.figure("page tables of a rank", first["tables_kb"] / 1e3, "MB")
        table.figure("descriptors", first["descriptors"], "")
        table.limit("mappings", first["mappings"], "", 65_530)
        four = together(folder, 4)
        table.figure("4 ranks on one machine: memory of each by PSS", max(one["pss_kb"] for one in four) / 1e3, "MB")
        made, found, complete = ranks(int(first["samples"]), step)
        if not complete:
            raise RuntimeError("the ranks' batches are not the step's samples, each once")
        table.limit(f"order of one rank of {RANKS:,}", made, "µs", 1000)
        table.limit(f"a batch of it at step {step:,}, called from Python", found, "µs", 1000)
    table.notes.append(
        "Processor time of all threads, medians of three processes; Python's own start and the imports are not "
        "counted. Sparse files cost no disk: the first batch is what it is without one. All ranks together were "
        "checked to have every sample of the step once."
    )
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--start")
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--hold", action="store_true")
    mode, _ = parser.parse_known_args()
    if mode.start is None:
        main(build)
    else:
        torch.set_num_threads(1)
        print(json.dumps(start(mode.start, mode.step, mode.hold)))
