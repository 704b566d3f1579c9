"""Batches cut on the device from token files that lie there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegis import ops
from aegis.data.order import Progress, index_batches
from aegis.data.token_dataset import TokenDataset
from aegis.data.torch_iter import draws_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from aegis.evidence.chain import IntegrityChain

__all__ = ["ResidentIter", "ResidentTokens"]


class ResidentTokens:
    """All files of ``dataset`` as one tensor on a device, and windows of it.

    Needs as much memory there as the files have bytes. Raises RuntimeError where a file was cut short while it was
    read. ``dataset`` has plain windows.
    """

    def __init__(self, dataset: TokenDataset, device: torch.device) -> None:
        self._dataset = dataset
        dataset.verify()
        self._arena = dataset.arena if device.type == "cpu" else dataset.arena.to(device)
        dataset.verify()  # a file cut short reads as zeroes

    def batch(self, rows: NDArray[np.int64]) -> list[Tensor]:
        """Inputs and targets of these windows, as the loader's native path writes them."""
        offsets = self._dataset.offsets(rows)
        # From ordinary memory: read before this returns, though the copy's end is not waited for.
        offsets = offsets.to(self._arena.device, non_blocking=True)
        return list(ops.extract_batch(self._arena, offsets, self._dataset.block_size))


class ResidentIter(Iterator[Any]):
    """Batches of one epoch: eight bytes a row cross the bus. Kernels run on the current stream."""

    def __init__(
        self, loader: DataLoader[Any], tokens: ResidentTokens, progress: Progress, chain: IntegrityChain | None
    ) -> None:
        self._tokens = tokens
        self._progress = progress
        self._chain = chain
        self._length = len(loader)
        with draws_of(loader, progress):  # torch's iterators draw this, and go by the generator's state afterwards
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._batches = index_batches(loader.batch_sampler, progress)

    def __iter__(self) -> ResidentIter:
        return self

    def __len__(self) -> int:
        return self._length

    def __next__(self) -> list[Tensor]:
        rows = next(self._batches)
        self._progress.advance()  # of a batch that ends in an error too: it had its turn
        batch = self._tokens.batch(np.asarray(rows, dtype=np.int64))
        if self._chain is not None:
            self._chain.add_batch(batch)
        return batch
