"""The worker's side of the transport: a collate function that writes into slots which the parent lent."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from multiprocessing import context, reduction
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.collate import collate_map, stack_into, stackable
from aegis.data.dtypes import CODES
from aegis.data.parcel import SMALL, Contents, Slot, pack

__all__ = ["Loan", "Parcel", "Request", "WorkerCollate"]

Loan = tuple[int, int]
"""A lent slot: its offset and its size."""


class Request:
    """A batch's indices on their way to a worker, with one slot for each large tensor that is expected.

    Where it arrives it is the indices again: torch's worker loop and the data set see nothing of the slots.
    """

    def __init__(self, index: Any, loans: Sequence[Loan | None]) -> None:
        self._index = index
        self._loans = loans

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive, (self._index, self._loans)


class Parcel(NamedTuple):
    """What a worker sends back."""

    worker: int
    contents: Contents
    kept: list[int]
    """Offsets of slots of this batch that the worker still refers to: a collate function has kept a tensor."""
    freed: list[int]
    """Offsets of slots that it no longer refers to: kept earlier, or lent for a batch that ended in an error."""
    no_memory: bool
    """Whether a slot could not be had."""


_requests: list[Sequence[Loan | None]] = []  # that have arrived in this process and were not collated yet


def _receive(index: Any, loans: Sequence[Loan | None]) -> Any:
    _requests.append(loans)
    return index


class _Place:
    """Memory found for a tensor."""

    def __init__(self, slot: Slot, window: _C.SharedWindow, *, lent: bool) -> None:
        self.slot = slot
        self.window = window
        self.lent = lent
        self.sent = False


class WorkerSlots:
    """Finds memory for the batches of one worker process; is the writer of :func:`~aegis.data.parcel.pack`."""

    # A worker writes several slots in turn, and what it wrote is read in another process, later.
    STREAM_FROM = 8 << 20

    # Mappings that this many requests did not use are let go: the parent may have given up their slots.
    _REQUESTS_KEPT = 128
    # Slots made here that no batch took along.
    _SPARES_KEPT = 4

    def __init__(self, file: _C.SharedFile, worker: int) -> None:
        self._file = file
        self._worker = worker
        self._loans: Sequence[Loan | None] = ()
        self._collating = False
        self._no_memory = False
        self._count = 0  # places looked for
        self._places: dict[int, _Place] = {}  # of this batch, by address
        self._spares: list[_Place] = []
        self._held: dict[int, _C.SharedWindow | None] = {}  # what the parent must not lend, by offset
        self._windows: dict[int, _C.SharedWindow] = {}
        self._old_windows: dict[int, _C.SharedWindow] = {}
        self._age = 0
        # In this process, which exists for one loader: collate functions that call torch's get slots too.
        default_collate_fn_map.update(collate_map(self._stack))

    def collate(self, collate_fn: Callable[[Any], Any], samples: Any) -> Parcel:
        """What ``collate_fn`` makes of ``samples``, ready to be sent. Raises what that or pickling raises."""
        self._begin()
        self._collating = True
        try:
            box = [collate_fn(samples)]
        finally:
            self._collating = False
        return self._end(pack(box, self))

    def write(self, address: int, nbytes: int) -> Slot | None:
        place = self._places.get(address)
        if place is None or place.slot.nbytes != nbytes:
            place = self._find(nbytes)
            if place is None:
                return None
            if nbytes >= self.STREAM_FROM:
                _C.copy_rows(place.window.address, [address], nbytes)
            else:
                ctypes.memmove(place.window.address, address, nbytes)
        place.sent = True
        return place.slot

    # --- one batch ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        # What was lent for a batch that ended in an error: its traceback may have kept tensors while it lived.
        failed = [self._loans, *_requests[:-1]]
        self._held.update((loan[0], self._known(loan[0])) for loans in failed for loan in loans if loan is not None)
        self._keep_spares()
        self._loans = _requests[-1] if _requests else ()
        _requests.clear()
        self._no_memory = False
        self._count = 0
        self._age += 1
        if self._age % self._REQUESTS_KEPT == 0:
            self._old_windows, self._windows = self._windows, {}

    def _stack(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        if self._collating and stackable(batch):
            first = batch[0]
            nbytes = len(batch) * first.numel() * first.element_size()
            place = self._find(nbytes) if nbytes > SMALL else None
            try:
                if place is not None:
                    shape = (len(batch), *first.shape)
                    out = from_dlpack(place.window.view(*CODES[first.dtype], shape))
                    return stack_into(out, batch, stream_from=self.STREAM_FROM)
                if nbytes <= SMALL:
                    # From four dimensions on, stack alone may choose another order in memory than torch's workers.
                    small = None if first.dim() < 3 else first.new_empty((len(batch), *first.shape))
                    return torch.stack(batch, 0, out=small)
            except Exception:  # torch says below what is wrong with the samples
                pass
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    def _end(self, contents: Contents) -> Parcel:
        freed = [offset for offset, window in self._held.items() if window is None or not window.in_use]
        for offset in freed:
            del self._held[offset]
        kept = []
        for place in self._places.values():
            if (place.sent or place.lent) and place.window.in_use:
                kept.append(place.slot.offset)
                self._held[place.slot.offset] = place.window
        self._keep_spares()
        self._loans = ()
        return Parcel(self._worker, contents, kept, freed, self._no_memory)

    # --- memory ------------------------------------------------------------------------------------------------

    def _find(self, nbytes: int) -> _Place | None:
        lane = self._count
        self._count += 1
        loan = self._loans[lane] if lane < len(self._loans) else None
        try:
            if loan is not None and loan[1] >= nbytes:
                place = _Place(Slot(lane, *loan, nbytes), self._window(*loan), lent=True)
            else:
                place = self._spare(lane, nbytes) or self._fresh(lane, nbytes)
        except RuntimeError:  # the system's memory is used up
            self._no_memory = True
            return None
        self._places[place.window.address] = place
        return place

    def _known(self, offset: int) -> _C.SharedWindow | None:
        return self._windows.get(offset) or self._old_windows.get(offset)

    def _window(self, offset: int, capacity: int) -> _C.SharedWindow:
        window = self._known(offset) or self._file.map(offset, capacity)
        self._windows[offset] = window
        return window

    def _spare(self, lane: int, nbytes: int) -> _Place | None:
        for i, place in enumerate(self._spares):
            if nbytes <= place.slot.capacity <= 2 * nbytes + (64 << 10) and not place.window.in_use:
                del self._spares[i]
                slot = Slot(lane, place.slot.offset, place.slot.capacity, nbytes)
                return _Place(slot, self._window(slot.offset, slot.capacity), lent=False)
        return None

    def _fresh(self, lane: int, nbytes: int) -> _Place:
        capacity = -(-nbytes // _C.SharedFile.first) * _C.SharedFile.first
        offset = self._file.reserve(capacity)
        return _Place(Slot(lane, offset, capacity, nbytes), self._window(offset, capacity), lent=False)

    def _keep_spares(self) -> None:
        """Slots made here and not sent serve the next batches; the parent has not heard of them."""
        self._spares += [place for place in self._places.values() if not place.sent and not place.lent]
        self._places = {}
        for place in self._spares[: -self._SPARES_KEPT]:
            if not place.window.in_use:
                self._spares.remove(place)
                self._file.discard(place.slot.offset, place.slot.capacity)


class WorkerCollate:
    """``collate_fn`` for worker processes: torch's worker loop calls it with the samples of a batch."""

    def __init__(self, file: _C.SharedFile, collate_fn: Callable[[Any], Any]) -> None:
        self._file = file
        self._collate_fn = collate_fn
        self._slots: WorkerSlots | None = None

    def __call__(self, samples: Any) -> Parcel:
        if self._slots is None:
            info = get_worker_info()
            assert info is not None
            self._slots = WorkerSlots(self._file, info.id)
        return self._slots.collate(self._collate_fn, samples)

    def __getstate__(self) -> tuple[Any, Callable[[Any], Any]]:
        context.assert_spawning(self)
        return reduction.DupFd(self._file.fileno()), self._collate_fn

    def __setstate__(self, state: tuple[Any, Callable[[Any], Any]]) -> None:
        descriptor, self._collate_fn = state
        self._file = _C.SharedFile.attach(descriptor.detach())
        self._slots = None
