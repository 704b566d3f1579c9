"""The same windows through aegis and through other loaders.

Each is a function of a token file that returns an endless iterator of ``[inputs, targets]`` batches of 64 × 256 int64
tokens, shuffled. It imports its package when the first batch is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH, BLOCK = 64, 256
STRIDE = 7
"""Tokens from the start of a window to that of the next. With 1, the lists that torch shuffles, one in each of several
processes, would take 20 GB; an odd number lets windows begin anywhere in a cache line."""


class PerSample(Dataset[Any]):
    """A data set as most people write it: one window at a time from a memory map."""

    def __init__(self, path: Path) -> None:
        self.data = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.data) - BLOCK - 1) // STRIDE + 1

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = i * STRIDE
        window = torch.from_numpy(self.data[start : start + BLOCK + 1].astype(np.int64))
        return window[:-1], window[1:]


class Vectorised(PerSample):
    """The same with ``__getitems__``: torch fetches a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        places = STRIDE * np.asarray(indices)[:, None] + np.arange(BLOCK + 1)
        rows = torch.from_numpy(self.data[places].astype(np.int64))
        return list(zip(rows[:, :-1].unbind(), rows[:, 1:].unbind(), strict=True))


class Gathered(Vectorised):
    """And with a collate_fn that stacks nothing: the quickest a DataLoader gets."""

    def __getitems__(self, indices: list[int]) -> Any:
        places = STRIDE * np.asarray(indices)[:, None] + np.arange(BLOCK + 1)
        rows = torch.from_numpy(self.data[places].astype(np.int64))
        return [rows[:, :-1], rows[:, 1:]]


def nanogpt(path: Path) -> Iterator[Any]:
    data = np.memmap(path, np.uint16, "r")
    while True:
        starts = torch.randint(len(data) - BLOCK, (BATCH,))
        x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts])
        yield [x, y]


def torch_loader(
    dataset: type[PerSample], workers: int, loader: type[Any] = DataLoader
) -> Callable[[Path], Iterator[Any]]:
    def stream(path: Path) -> Iterator[Any]:
        keep = (lambda batch: batch) if dataset is Gathered else None
        batches = loader(
            dataset(path),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            collate_fn=keep,
            persistent_workers=workers > 0,
        )
        while True:
            yield from batches

    return stream


def aegis_loader(threads: int, **arguments: Any) -> Callable[[Path], Iterator[Any]]:
    def stream(path: Path) -> Iterator[Any]:
        import aegis

        dataset = aegis.TokenDataset(path, BLOCK, dtype="uint16", stride=STRIDE)
        loader = aegis.FlatArenaDataLoader(
            dataset, BATCH, shuffle=True, drop_last=True, seed=0, num_workers=threads, **arguments
        )
        while True:
            yield from loader

    return stream


def stateful(path: Path) -> Iterator[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    yield from torch_loader(PerSample, 0, StatefulDataLoader)(path)


def litdata(path: Path) -> Iterator[Any]:
    """Disjoint blocks, as its token loader has no other kind."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = BinaryWriter(folder, chunk_size=BLOCK * 4096, item_loader=TokensLoader(BLOCK + 1))
        tokens = torch.from_numpy(np.fromfile(path, np.uint16, 4 * 2**20).astype(np.int32))
        for number, part in enumerate(tokens.split(BLOCK * 16)):
            writer[number] = part
        writer.done()
        writer.merge()
        dataset = StreamingDataset(folder, item_loader=TokensLoader(BLOCK + 1), shuffle=True, drop_last=True)
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, drop_last=True)
        while True:
            for rows in loader:
                rows = rows.long()
                yield [rows[:, :-1], rows[:, 1:]]


def grain(path: Path) -> Iterator[Any]:
    import grain.python as pygrain

    class Source:
        def __init__(self) -> None:
            self.data = np.memmap(path, np.uint16, "r")

        def __len__(self) -> int:
            return (len(self.data) - BLOCK - 1) // STRIDE + 1

        def __getitem__(self, i: int) -> np.ndarray:
            start = i * STRIDE
            return self.data[start : start + BLOCK + 1].astype(np.int64)

    windows = pygrain.MapDataset.source(Source()).shuffle(seed=0).batch(BATCH, drop_remainder=True).to_iter_dataset()
    for rows in windows:
        yield [rows[:, :-1], rows[:, 1:]]


def mosaic(path: Path) -> Iterator[Any]:
    from streaming import MDSWriter, StreamingDataset

    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{BLOCK + 1}"}) as out:
            for row in np.fromfile(path, np.uint16, (BLOCK + 1) * 16384).reshape(-1, BLOCK + 1):
                out.write({"tokens": row})
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
        loader = DataLoader(dataset, BATCH, drop_last=True)
        while True:
            for batch in loader:
                rows = batch["tokens"].long()
                yield [rows[:, :-1], rows[:, 1:]]


LOADERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "aegis, 0 threads": aegis_loader(0),
    "aegis, 1 thread": aegis_loader(1, prefetch_factor=8),
    "nanoGPT's loop": nanogpt,
    "DataLoader, 0 workers": torch_loader(PerSample, 0),
    "DataLoader, 2 workers": torch_loader(PerSample, 2),
    "DataLoader, `__getitems__`": torch_loader(Vectorised, 0),
    "DataLoader, `__getitems__` and no collation": torch_loader(Gathered, 0),
    "StatefulDataLoader": stateful,
    "litData, 0 workers": litdata,
    "grain": grain,
    "mosaic streaming": mosaic,
}
PACKAGES = {
    "StatefulDataLoader": "torchdata",
    "litData, 0 workers": "litdata",
    "grain": "grain",
    "mosaic streaming": "mosaicml-streaming",
}
"""Of loaders that may be missing."""
