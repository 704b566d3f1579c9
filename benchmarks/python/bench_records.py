"""Batches of records: FlatArenaDataLoader against torch's DataLoader and against a plain indexing loop.

    python benchmarks/python/bench_records.py [--rows 1000000] [--batch 4096] [--torch-threads 1]

Every way shuffles with the same seed; the first batches are compared before anything is timed. Times are per batch,
the least of several rounds in which the ways take turns, the first batches of each left out. torch computes with one
thread unless told otherwise, as the kernels here do: where others keep the cores busy, its threads wait for each other.
The indexing loop (`source[permutation[i : i + batch]]`) is what a user writes who knows that the data is one tensor.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import aegis
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

TARGET = 10.0  # times faster than DataLoader with 0 workers
Way = Callable[[], Iterator[Any]]


def random_bytes(count: int) -> Tensor:
    return torch.empty(-(-count // 8), dtype=torch.int64).random_().view(torch.uint8)[:count]


def plain_ways(rows: int, batch: int, columns: int) -> dict[str, Way]:
    """float32 rows and int64 labels, as a TensorDataset."""
    data, labels = torch.randn(rows, columns), torch.arange(rows)
    dataset = TensorDataset(data, labels)

    def indexing() -> Iterator[Any]:
        order = torch.randperm(rows)
        return ([data[part], labels[part]] for part in order.split(batch))

    def ours(threads: int) -> Way:
        loader = aegis.FlatArenaDataLoader(dataset, batch, shuffle=True, num_workers=threads)
        return lambda: iter(loader)

    return {
        "DataLoader, 0 workers": lambda: iter(DataLoader(dataset, batch, shuffle=True)),
        "indexing loop": indexing,
        "FlatArenaDataLoader, 0 threads": ours(0),
        "FlatArenaDataLoader, 1 thread": ours(1),
    }


def scaled_ways(rows: int, batch: int) -> dict[str, Way]:
    """uint8 images, wanted as normalised float32."""
    images = random_bytes(rows * 3072).view(rows, 3, 32, 32)
    scale, bias = torch.tensor([0.017, 0.0175, 0.0174]), torch.tensor([-2.1, -2.0, -1.8])
    a, b = scale.view(3, 1, 1), bias.view(3, 1, 1)

    def convert(batch: Tensor) -> Tensor:
        return batch.float().mul_(a).add_(b)

    def torchs() -> Iterator[Any]:
        return (convert(batch) for (batch,) in DataLoader(TensorDataset(images), batch, shuffle=True))

    def indexing() -> Iterator[Any]:
        return (convert(images[part]) for part in torch.randperm(rows).split(batch))

    def ours(threads: int) -> Way:
        dataset = aegis.RecordDataset(images, scale=scale, bias=bias)
        loader = aegis.FlatArenaDataLoader(dataset, batch, shuffle=True, num_workers=threads)
        return lambda: iter(loader)

    return {
        "DataLoader, 0 workers": torchs,
        "indexing loop": indexing,
        "FlatArenaDataLoader, 0 threads": ours(0),
        "FlatArenaDataLoader, 1 thread": ours(1),
    }


def first(way: Way, count: int) -> list[list[Tensor]]:
    torch.manual_seed(3)
    return [batch if isinstance(batch, list) else [batch] for batch in itertools.islice(way(), count)]


def check_equal(ways: dict[str, Way]) -> None:
    reference = first(ways["DataLoader, 0 workers"], 2)
    for name, way in ways.items():
        if name == "indexing loop":
            continue  # draws its permutation otherwise; its rows are those of the same tensor
        for got, want in zip(first(way, 2), reference, strict=True):
            if not all(map(torch.equal, got, want)):
                raise SystemExit(f"{name}: not the batches of torch's DataLoader")


def seconds_a_batch(way: Way, batches: int, skip: int = 3) -> float:
    iterator = way()
    for _ in range(skip):
        next(iterator)
    start = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return (time.perf_counter() - start) / batches


def measure(title: str, ways: dict[str, Way], batches: int, rounds: int) -> None:
    check_equal(ways)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            count = min(batches, 3) if name.startswith("DataLoader") else batches
            times[name].append(seconds_a_batch(way, count))
    least = {name: min(taken) for name, taken in times.items()}
    anchor, indexing = least["DataLoader, 0 workers"], least["indexing loop"]
    for name, taken in least.items():
        verdict = ""
        if name.startswith("Flat"):
            verdict = f"{TARGET:.0f}x: " + ("met" if anchor / taken >= TARGET else "missed")
        print(f"| {title} | {name} | {taken * 1e6:,.0f} | {anchor / taken:.1f} | {indexing / taken:.2f} | {verdict} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=60, help="timed in each round (3 of DataLoader's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-threads", type=int, default=1)
    options = parser.parse_args()
    rows, batch = options.rows, options.batch
    torch.set_num_threads(options.torch_threads)
    print(f"{rows:,} rows, batch {batch}, ISA {aegis.cpu_isa()}, torch {torch.__version__} with ", end="")
    print(f"{torch.get_num_threads()} thread(s)\n")
    print("| records | way | µs a batch | x DataLoader | x indexing loop | target |")
    print("|---|---|---|---|---|---|")
    for columns in (16, 64):
        measure(f"float32 x {columns}, int64", plain_ways(rows, batch, columns), options.batches, options.rounds)
    few = min(options.batches, 20)
    measure("uint8 3 x 32 x 32 to float32", scaled_ways(rows, batch), few, options.rounds)


if __name__ == "__main__":
    main()
