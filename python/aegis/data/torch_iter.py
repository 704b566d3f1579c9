"""torch's own iterators over reused slots, counting what they deliver."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from aegis.data.collate import InProcessCollate
from aegis.data.worker import Parcel, Request, WorkerCollate

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from aegis.data.delivery import Delivery
    from aegis.data.order import Progress
    from aegis.data.slots import SlotArena

__all__ = ["MultiProcessIter", "SingleProcessIter", "draws_of"]


class _Undisturbed(AbstractContextManager[None]):
    """Leaves a generator as it was."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self._state = self._generator.get_state()

    def __exit__(self, *_: object) -> None:
        self._generator.set_state(self._state)


def draws_of(loader: DataLoader[Any], progress: Progress) -> AbstractContextManager[None]:
    """Around the making of an iterator: a resumed epoch's draws were made before it was saved, and are not repeated."""
    if not progress.resumed:
        return nullcontext()
    return _Undisturbed(torch.default_generator if loader.generator is None else loader.generator)


# The iterators below are torch's classes between two of ours: _Counting comes before them, and what has to be in place
# before they start workers is set up by a base that torch's __init__ reaches through super().


class _Counting:
    _delivery: Delivery
    _progress: Progress
    _num_yielded: int
    _turns = 0
    """Batches whose turn has come, whether they were made or ended in an error."""

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if not first_iter:
            self._delivery.restart(loader)
        self._progress = self._delivery.progress
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def __next__(self) -> Any:
        turns = self._turns
        try:
            batch = self._made()
        except StopIteration:
            raise
        except Exception:
            if self._turns > turns:  # what follows comes behind it, and so it must in a resumed run
                self._progress.advance()
            raise
        self._progress.advance()
        if self._delivery.chain is not None:
            self._delivery.chain.add_batch(batch)
        return batch

    def _made(self) -> Any:
        if self._dataset_kind == _DatasetKind.Map and not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # As torch does it, less record_function: where nothing records, that is most of the cost of a small batch.
            batch = self._next_data()  # type: ignore[attr-defined]
            self._num_yielded += 1
        else:
            batch = super().__next__()  # type: ignore[misc]
        return batch


class _InProcess(_BaseDataLoaderIter):
    _delivery: Delivery

    @staticmethod
    def pinned_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        if self._collate_fn is default_collate:
            pinned = self.pinned_memory if self._pin_memory else None
            self._collate_fn = InProcessCollate(self._delivery.transport, pinned)


class SingleProcessIter(_Counting, _SingleProcessDataLoaderIter, _InProcess):
    """Batches made in this process. torch's default collation stacks large tensors into slots."""

    def __init__(self, loader: DataLoader[Any], delivery: Delivery) -> None:
        self._delivery = delivery
        self._progress = delivery.progress
        with draws_of(loader, delivery.progress):
            super().__init__(loader)

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        self._turns += 1
        return index


# The queues of iterators whose workers run. An iterator that is garbage in a reference cycle would otherwise lose its
# queues before its __del__ can tell the workers to end, and wait 5 s for each of them.
_queues: dict[int, Any] = {}


class _Parent(_BaseDataLoaderIter):
    _delivery: Delivery

    @staticmethod
    def pin(batch: Any, device: str | None) -> Any:
        """``batch`` with its tensors in memory of torch's pinned allocator."""
        return pin_memory(batch, device)  # type: ignore[no-untyped-call]

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._transport = self._delivery.transport
        self._arena = self._transport.take_arena()
        if self._arena is not None:
            self._collate_fn = WorkerCollate(self._arena.file, self._collate_fn)
        # No thread of torch's to pin batches: they are copied from their slot into pinned memory when they are asked
        # for, and the slot is free again.
        self._pins = self._pin_memory
        self._pin_memory = False


class MultiProcessIter(_Counting, _MultiProcessingDataLoaderIter, _Parent):
    """Batches made by torch's worker processes and brought here through slots of a :class:`SlotArena`."""

    _arena: SlotArena | None = None

    def __init__(self, loader: DataLoader[Any], delivery: Delivery) -> None:
        self._delivery = delivery
        self._progress = delivery.progress
        self._pid = os.getpid()
        with draws_of(loader, delivery.progress):
            super().__init__(loader)
        _queues[id(self)] = (self._index_queues, self._worker_result_queue, self._workers_done_event, self._workers)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                "this iterator was made before fork() and its workers are the parent's: make a new one from the loader"
            )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._check_process()
        super()._reset(loader, first_iter)

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        return index if self._arena is None else Request(index, self._arena.lend(self._send_idx))

    def _try_put_index(self) -> None:
        request = self._send_idx
        super()._try_put_index()
        if self._arena is None:
            return
        if self._send_idx > request:
            self._arena.sent(request, self._task_info[request][0])
        else:  # no indices are left, or no worker to send them to
            self._arena.take_back(request)

    def _try_get_data(self, *timeout: float) -> Any:
        found = super()._try_get_data(*timeout)  # type: ignore[no-untyped-call]
        if not found[0] and self._shutdown:  # by another thread, and nobody is left to answer
            raise RuntimeError("this iterator has been closed")
        return found

    def _get_data(self) -> Any:
        request, data = super()._get_data()  # type: ignore[no-untyped-call]
        arena = self._arena
        if isinstance(data, Parcel):
            if arena is None:  # while this thread waited
                raise RuntimeError("this iterator has been closed")
            try:
                data = arena.open(request, data, self._transport)
            except Exception:
                where = "while a batch from a DataLoader worker process was unpacked"
                data = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        elif arena is not None and isinstance(data, ExceptionWrapper):
            arena.keep(request)
        elif arena is not None and isinstance(data, _IterableDatasetStopIteration):
            arena.take_back_from(data.worker_id)
        return request, data

    def _process_data(self, *data: Any) -> Any:
        self._turns += 1
        return super()._process_data(*data)  # type: ignore[no-untyped-call]

    def _next_data(self) -> Any:
        self._check_process()
        data = super()._next_data()  # type: ignore[no-untyped-call]
        return self.pin(data, self._pin_memory_device) if self._pins else data

    def _shutdown_workers(self) -> None:
        if self._pid != os.getpid():  # a forked child's copy: the workers are its parent's
            return
        super()._shutdown_workers()
        if not getattr(self, "_shutdown", False):
            return
        _queues.pop(id(self), None)
        if self._arena is None:
            return
        arena, self._arena = self._arena, None
        ended = not any(worker.is_alive() for worker in self._workers)
        self._transport.give_back(arena, workers_ended=ended)
