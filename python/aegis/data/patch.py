"""torch's own DataLoader through aegis: for scripts and frameworks that name the class themselves."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from aegis.data.delivery import Delivery
from aegis.data.order import Progress, SeededSampler

__all__ = ["TorchPatch", "delivered", "patch_torch", "stats"]

_PATHS = ("native", "arena", "torch")

_batches: Counter[str] = Counter()  # of all loaders, by path
_deliveries: weakref.WeakKeyDictionary[DataLoader[Any], _PlainDelivery] = weakref.WeakKeyDictionary()
_active: set[TorchPatch] = set()


class _Tally(Progress):
    """Counts the batches of one iterator where :func:`delivered` and :func:`stats` find them."""

    def __init__(self, delivery: _PlainDelivery, loader: DataLoader[Any]) -> None:
        sampler = _seeded(loader)
        super().__init__(epoch=0 if sampler is None else sampler.epoch)
        self._path = delivery.why.partition(":")[0]
        self._counts = delivery.counts

    def advance(self) -> None:
        super().advance()
        self._counts[self._path] += 1
        _batches[self._path] += 1


class _PlainDelivery(Delivery):
    """Of a loader that knows nothing of it: each epoch is a first one, with torch's draws."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        super().__init__(Progress(epoch=0))

    def choose_path(self, loader: DataLoader[Any]) -> None:
        super().choose_path(loader)
        if self.source is None:
            return
        # Nobody has asked for threads in place of workers, so nothing that the user would have run is left out.
        if loader.num_workers > 0 and loader.worker_init_fn is not None:
            self.choose_python(loader, "worker_init_fn is to be called in worker processes")
        elif type(loader)._index_sampler is not DataLoader._index_sampler:
            self.choose_python(loader, f"a {type(loader).__name__} chooses indices by itself")
        elif not _schedule_fits(loader):
            self.choose_python(loader, "the batches of a SeededSampler are cut otherwise")

    def begin(self, loader: DataLoader[Any]) -> _BaseDataLoaderIter:
        self.choose_path(loader)
        self.progress = _Tally(self, loader)
        return self.iterator(loader)

    def restart(self, loader: DataLoader[Any]) -> None:
        # An iterator keeps its path as long as it lives, as torch's workers keep their copy of the data set.
        self.progress = _Tally(self, loader)


def _seeded(loader: DataLoader[Any]) -> SeededSampler | None:
    """The sampler of a :class:`~aegis.FlatArenaDataLoader` where a framework has rebuilt that as a plain loader."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return sampler if isinstance(sampler, SeededSampler) else None


def _schedule_fits(loader: DataLoader[Any]) -> bool:
    sampler, batches = _seeded(loader), loader.batch_sampler
    if sampler is None:
        return True
    cut = getattr(batches, "batch_size", None), getattr(batches, "drop_last", None)
    return cut == (sampler.batch_size, sampler.drop_last)


def _get_iterator(loader: DataLoader[Any]) -> _BaseDataLoaderIter:
    """In place of ``DataLoader._get_iterator``."""
    kind = type(loader)
    overridden = kind._get_iterator is not _get_iterator  # which calls this through super()
    if not _active or overridden or kind.__hash__ is not object.__hash__:
        return _original(loader)
    delivery = _deliveries.get(loader)
    if delivery is None:
        delivery = _deliveries[loader] = _PlainDelivery()
    return delivery.begin(loader)


_original: Callable[[DataLoader[Any]], _BaseDataLoaderIter] = DataLoader._get_iterator


class TorchPatch:
    """One call of :func:`aegis.patch_torch`. As a context manager, undoes itself at the end of the block."""

    def undo(self) -> None:
        """Takes this patch back; with the last one, torch's class is as it was. Can be repeated."""
        _active.discard(self)
        # Where somebody else has replaced the method meanwhile, theirs stays, and ours under it calls torch's.
        if not _active and DataLoader._get_iterator is _get_iterator:
            DataLoader._get_iterator = _original  # type: ignore[method-assign, assignment]

    def __enter__(self) -> TorchPatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_torch() -> TorchPatch:
    """From now on, iterators of plain ``torch.utils.data.DataLoader`` objects deliver their batches through aegis.

    Also of loaders that exist already and of those that frameworks build. Order, random draws, batches and errors are
    torch's; a :class:`~aegis.TokenDataset`, a :class:`~aegis.RecordDataset` and torch's ``TensorDataset`` take the
    native path (with worker processes all the same where a ``worker_init_fn`` is given), everything else the arena, as
    :class:`~aegis.FlatArenaDataLoader` explains. Subclasses with a ``_get_iterator`` of their own are left alone.

    ``with patch_torch():`` ends with the block; otherwise :meth:`~aegis.data.patch.TorchPatch.undo` ends it. Patches
    nest, and iterators made under one live on after it. Other processes are not touched: worker processes need no
    patch, and a process that makes loaders of its own calls this itself.
    """
    global _original
    if not _active and DataLoader._get_iterator is not _get_iterator:
        _original = DataLoader._get_iterator
        DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign, assignment]
    patch = TorchPatch()
    _active.add(patch)
    return patch


def stats() -> dict[str, int]:
    """Batches that patched loaders have delivered in this process, by path: ``native``, ``arena`` and ``torch``.

    ``torch`` counts those that a patch could not help: without worker processes, with a ``collate_fn`` of the user's.
    """
    return {path: _batches[path] for path in _PATHS}


def delivered(loader: DataLoader[Any]) -> dict[str, int]:
    """The same of one loader; a framework may hand out a wrapper around it, of which nothing is known here."""
    delivery = _deliveries.get(loader)
    return {path: 0 if delivery is None else delivery.counts[path] for path in _PATHS}
