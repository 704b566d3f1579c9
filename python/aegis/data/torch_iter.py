"""torch's own iterators, counting what they deliver."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

if TYPE_CHECKING:
    from aegis.data.loader import FlatArenaDataLoader
    from aegis.data.order import Progress

__all__ = ["MultiProcessIter", "SingleProcessIter", "draws_of"]


class _Undisturbed(AbstractContextManager[None]):
    """Leaves a generator as it was."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self._state = self._generator.get_state()

    def __exit__(self, *_: object) -> None:
        self._generator.set_state(self._state)


def draws_of(loader: FlatArenaDataLoader) -> AbstractContextManager[None]:
    """Around the making of an iterator: a resumed epoch's draws were made before it was saved, and are not repeated."""
    if not loader._progress.resumed:
        return nullcontext()
    return _Undisturbed(torch.default_generator if loader.generator is None else loader.generator)


class _Counting:
    _progress: Progress

    def _reset(self, loader: FlatArenaDataLoader, first_iter: bool = False) -> None:
        self._progress = loader._progress
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def __next__(self) -> Any:
        batch = super().__next__()  # type: ignore[misc]
        self._progress.batches += 1
        return batch


class SingleProcessIter(_Counting, _SingleProcessDataLoaderIter):
    def __init__(self, loader: FlatArenaDataLoader) -> None:
        self._progress = loader._progress
        with draws_of(loader):
            super().__init__(loader)


class MultiProcessIter(_Counting, _MultiProcessingDataLoaderIter):
    def __init__(self, loader: FlatArenaDataLoader) -> None:
        self._progress = loader._progress
        with draws_of(loader):
            super().__init__(loader)
