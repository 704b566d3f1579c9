"""Shuffled batches of 4,096 records: FlatArenaDataLoader against torch's DataLoader and a plain indexing loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH = 4096
TORCH, LOOP = "DataLoader, 0 workers", "indexing loop"
Batches = Iterator[list[Tensor]]


def endless(epoch: Callable[[], Any], convert: Callable[[Any], Any] = lambda batch: batch) -> Callable[[], Any]:
    """What gives the next batch, epoch after epoch."""
    batches = (convert(batch) for _ in itertools.count() for batch in epoch())
    return lambda: next(batches)


def contenders(
    plain: Dataset[Any], ours: Dataset[Any], columns: list[Tensor], convert: Callable[[Any], Any]
) -> dict[str, Callable[[], Any]]:
    """Each of them gives shuffled batches. The indexing loop is what a user writes who knows that all is tensors."""
    rows = len(columns[0])

    def indexing() -> Batches:
        return ([column[part] for column in columns] for part in torch.randperm(rows).split(BATCH))

    def loader(threads: int) -> aegis.FlatArenaDataLoader:
        made = aegis.FlatArenaDataLoader(ours, BATCH, shuffle=True, num_workers=threads)
        assert made.path.startswith("native")
        return made

    torchs = DataLoader(plain, BATCH, shuffle=True)
    for threads in (0, 1):
        torch.manual_seed(1)
        expected = convert(next(iter(torchs)))
        torch.manual_seed(1)
        assert all(map(torch.equal, next(iter(loader(threads))), expected))
    inline, threaded = loader(0), loader(1)
    return {
        TORCH: endless(lambda: torchs, convert),
        LOOP: endless(indexing, convert),
        "0 threads": endless(lambda: inline),
        "1 thread": endless(lambda: threaded),
    }


def floats(rows: int, width: int) -> dict[str, Callable[[], Any]]:
    columns = [torch.randn(rows, width), torch.arange(rows)]
    dataset = TensorDataset(*columns)
    return contenders(dataset, dataset, columns, lambda batch: batch)


def images(rows: int) -> dict[str, Callable[[], Any]]:
    """uint8 images, wanted as normalised float32."""
    data = torch.empty(rows * 384, dtype=torch.int64).random_().view(torch.uint8).view(rows, 3, 32, 32)
    scale, bias = torch.tensor([0.017, 0.0175, 0.0174]), torch.tensor([-2.1, -2.0, -1.8])
    a, b = scale.view(3, 1, 1), bias.view(3, 1, 1)
    ours = aegis.RecordDataset((data,), scale={0: scale}, bias={0: bias})
    return contenders(TensorDataset(data), ours, [data], lambda batch: [batch[0].float().mul_(a).add_(b)])


def build(quick: bool) -> Table:
    """Shuffled batches of records."""
    torch.set_num_threads(1)
    rows = 50_000 if quick else 1_000_000
    table = Table(f"Shuffled batches of {BATCH:,} records out of {rows:,}")
    for what, make in (
        ("float32 × 16 and an int64", lambda: floats(rows, 16)),
        ("float32 × 64 and an int64", lambda: floats(rows, 64)),
        ("uint8 3 × 32 × 32, normalised to float32", lambda: images(rows)),
    ):
        seconds = interleave(make(), rounds=2 if quick else 6, burst=5, warmup=1)
        us = {name: median(times) * 1e6 for name, times in seconds.items()}
        for ours in ("0 threads", "1 thread"):
            table.ratio(f"{what}, {ours}", TORCH, us[TORCH], us[ours], "µs", 10)
            table.ratio(f"{what}, {ours}", LOOP, us[LOOP], us[ours], "µs", 1)
    table.notes.append(
        "First batches are compared bit for bit. torch computes with one thread, as the kernels do; the consumer takes "
        "batches and does not read them. The indexing loop is `source[permutation[i : i + 4096]]` for each tensor."
    )
    return table


if __name__ == "__main__":
    main(build)
