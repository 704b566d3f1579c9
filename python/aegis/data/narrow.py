"""Token windows that cross the bus as they lie in their files, and are widened on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import default_collate

from aegis import ops
from aegis.data.link import Link
from aegis.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from aegis.data.loader import FlatArenaDataLoader

__all__ = ["Widener", "Windows", "check_windows"]


def check_windows(loader: FlatArenaDataLoader, option: str) -> None:
    """ValueError where the batches of ``loader`` are not plain windows, which a device can cut by itself as ``option``
    asks."""
    if loader.device is None:
        raise ValueError(f"device: expected one beside {option}=True, got None")
    if loader.narrow and loader.resident:
        raise ValueError("narrow: expected False with resident=True, for no tokens cross the bus then, got True")
    if loader.batch_sampler is None or loader.collate_fn is not default_collate:
        raise ValueError(f"{option}: expected batches, and no collate_fn: inputs and targets are cut on the device")
    if loader.tail == "pad":
        raise ValueError(f"tail: expected None or 'wrap' with {option}=True, got 'pad'")
    if type(loader.dataset) is not TokenDataset or not loader.dataset.plain:
        kind = type(loader.dataset).__name__
        more = " with them" if isinstance(loader.dataset, TokenDataset) else ""
        raise ValueError(f"{option}: expected a TokenDataset without documents and fields, got a {kind}{more}")


@dataclass(frozen=True, slots=True)
class Windows:
    """A batch on the host: (B, block_size + 1) tokens in the files' dtype."""

    tokens: Tensor

    @classmethod
    def of(cls, written: list[Tensor]) -> Windows:
        """Of what a filler of windows has written."""
        return cls(*written)

    def widened(self) -> list[Tensor]:
        """The batch that it stands for, on the host: inputs and targets."""
        rows, width = self.tokens.shape
        starts = torch.arange(0, rows * width, width, device="cpu")
        return list(ops.extract_batch(self.tokens.view(-1), starts, width - 1))


class Widener:
    """Batches of one iterator. The copies' queue does one thing after another, so one buffer is enough for all of them:
    windows are written to it when those before have been read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bytes: Tensor | None = None
        self._starts: Tensor | None = None  # of the windows of a batch, which are as wide in all batches

    def __call__(self, windows: Windows, place: Callable[[tuple[int, ...], torch.dtype], Tensor]) -> list[Tensor]:
        """Asks for the copy of ``windows``, and for inputs and targets of them in memory from ``place``."""
        rows, width = windows.tokens.shape
        narrow = self._memory(windows.tokens)
        starts = self._starts_of(rows, width)
        inputs = place((rows, width - 1), torch.int64)
        targets = place((rows, width - 1), torch.int64)
        self._link.copy(narrow, windows.tokens)
        self._link.run(lambda: ops.extract_batch(narrow.view(-1), starts, inputs=inputs, targets=targets))
        return [inputs, targets]

    def _memory(self, like: Tensor) -> Tensor:
        if self._bytes is None or self._bytes.numel() < like.nbytes:
            self._bytes = self._link.empty((like.nbytes,), torch.uint8)
        return self._bytes[: like.nbytes].view(like.dtype).view(like.shape)

    def _starts_of(self, rows: int, width: int) -> Tensor:
        if self._starts is None or len(self._starts) < rows:
            starts = self._link.empty((rows,), torch.int64)
            self._link.run(lambda: torch.arange(0, rows * width, width, out=starts, device=starts.device))
            self._starts = starts
        return self._starts[:rows]
