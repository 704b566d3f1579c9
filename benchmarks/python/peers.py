"""The same windows through other loaders: what feeds a training loop without aegis.

Each peer is a function of a token file that returns an endless iterator of ``[inputs, targets]`` batches of
64 × 256 int64 tokens, shuffled. Those whose package is not installed are left out, and named.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH, BLOCK = 64, 256


class PerSample(Dataset[Any]):
    """A data set as most people write it: one window at a time from a memory map."""

    def __init__(self, path: Path) -> None:
        self.data = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.data) - BLOCK

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.from_numpy(self.data[i : i + BLOCK + 1].astype(np.int64))
        return window[:-1], window[1:]


class Vectorised(PerSample):
    """The same with ``__getitems__``: torch fetches a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows = torch.from_numpy(self.data[np.asarray(indices)[:, None] + np.arange(BLOCK + 1)].astype(np.int64))
        return list(zip(rows[:, :-1].unbind(), rows[:, 1:].unbind(), strict=True))


class Gathered(Vectorised):
    """And with a collate_fn that stacks nothing: the quickest a DataLoader gets."""

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.from_numpy(self.data[np.asarray(indices)[:, None] + np.arange(BLOCK + 1)].astype(np.int64))
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
    def batches(path: Path) -> Iterator[Any]:
        keep = (lambda batch: batch) if dataset is Gathered else None
        yield from loader(
            dataset(path),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            collate_fn=keep,
            persistent_workers=workers > 0,
        )

    return batches


def aegis_loader(threads: int, **arguments: Any) -> Callable[[Path], Iterator[Any]]:
    def batches(path: Path) -> Iterator[Any]:
        dataset = aegis.TokenDataset(path, BLOCK, dtype="uint16", stride=1)
        yield from aegis.FlatArenaDataLoader(
            dataset, BATCH, shuffle=True, drop_last=True, seed=0, num_workers=threads, **arguments
        )

    return batches


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
            return len(self.data) - BLOCK

        def __getitem__(self, i: int) -> np.ndarray:
            return self.data[i : i + BLOCK + 1].astype(np.int64)

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


PEERS: dict[str, tuple[str | None, Callable[[Path], Iterator[Any]]]] = {
    "nanoGPT's loop": (None, nanogpt),
    "DataLoader, 0 workers": (None, torch_loader(PerSample, 0)),
    "DataLoader, 2 workers": (None, torch_loader(PerSample, 2)),
    "DataLoader, `__getitems__`": (None, torch_loader(Vectorised, 0)),
    "DataLoader, `__getitems__` and no collation": (None, torch_loader(Gathered, 0)),
    "StatefulDataLoader": ("torchdata", stateful),
    "litData, 0 workers": ("litdata", litdata),
    "grain": ("grain", grain),
    "mosaic streaming": ("streaming", mosaic),
}


def _usable(package: str | None) -> bool:
    """Whether it is there and can be imported beside this torch."""
    try:
        return package is None or importlib.import_module(package) is not None
    except (ImportError, RuntimeError):
        return False


def installed() -> dict[str, Callable[[Path], Iterator[Any]]]:
    return {name: peer for name, (package, peer) in PEERS.items() if _usable(package)}


def missing() -> list[str]:
    return [name for name, (package, _) in PEERS.items() if not _usable(package)]


def checked(name: str, iterator: Iterator[Any]) -> Iterator[Any]:
    """The iterator, after its first batch has been looked at: shape, type and targets one token later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = next(iterator)
    assert tuple(x.shape) == tuple(y.shape) == (BATCH, BLOCK), name
    assert str(x.dtype).endswith("int64"), name
    assert (torch.as_tensor(x)[:, 1:] == torch.as_tensor(y)[:, :-1]).all(), name
    return iterator
