"""What a loader keeps from iterator to iterator: which way its batches come, the epoch it is in, and memory."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from aegis import _C
from aegis.data.native import NativeIter
from aegis.data.native_source import NativeSource, native_source
from aegis.data.order import Progress
from aegis.data.torch_iter import MultiProcessIter, SingleProcessIter
from aegis.data.transport import Transport

if TYPE_CHECKING:
    from aegis.evidence.chain import IntegrityChain

__all__ = ["Delivery"]


class Delivery:
    """Belongs to one loader, which may be any ``DataLoader``. Its iterators hold this and not the loader."""

    def __init__(
        self,
        progress: Progress,
        *,
        reuse: bool = False,
        chain: IntegrityChain | None = None,
        pins: _C.DevicePins | None = None,
        narrow: bool = False,
    ) -> None:
        self.progress = progress
        """Of the newest iterator, or of the next where that is news."""
        self.reuse = reuse
        self.chain = chain
        """Gets every batch, in the turn in which it is delivered and before the user has it."""
        self.narrow = narrow
        """Whether plain windows of tokens come as :class:`~aegis.data.narrow.Windows`."""
        self.source: NativeSource | None = None
        self.why = ""
        """Which way batches come, and why: starts with "native", "arena" or "torch"."""
        self.totals: dict[str, float] = {}  # of native iterators that are closed
        self.transport = Transport(pins)
        self._pins = pins
        self._process = os.getpid()
        self._pool: _C.SlotPool | None = None
        self._iterators: weakref.WeakSet[_BaseDataLoaderIter] = weakref.WeakSet()

    def choose_path(self, loader: DataLoader[Any]) -> None:
        """Sets ``source`` and ``why`` for the data set and the collation that ``loader`` has now."""
        kind = type(loader.dataset).__name__
        # A framework may have rebuilt a loader of ours as a plain one around its sampler.
        pads = getattr(getattr(loader.batch_sampler, "sampler", loader.sampler), "tail", None) == "pad"
        self.source = None
        if loader.collate_fn is default_collate:
            self.source = native_source(loader.dataset, pads=pads, narrow=self.narrow)
        if self.source is not None:
            writer = f"{loader.num_workers} filler thread(s)" if loader.num_workers else "the calling thread"
            self.why = f"native: batches of a {kind} are written by {writer}"
        elif loader.collate_fn is default_collate:
            self.choose_python(loader, f"the samples of a {kind} are made by Python")
        else:
            what = "batch_size=None" if loader.batch_sampler is None else "collate_fn"
            self.choose_python(loader, f"{what} asks for samples one by one")

    def choose_python(self, loader: DataLoader[Any], reason: str) -> None:
        """The path of samples that Python makes."""
        self.source = None
        if loader.num_workers > 0:
            self.why = f"arena: {reason}; {loader.num_workers} worker process(es) write batches into shared slots"
        elif loader.collate_fn is default_collate:
            self.why = f"arena: {reason}; large batches are collated into reused slots"
        else:
            self.why = f"torch: {reason}"

    def iterator(self, loader: DataLoader[Any]) -> _BaseDataLoaderIter:
        """A new iterator, on the path chosen, through the epoch of ``progress``."""
        self._leave_to_parent()
        iterator: _BaseDataLoaderIter
        if loader.num_workers > 0:
            loader.check_worker_number_rationality()
        if self.source is not None:
            iterator = NativeIter(loader, self)
        elif loader.num_workers == 0:
            iterator = SingleProcessIter(loader, self)
        else:
            iterator = MultiProcessIter(loader, self)
        self._iterators.add(iterator)
        return iterator

    def restart(self, loader: DataLoader[Any]) -> None:
        """Called by an iterator that starts anew, before it reads ``progress`` and ``source``."""

    def _leave_to_parent(self) -> None:
        """In a forked child: the iterators and slots that it inherits are the parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._pool = None
            self._iterators = weakref.WeakSet()

    def slot_pool(self, batch_size: int, filler: _C.BatchFiller, depth: int) -> _C.SlotPool:
        """Slots for the ring and for the two batches that a ``for`` loop holds; kept from epoch to epoch."""
        self._leave_to_parent()
        if self._pool is None:
            rows = min(batch_size, filler.samples)
            batches = -(-filler.samples // rows)
            # Where all data is a batch or two, one for each of them and for those of the epoch before.
            self._pool = _C.SlotPool(max(1, filler.batch_bytes(rows)), min(depth + 2, 2 * batches), self._pins)
        return self._pool

    def stats(self) -> dict[str, float]:
        """Counters of the path chosen, as :meth:`aegis.FlatArenaDataLoader.stats` explains them."""
        self._leave_to_parent()
        totals = dict(self.totals)
        for iterator in list(self._iterators):
            if isinstance(iterator, NativeIter) and iterator.live:
                for name, value in iterator.stats().items():
                    totals[name] = totals.get(name, 0) + value
        if self.source is None:
            totals.update(self.transport.stats())
        if self._pool is not None:
            pool = self._pool.stats()
            totals.update(slots=pool["slots"], held_slots=pool["held"], fresh_slots=pool["fresh"])
        return totals

    def close(self) -> None:
        """Ends threads and worker processes. Batches already handed out stay valid. Can be repeated."""
        self._leave_to_parent()
        for iterator in list(self._iterators):
            if isinstance(iterator, NativeIter):
                iterator.close()
            elif isinstance(iterator, MultiProcessIter):
                iterator._shutdown_workers()
        self._pool = None
        self.transport.close()
