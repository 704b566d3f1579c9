"""Iteration over batches that C++ threads write: no worker processes, no Python per sample."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.dtypes import DTYPES
from aegis.data.order import SeededSampler, index_batches
from aegis.data.torch_iter import draws_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from aegis.data.delivery import Delivery

__all__ = ["NativeIter"]

_END = object()

_live: weakref.WeakSet[NativeIter] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for iterator in list(_live):
        iterator.close()


class NativeIter(_BaseDataLoaderIter):
    """Batches of one epoch. Made by the loader; closes itself when dropped."""

    def __init__(self, loader: DataLoader[Any], delivery: Delivery) -> None:
        self._delivery = delivery
        self._pid = os.getpid()
        with draws_of(loader, delivery.progress):
            super().__init__(loader)
        # In torch's words, and as there once the base seed is drawn.
        if loader.num_workers > 0 and not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        if loader.num_workers == 0 and loader.timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._start(loader)

    def _start(self, loader: DataLoader[Any]) -> None:
        source = self._delivery.source
        assert source is not None
        source.filler.verify()
        self._filler = source.filler
        self._structure = source.structure
        self._check = source.check
        if self._num_workers > 0:
            source.hold()
        self._progress = self._delivery.progress
        self._pinned: deque[list[Tensor]] = deque()
        self._num_taken = 0  # from the feeder
        self._num_asked = self._num_given = 0  # turns
        self._others: dict[int, Any] = {}  # indices, by their turn, that are not numbers of samples
        depth = max(1, self._num_workers * (loader.prefetch_factor or 0))
        self._feeder = _C.Feeder(
            self._filler,
            self._delivery.slot_pool(loader.batch_size or 1, self._filler, depth),
            threads=self._num_workers,
            depth=depth,
            from_dlpack=from_dlpack,
            reuse=self._delivery.reuse,
        )
        _live.add(self)
        self._indices = self._index_source(loader)
        if self._indices is not None and self._num_workers > 0:
            while self._num_asked < depth and self._submit():
                pass

    def _index_source(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        """Where indices come from; None when the feeder makes them itself."""
        if isinstance(loader.sampler, SeededSampler) and not self._pin_memory:
            self._feeder.follow(loader.sampler.schedule(self._progress.epoch, self._progress.start))
            return None
        return index_batches(loader.batch_sampler, self._progress)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self.close()
        super()._reset(loader, first_iter)
        self._delivery.restart(loader)
        self._start(loader)

    def _submit(self) -> bool:
        """Asks for one more batch; False when the order is at its end."""
        assert self._indices is not None
        indices = next(self._indices, _END)
        if indices is _END:
            return False
        try:
            self._ask(indices)
        except (TypeError, OverflowError):
            numbers = _numbers(indices)
            if numbers is None:
                self._others[self._num_asked] = indices
            else:
                self._ask(numbers)
        self._num_asked += 1
        return True

    def _ask(self, indices: Any) -> None:
        if not self._pin_memory:
            self._feeder.submit(indices)
            return
        tensors = self._pinned_batch(len(indices))
        self._feeder.submit_into(indices, [tensor.data_ptr() for tensor in tensors])
        self._pinned.append(tensors)

    def _pinned_batch(self, count: int) -> list[Tensor]:
        """Pinned memory comes from torch's allocator, fresh for each batch: it alone knows of the copies that users
        start, and gives a block out again only when they are done."""
        return [
            torch.empty((count, *shape), dtype=DTYPES[code, bits], pin_memory=True)
            for code, bits, shape in self._filler.fields
        ]

    def __next__(self) -> Any:
        # torch enters record_function for every batch, which costs more than the rest of this call.
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            with record_function(self._profile_name):
                batch = self._next_data()
        else:
            batch = self._next_data()
        if self._delivery.chain is not None:
            self._delivery.chain.add_batch(batch)
        return batch

    def _next_data(self) -> Any:
        if self._num_workers == 0 and self._indices is not None:
            if self._check is not None:
                self._check()
            self._submit()
        if self._num_given in self._others:
            return self._fetched(self._others.pop(self._num_given))
        try:
            batch = self._feeder.next(self._timeout)
        except BaseException:
            # A batch that ended in an error had its turn, and a resumed run goes on behind it.
            if self._feeder.taken > self._num_taken:
                self._taken()
                if self._pinned:
                    self._pinned.popleft()
            raise
        self._taken()
        tensors: list[Tensor] = self._pinned.popleft() if batch is None else batch
        if self._check is not None:
            self._check()  # the memory that was read is still there, so it was when it was read
        return tensors if self._structure is None else self._structure(tensors)

    def _fetched(self, indices: Any) -> Any:
        """A batch of anything but numbers: slices, masks, nothing at all. What that means to the data set, or which
        error it is, only the data set can say."""
        self._delivered()
        kind, dataset = self._dataset_kind, self._dataset
        fetcher = _DatasetKind.create_fetcher(kind, dataset, True, self._collate_fn, self._drop_last)  # type: ignore[no-untyped-call]
        batch = fetcher.fetch(indices)
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch  # type: ignore[no-untyped-call]

    def _taken(self) -> None:
        self._num_taken += 1
        self._delivered()

    def _delivered(self) -> None:
        self._num_given += 1
        self._num_yielded += 1
        self._progress.advance()
        if self._num_workers > 0 and self._indices is not None:
            self._submit()

    @property
    def live(self) -> bool:
        return self in _live

    def stats(self) -> dict[str, float]:
        return self._feeder.stats()

    def close(self) -> None:
        """Ends the filler threads. Batches already handed out stay valid."""
        if self in _live:
            _live.discard(self)
            self._pinned.clear()
            if self._pid != os.getpid():  # a forked child's copy: the threads are its parent's
                return
            self._feeder.stop()
            totals = self._delivery.totals
            for name, value in self._feeder.stats().items():
                totals[name] = totals.get(name, 0) + value

    def __del__(self) -> None:
        if hasattr(self, "_feeder"):
            self.close()


def _numbers(indices: Any) -> Any:
    """What the feeder takes in place of ``indices``, where that means the same to every data set; else None."""
    if type(indices) is range:
        return list(indices) or None
    if type(indices) is Tensor and indices.ndim == 1 and indices.dtype is torch.int64 and len(indices) > 0:
        return indices.numpy(force=True)
    if type(indices) in (list, tuple) and indices:
        numbers = [index.item() if _is_number(index) else index for index in indices]
        return numbers if all(type(number) is int and -(2**63) <= number < 2**63 for number in numbers) else None
    return None


def _is_number(index: Any) -> bool:
    return type(index) is Tensor and index.ndim == 0 and index.dtype is torch.int64
