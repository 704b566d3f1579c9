"""Iteration over batches that C++ threads write: no worker processes, no Python per sample."""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.dtypes import DTYPES
from aegis.data.order import SeededSampler, index_batches
from aegis.data.torch_iter import draws_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from aegis.data.delivery import Delivery

__all__ = ["NativeIter"]

_live: weakref.WeakSet[NativeIter] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for iterator in list(_live):
        iterator.close()


class NativeIter(_BaseDataLoaderIter):
    """Batches of one epoch. Made by the loader; closes itself when dropped."""

    def __init__(self, loader: DataLoader[Any], delivery: Delivery) -> None:
        self._delivery = delivery
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
        self._progress = self._delivery.progress
        self._pinned: deque[list[Tensor]] = deque()
        self._num_taken = 0  # from the feeder
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
            while not self._feeder.full and self._submit():
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
        indices = next(self._indices, None)
        if indices is None:
            return False
        if self._pin_memory:
            tensors = self._pinned_batch(len(indices))
            self._feeder.submit_into(indices, [tensor.data_ptr() for tensor in tensors])
            self._pinned.append(tensors)
        else:
            self._feeder.submit(indices)
        return True

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
                return self._next_data()
        return self._next_data()

    def _next_data(self) -> Any:
        if self._check is not None:
            self._check()
        if self._num_workers == 0 and self._indices is not None:
            self._submit()
        try:
            batch = self._feeder.next(self._timeout)
        except BaseException:
            # A batch that ended in an error had its turn, and a resumed run goes on behind it.
            if self._feeder.taken > self._num_taken:
                self._delivered()
                if self._pinned:
                    self._pinned.popleft()
            raise
        self._delivered()
        tensors: list[Tensor] = self._pinned.popleft() if batch is None else batch
        return tensors if self._structure is None else self._structure(tensors)

    def _delivered(self) -> None:
        self._num_taken += 1
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
            self._feeder.stop()
            totals = self._delivery.totals
            for name, value in self._feeder.stats().items():
                totals[name] = totals.get(name, 0) + value
            totals["ready"] = 0
            self._pinned.clear()

    def __del__(self) -> None:
        if hasattr(self, "_feeder"):
            self.close()
