"""Batches of any path on a device: copied on a stream of their own while the consumer works on those before."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from aegis.data.device_memory import BufferSet, Transfer, map_tensors, movable
from aegis.data.narrow import Widener, Windows
from aegis.data.order import Progress

if TYPE_CHECKING:
    from aegis.evidence.chain import IntegrityChain

__all__ = ["DeviceIter", "shadow_of"]


def shadow_of(progress: Progress) -> Progress:
    """What an iterator on the host counts by that is ahead of what the user was given."""
    return replace(progress)


class _Entry(NamedTuple):
    """A batch whose copy was asked for, or an error that has its turn."""

    batch: Any
    ready: Any
    error: Exception | None
    counted: int
    """Batches that the host's iterator had delivered with this one."""
    host: Any
    """The batch on the host, where the chain wants it."""


class DeviceIter(Iterator[Any]):
    """Batches of one epoch. ``host`` gives them in slots, which nobody else holds, and counts them in ``shadow``.

    The copy of batch n + 1 is asked for before batch n is handed out (with ``ahead`` 1). It runs beside the consumer's
    work on batch n: the consumer's stream waits for copies, by events, and the host for neither.

    A slot is let go when the event behind its copy has come. With ``reuse`` batches lie in three sets of buffers by
    turns. Batch n is valid until batch n + 2 is asked for, so the copy of batch n + 3 waits for the work that was asked
    for until then, and for no more: it still runs beside the work on batch n + 2.
    """

    SETS = 3

    def __init__(
        self,
        host: Iterator[Any],
        transfer: Transfer,
        progress: Progress,
        shadow: Progress,
        *,
        ahead: int,
        reuse: bool,
        chain: IntegrityChain | None = None,
    ) -> None:
        self._host = host
        self._transfer = transfer
        self._link = transfer.link
        self._progress, self._shadow = progress, shadow
        self._ahead = ahead
        self._chain = chain
        self._sets: list[BufferSet] | None = transfer.take_buffers(self.SETS) if reuse else None
        self._widen = Widener(self._link)
        self._interrupted: list[Any] = []  # a batch of the host's whose copies are to be asked for again
        self._queue: deque[_Entry] = deque()
        self._asked = self._given = 0  # batches
        self._ended = False
        self._works: deque[Any] = deque(maxlen=2)  # marks of the consumer's work at this call and at the one before
        self._pid = os.getpid()
        progress.rng = shadow.rng

    def __iter__(self) -> DeviceIter:
        return self

    def __len__(self) -> int:
        return len(self._host)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._pid != os.getpid():
            raise RuntimeError("this iterator was made before fork() and its device is the parent's")
        self._works.append(self._link.mark_work())
        while not self._ended and len(self._queue) <= self._ahead:
            self._ask()
        if not self._queue:
            self._close()
            raise StopIteration
        entry = self._queue.popleft()
        self._progress.batches = entry.counted
        self._progress.rng = self._shadow.rng
        if entry.error is not None:
            try:
                raise entry.error
            finally:
                del entry  # or the error, by its traceback, holds itself and all that is held here
        self._link.work_waits(entry.ready)
        map_tensors(entry.batch, self._hand_over)
        self._given += 1
        if self._chain is not None:
            self._chain.add_batch(entry.host.widened() if isinstance(entry.host, Windows) else entry.host)
        return entry.batch

    def _ask(self) -> None:
        """Asks the host for its next batch, and for the copy of it."""
        self._transfer.let_go()
        try:
            batch = self._interrupted.pop() if self._interrupted else next(self._host)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            self._queue.append(_Entry(None, None, error, self._shadow.batches, None))
            return
        try:
            # Buffers outlive the mode in which they were made, and a batch that is asked for ahead may.
            with torch.inference_mode(False):
                on_device = self._copied(batch)
        except Exception as error:
            self._transfer.keep(batch)  # some of its tensors may be under way
            self._queue.append(_Entry(None, None, error, self._shadow.batches, None))
            return
        except BaseException:  # a signal's: the batch is not lost to a consumer that goes on
            self._transfer.keep(batch)
            self._interrupted.append(batch)
            raise
        ready = self._transfer.keep(batch)
        self._asked += 1
        self._transfer.batches += 1
        host = batch if self._chain is not None else None
        self._queue.append(_Entry(on_device, ready, None, self._shadow.batches, host))

    def _copied(self, batch: Any) -> Any:
        """What ``batch`` is on the device, some time."""
        if self._sets is not None:
            self._set = self._sets[self._asked % len(self._sets)]
            self._set.begin()
            # The mark of call n - 1, for batch n: of this call where batches are asked for ahead, else of the last.
            self._link.copies_wait(self._works[-1] if self._ahead else self._works[0])
        if isinstance(batch, Windows):
            self._transfer.nbytes += batch.tokens.nbytes
            return self._widen(batch, self._place)
        return map_tensors(batch, self._send)

    def _place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._link.empty(shape, dtype) if self._sets is None else self._set.place(shape, dtype)

    def _send(self, tensor: Any) -> Any:
        if not movable(tensor):
            return tensor.to(self._link.device)  # sparse, a subclass, a batch of another library's: as it sees fit
        target = self._place(tuple(tensor.shape), tensor.dtype)
        self._transfer.nbytes += target.nbytes
        self._link.copy(target, tensor)
        return target

    def _hand_over(self, tensor: Any) -> Any:
        if type(tensor) is Tensor and tensor.layout is torch.strided:
            self._link.hand_over(tensor)
        return tensor

    def _close(self) -> None:
        if self._sets is not None:
            # The turn goes on, so that the last batch of an epoch is valid as long as any other.
            turn = self._given % len(self._sets)
            self._transfer.give_back(self._sets[turn:] + self._sets[:turn])
            self._sets = None

    def __del__(self) -> None:
        # Batches that were copied ahead are dropped. What they were copied from is kept by the transfer.
        if hasattr(self, "_pid"):
            self._close()
