"""``aegis bench``: what the loader gains on a token file of one's own, beside torch's DataLoader."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

import aegis
from aegis.data.formats import DTYPES

__all__ = ["register", "run"]

_TURNS = 3
_COMPARED = 20
_LOADERS: dict[str, type[DataLoader[Any]]] = {
    "torch.utils.data.DataLoader": DataLoader,
    "aegis.FlatArenaDataLoader": aegis.FlatArenaDataLoader,
}


@dataclass
class _Times:
    """Seconds that the caller waited."""

    first: list[float] = field(default_factory=list)
    """From iter(loader) to the first batch, of each turn."""
    later: list[float] = field(default_factory=list)
    """For each batch after it."""


@dataclass(frozen=True)
class _Figures:
    tokens_per_second: float
    median_us: float
    p99_us: float
    first_batch_ms: float


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "bench",
        help="time batches of a token file, beside torch's DataLoader",
        description="Take shuffled batches of a token file through torch's DataLoader and through aegis, in the same "
        f"order and in {_TURNS} turns each, and print how long the caller waits for one. The first {_COMPARED} are "
        "compared first: exit status 1 where they differ. What a training run gains is less, since a loader works "
        "beside it: see aegis train --compare.",
    )
    parser.add_argument("file", metavar="FILE", help="a token file, or a pattern for several")
    parser.add_argument("--dtype", choices=DTYPES, help="of raw files, which do not say it themselves")
    parser.add_argument("--block-size", type=int, default=256, help="tokens in a window (default: 256)")
    parser.add_argument("--batch-size", type=int, default=64, help="windows in a batch (default: 64)")
    parser.add_argument("--num-workers", type=int, default=1, help="threads or worker processes (default: 1)")
    parser.add_argument("--batches", type=int, default=500, help="in a turn, at most (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure as told: 0 when done, 1 when the batches differ.

    Raises:
        OSError, ValueError: bad input.
    """
    least = {"block_size": 1, "batch_size": 1, "num_workers": 0, "batches": 2}
    for name, smallest in least.items():
        if (value := getattr(args, name)) < smallest:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {smallest}, got {value}")
    dataset = aegis.TokenDataset(args.file, args.block_size, dtype=args.dtype, stride=args.block_size)
    whole = len(dataset) // args.batch_size
    if whole < 2:
        raise ValueError(f"{args.file}: expected at least 2 batches, got {len(dataset)} windows of --block-size")
    batches = min(args.batches, whole)
    if (different := _first_difference(args, dataset, min(batches, _COMPARED))) is not None:
        print(f"batches differ, first at number {different + 1}")
        return 1
    times = {name: _Times() for name in _LOADERS}
    with tqdm(total=_TURNS * len(_LOADERS) * batches, unit="batch", disable=args.json, leave=False) as bar:
        for turn in range(_TURNS):
            for name in list(_LOADERS)[:: 1 if turn % 2 == 0 else -1]:
                _take(args, name, dataset, batches, times[name])
                bar.update(batches)
    figures = {name: _figures(taken, args.batch_size * args.block_size) for name, taken in times.items()}
    if args.json:
        print(json.dumps({name: asdict(row) for name, row in figures.items()}, indent=2))
    else:
        _print(args, figures, batches)
    return 0


@contextmanager
def _loader(args: argparse.Namespace, name: str, dataset: aegis.TokenDataset) -> Iterator[DataLoader[Any]]:
    """A fresh one, whose order torch's global generator gives: the same for both."""
    torch.manual_seed(args.seed)
    loader = _LOADERS[name](
        dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=args.num_workers
    )
    try:
        yield loader
    finally:
        if isinstance(loader, aegis.FlatArenaDataLoader):
            loader.close()


def _first_difference(args: argparse.Namespace, dataset: aegis.TokenDataset, count: int) -> int | None:
    taken = []
    for name in _LOADERS:
        with _loader(args, name, dataset) as loader:
            taken.append([[tensor.clone() for tensor in batch] for batch in islice(loader, count)])
    for number, (theirs, ours) in enumerate(zip(*taken, strict=True)):
        if not all(map(torch.equal, theirs, ours)):
            return number
    return None


def _take(args: argparse.Namespace, name: str, dataset: aegis.TokenDataset, batches: int, times: _Times) -> None:
    with _loader(args, name, dataset) as loader:
        before = time.perf_counter()
        iterator = iter(loader)
        for number in range(batches):
            next(iterator)
            now = time.perf_counter()
            (times.later if number > 0 else times.first).append(now - before)
            before = now
        del iterator  # ends torch's workers


def _figures(times: _Times, tokens: int) -> _Figures:
    median, p99 = np.percentile(times.later, [50, 99]) * 1e6
    return _Figures(
        tokens_per_second=tokens * len(times.later) / sum(times.later),
        median_us=float(median),
        p99_us=float(p99),
        first_batch_ms=float(np.median(times.first)) * 1e3,
    )


def _print(args: argparse.Namespace, figures: dict[str, _Figures], batches: int) -> None:
    compared = min(batches, _COMPARED)
    print(f"{_TURNS} x {batches} batches of {args.batch_size} x {args.block_size} tokens, the first {compared} equal")
    print(f"{'':28}{'tokens/s':>16}{'median us':>12}{'p99 us':>12}{'first, ms':>12}")
    for name, row in figures.items():
        print(
            f"{name:28}{row.tokens_per_second:16,.0f}{row.median_us:12,.1f}{row.p99_us:12,.1f}{row.first_batch_ms:12,.1f}"
        )
    theirs, ours = figures.values()
    print(f"{ours.tokens_per_second / theirs.tokens_per_second:.1f}x the tokens a second, the loader alone")
