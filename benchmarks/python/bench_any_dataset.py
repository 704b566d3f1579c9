"""Data sets whose samples Python makes, through torch's DataLoader and through reused slots."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from harness import Table, main, median, percentile
from torch.utils.data import DataLoader, Dataset

LOADERS: dict[str, type[DataLoader[Any]]] = {"torch": DataLoader, "aegis": aegis.FlatArenaDataLoader}
IMAGE = (3, 224, 224)
SIZES = (8, 16, 32, 64)  # images of IMAGE as float32: 4.8, 9.6, 19 and 38.5 MB


@dataclass
class Figures(Table):
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds for each of SIZES, by loader and number of workers."""


# --- data sets ---------------------------------------------------------------------------------------------------


class Crops(Dataset[torch.Tensor]):
    """Random crops of memory-mapped uint8 images, half of them flipped, normalised to float32 or left as they are."""

    SIDE = 256

    def __init__(self, path: Path, *, floats: bool) -> None:
        self.images = np.memmap(path, np.uint8, "r").reshape(-1, 3, self.SIDE, self.SIDE)
        self.floats = floats
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
        self.scale = 1 / (torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        top, left = torch.randint(0, self.SIDE - 224, (2,)).tolist()
        crop = torch.from_numpy(self.images[index, :, top : top + 224, left : left + 224].copy())
        if torch.rand(()) < 0.5:
            crop = crop.flip(-1)
        return crop.float().sub_(self.mean).mul_(self.scale) if self.floats else crop


class Stored(Dataset[torch.Tensor]):
    """One tensor, returned as it is: what a batch costs beyond its samples."""

    def __init__(self, shape: tuple[int, ...], count: int) -> None:
        self.sample, self.count = torch.rand(shape), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Listed(Dataset[int]):
    """A list of a million Python objects, which processes that read it copy page by page."""

    def __init__(self, count: int) -> None:
        self.items = [str(i) for i in range(count)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return len(self.items[index])


# --- measuring ---------------------------------------------------------------------------------------------------


def faults_of(pids: list[int]) -> list[int]:
    """Minor page faults of each process."""
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7]) for pid in pids]


class Run:
    """One loader's endless batches, drawn from in turns with others."""

    def __init__(self, loader: DataLoader[Any], touch: Callable[[Any], object]) -> None:
        self.loader, self.touch = loader, touch
        self.seconds: list[float] = []
        self.turns: list[float] = []  # seconds per batch of each turn
        self.batches = self._forever()
        next(self.batches)

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def turn(self, count: int, *, warmup: int) -> None:
        """``count`` batches in a row, after those that were made while others had their turn."""
        for _ in range(warmup):
            self.touch(next(self.batches))
        began = last = time.perf_counter()
        for _ in range(count):
            self.touch(next(self.batches))
            now = time.perf_counter()
            self.seconds.append(now - last)
            last = now
        self.turns.append((last - began) / count)

    @property
    def pids(self) -> list[int]:
        """Of this process and its workers."""
        return [os.getpid(), *(worker.pid for worker in getattr(self.loader._iterator, "_workers", []))]

    def close(self) -> None:
        self.batches.close()  # type: ignore[attr-defined]
        self.loader._iterator = None


