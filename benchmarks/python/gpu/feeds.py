"""Where the training benchmarks' batches come from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from report import Options
from torch import Tensor
from torch.utils.data import DataLoader

VOCAB = 256
BLOCK = 256  # tokens in a window


def token_file(folder: str, tokens: int) -> Path:
    """Random uint16 ids below VOCAB."""
    path = Path(folder) / "tokens.bin"
    np.random.default_rng(1).integers(0, VOCAB, tokens, dtype=np.uint16).tofile(path)
    return path


class Feeds:
    """Endless batches of (inputs, targets) on the device from several sources over one file.

    Iterators live as long as this object, so a round of measurement starts no workers.
    """

    def __init__(self, options: Options, batch: int, block: int = BLOCK) -> None:
        self.options = options
        self.folder = tempfile.TemporaryDirectory()
        path = token_file(self.folder.name, 200_000 if options.quick else 40_000_000)
        self.dataset = aegis.TokenDataset(path, block, dtype="uint16", stride=1)
        pin = options.cuda
        torch_loader: DataLoader[list[Tensor]] = DataLoader(
            self.dataset, batch, shuffle=True, num_workers=2, pin_memory=pin, drop_last=True
        )

        def ours(**more: Any) -> aegis.FlatArenaDataLoader:
            return aegis.FlatArenaDataLoader(self.dataset, batch, shuffle=True, drop_last=True, seed=1, **more)

        device = options.device
        self.loaders: dict[str, DataLoader[list[Tensor]]] = {
            "torch DataLoader": torch_loader,
            "aegis": ours(num_workers=1, pin_memory=pin),
            "aegis, device": ours(num_workers=1, device=device, reuse=True),
            "aegis, narrow": ours(num_workers=1, device=device, reuse=True, narrow=True),
            "aegis, resident": ours(device=device, resident=True),
        }
        generator = torch.Generator().manual_seed(1)
        self.resident = torch.randint(0, VOCAB, (16, 2, batch, block), generator=generator).to(options.device)
        self.iterators = {name: self._batches(name) for name in self.names()}

    def names(self) -> list[str]:
        return [*self.loaders, "resident synthetic"]

    def next(self, name: str) -> tuple[Tensor, Tensor]:
        return next(self.iterators[name])

    def _batches(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        if name == "resident synthetic":
            while True:
                for pair in self.resident:
                    yield pair[0], pair[1]
        while True:
            for x, y in self.loaders[name]:
                yield (
                    x.to(self.options.device, non_blocking=True),
                    y.to(self.options.device, non_blocking=True),
                )

    def close(self) -> None:
        for iterator in self.iterators.values():
            iterator.close()
        for loader in self.loaders.values():
            if isinstance(loader, aegis.FlatArenaDataLoader):
                loader.close()
        self.folder.cleanup()