def alone(call: str, setting: dict[str, str] | None = None) -> Any:
    """What a call of this module returns in a process of its own: what malloc keeps of earlier rows would count."""
    code = f"import json, bench_any_dataset as b; b.torch.set_num_threads(1); print(json.dumps(b.{call}))"
    environment = {**os.environ, **(setting or {}), "PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def megabytes(size: int) -> float:
    return size * 4 * torch.Size(IMAGE).numel() / 1e6


def nothing(batch: Any) -> None:
    pass


def every_page(batch: torch.Tensor) -> torch.Tensor:
    return batch.view(-1)[:: 4096 // batch.element_size()].sum()


def compete(
    dataset: Dataset[Any], batch: int, workers: int, turns: int, count: int, touch: Callable[[Any], object] = nothing
) -> dict[str, Run]:
    """Both loaders over ``dataset``, in turns, once their first batches were found equal."""
    arguments = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    runs = {}
    for name, kind in LOADERS.items():
        torch.manual_seed(1)
        runs[name] = Run(kind(dataset, batch, **arguments), touch)
    for _ in range(3):
        first, second = (next(run.batches) for run in runs.values())
        assert torch.equal(first, second), "the loaders disagree"
    del first, second
    for number in range(-1, turns):
        for run in list(runs.values())[:: -1 if number % 2 else 1]:
            if number < 0:
                run.turn(count, warmup=0)
                run.seconds.clear()
                run.turns.clear()
            else:
                run.turn(count, warmup=2 + 2 * workers)
    return runs


def end_to_end(table: Figures, path: Path, turns: int, count: int) -> None:
    for floats in (True, False):
        dataset = Crops(path, floats=floats)
        kind = "float32" if floats else "uint8"
        for workers in (1, 2):
            runs = compete(dataset, 64, workers, turns, count, every_page)
            theirs, ours = (64 / median(run.turns) for run in runs.values())
            what = f"end to end: crops of mapped images, {kind}, {workers} worker(s)"
            table.rate(what, "DataLoader", theirs, ours, "images/s", 3 if floats else 2)
            p50, p99 = (1e3 * percentile(runs["aegis"].seconds, p) for p in (50, 99))
            table.limit(f"{what}: p99 of a batch / its median ({p50:.2g} ms)", p99 / p50, "×", 3)
            for run in runs.values():
                run.close()


def transport_of(size: int, workers: int, turns: int, count: int) -> dict[str, tuple[float, float]]:
    """Of each loader, milliseconds a batch and page faults a batch in the worst process."""
    runs = compete(Stored(IMAGE, size * count * 2), size, workers, turns, count)
    found = {}
    for name, run in runs.items():
        before = faults_of(run.pids)
        run.turn(count, warmup=0)
        faults = max((b - a) / count for a, b in zip(before, faults_of(run.pids), strict=True))
        found[name] = (1e3 * median(run.turns), faults)
        run.close()
    return found


def transport(table: Figures, turns: int, count: int) -> None:
    targets = {0: (1, 1.4, 1.4, 5), 1: (10,) * 4, 2: (10,) * 4}
    for workers, wanted in targets.items():
        for size, at_least in zip(SIZES, wanted, strict=True):
            found = alone(f"transport_of({size}, {workers}, {turns}, {count})")
            (theirs, their_faults), (ours, our_faults) = found["torch"], found["aegis"]
            what = f"transport alone: {megabytes(size):.1f} MB a batch, {workers} worker(s)"
            table.ratio(what, "DataLoader", theirs, ours, "ms", at_least)
            text = f"page faults a batch in the worst process (DataLoader: {their_faults:,.0f})"
            table.limit(f"{what}: {text}", our_faults, "", 10)
            for name, value in (("torch", theirs), ("aegis", ours)):
                table.curves.setdefault(f"{name}, {workers} workers", []).append(value)


def tiny(table: Figures, turns: int, count: int) -> None:
    for workers in (0, 2):
        runs = compete(Stored((32,), 8 * 20_000), 8, workers, turns, count)
        theirs, ours = (1e6 * median(run.turns) for run in runs.values())
        table.ratio(f"tiny batches: 8 samples of 32 floats, {workers} worker(s)", "DataLoader", theirs, ours, "µs", 1)
        for run in runs.values():
            run.close()


def stalls(table: Figures, count: int) -> None:
    """Many batches in a row. A lost wake-up would show as a multiple of the 5 s after which torch looks again."""
    for workers in (1, 2):
        with closing(Run(aegis.FlatArenaDataLoader(Stored(IMAGE, 8 * 2000), 8, num_workers=workers), nothing)) as run:
            run.turn(count, warmup=20)
            what = f"longest of {count:,} batches of 4.8 MB, {workers} worker(s)"
            table.limit(what, max(run.seconds), "s", 1)


def memory(table: Figures, items: int, workers: int) -> None:
    def proportional(kind: type[DataLoader[Any]]) -> float:
        with closing(Run(kind(dataset, 1000, num_workers=workers, persistent_workers=True), nothing)) as run:
            run.turn(len(run.loader), warmup=0)
            lines = [line for pid in run.pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

    dataset = Listed(items)
    theirs, ours = (median([proportional(kind) for _ in range(3)]) for kind in LOADERS.values())
    what = f"memory of all processes (PSS): a list of {items:,} strings, {workers} workers"
    # A fiftieth is what two runs of the same loader differ by.
    table.ratio(what, "DataLoader", theirs, ours, "MB", 0.98)


def torch_alone(workers: int, turns: int, count: int) -> float:
    """Milliseconds that torch's loader takes for the largest batch."""
    with closing(Run(DataLoader(Stored(IMAGE, 64 * 2000), 64, num_workers=workers), nothing)) as run:
        for _ in range(turns):
            run.turn(count, warmup=2 + 2 * workers)
    return 1e3 * median(run.turns)


def allocator(table: Figures, turns: int, count: int) -> None:
    """What setting an allocator variable gives to torch's own loader."""
    for setting in ({}, {"MALLOC_MMAP_THRESHOLD_": str(256 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}):
        name = "with MALLOC_MMAP_THRESHOLD_ = 256 MB" if setting else "as it comes"
        for workers in (0, 2):
            ms = alone(f"torch_alone({workers}, {turns}, {count})", setting)
            table.figure(f"DataLoader {name}: 38.5 MB a batch, {workers} worker(s)", ms, "ms")


def draw(table: Figures, path: Path) -> None:
    """Time of a batch over its size."""
    import matplotlib.pyplot as plt

    sizes = [megabytes(size) for size in SIZES]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for workers, axis in enumerate(axes):
        for name, colour in (("torch", "tab:gray"), ("aegis", "tab:blue")):
            label = "DataLoader" if name == "torch" else "FlatArenaDataLoader"
            axis.loglog(sizes, table.curves[f"{name}, {workers} workers"], "o-", color=colour, label=label)
        axis.set_title(f"{workers} worker{'s' if workers != 1 else ''}")
        axis.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("batch (MB)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms a batch, transport alone")
    axes[0].legend()
    figure.savefig(path, dpi=150)


def build(quick: bool) -> Figures:
    """Batches of any data set: images end to end first, then what their transport costs alone."""
    torch.set_num_threads(1)
    turns, count = (2, 8) if quick else (9, 40)
    table = Figures("Any data set")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.u8"
        images = 256 if quick else 2048
        np.random.default_rng(0).integers(0, 256, images * 3 * Crops.SIDE**2, np.uint8).tofile(path)
        end_to_end(table, path, turns, count)
    transport(table, turns, count)
    tiny(table, turns, 50 if quick else 500)
    stalls(table, 200 if quick else 10_000)
    gc.collect()
    memory(table, 20_000 if quick else 1_000_000, 2 if quick else 8)
    allocator(table, turns, count)
    table.notes.append(
        "The data set of the transport rows returns one stored tensor, so what samples cost does not count; "
        "that of the end-to-end rows does its work in the workers, and the consumer reads every page."
    )
    return table


if __name__ == "__main__":
    main(build, draw)
