"""The parent's side of the transport: which slots a worker is lent, and when one is free again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aegis import _C
from aegis.data.parcel import Slot, unpack
from aegis.data.worker import Loan, Parcel

if TYPE_CHECKING:
    from aegis.data.transport import Transport

__all__ = ["SlotArena"]


class SlotArena:
    """Memory that the worker processes of one iterator write and this process reads.

    Leases live in this process alone, so a worker killed at any moment takes nothing along. A request is never held
    back for want of a slot: there is no limit to them, and where memory ends a batch comes torch's way.
    """

    # A lane that so many batches in a row did not use is not lent any more.
    _BATCHES_KEPT = 64

    def __init__(self, pins: _C.DevicePins | None = None) -> None:
        self._pins = pins
        self.file = _C.SharedFile()
        self._lanes: list[_C.SlotLane] = []
        self._width = 0  # lanes that are lent
        self._unused = 0  # batches since the last one that used all of those
        self._lent: dict[int, list[_C.SlotLease | None]] = {}  # by the number of the request
        self._asked: dict[int, int] = {}  # the worker, likewise
        # What a worker may still read or write, by worker and offset.
        self._kept: dict[tuple[int, int], _C.SlotLease] = {}

    def lend(self, request: int) -> list[Loan | None]:
        """A slot from each lane in use. Until the request is answered they are a worker's to write."""
        leases = [lane.lend() for lane in self._lanes[: self._width]]
        self._lent[request] = leases
        return [None if lease is None else (lease.offset, lease.nbytes) for lease in leases]

    def sent(self, request: int, worker: int) -> None:
        """Which worker it was given to."""
        self._asked[request] = worker

    def take_back(self, request: int) -> dict[int, _C.SlotLease]:
        """What was lent for a request, by offset. Slots that the caller does not keep are free."""
        self._asked.pop(request, None)
        return {lease.offset: lease for lease in self._lent.pop(request, ()) if lease is not None}

    def take_back_from(self, worker: int) -> None:
        """What was lent to a worker that answers no more requests of this epoch."""
        for request in [request for request, asked in self._asked.items() if asked == worker]:
            self.take_back(request)

    def open(self, request: int, parcel: Parcel, transport: Transport) -> Any:
        """The batch in ``parcel``, its large tensors over the slots that they were written to. Counts it.

        Raises what unpickling raises.
        """
        leases = self.take_back(request)
        contents = parcel.contents
        width = 0
        for piece in (contents.pickled, *contents.pieces):
            if isinstance(piece, Slot):
                lane = self._lane(piece.lane)
                lane.note(piece.nbytes)
                if piece.offset not in leases:
                    leases[piece.offset] = lane.adopt(piece.offset, piece.capacity)
                width = max(width, piece.lane + 1)
        for offset in parcel.freed:
            self._kept.pop((parcel.worker, offset), None)
        self._kept.update(((parcel.worker, offset), leases[offset]) for offset in parcel.kept)
        self._follow(width)
        transport.count(slots=width, left=contents.left, no_memory=parcel.no_memory)
        return unpack(contents, lambda slot: leases[slot.offset])

    def keep(self, request: int) -> None:
        """For a batch that ended in an error: the worker tells in its next parcel that it let go of the slots."""
        worker = self._asked[request]
        self._kept.update(((worker, offset), lease) for offset, lease in self.take_back(request).items())

    def _lane(self, number: int) -> _C.SlotLane:
        while number >= len(self._lanes):
            self._lanes.append(_C.SlotLane(self.file, self._pins))
        return self._lanes[number]

    def _follow(self, width: int) -> None:
        self._unused = 0 if width >= self._width else self._unused + 1
        if width > self._width or self._unused > self._BATCHES_KEPT:
            self._width, self._unused = width, 0
            for lane in self._lanes[width:]:
                lane.rest()

    def reclaim(self) -> None:
        """When the workers have ended: takes back what they were lent, and what they made and did not hand over."""
        self._lent.clear()
        self._asked.clear()
        self._kept.clear()
        end = self.file.first
        ranges = sorted(item for lane in self._lanes for item in lane.ranges().items())
        for offset, nbytes in [*ranges, (self.file.reserved, 0)]:
            if offset > end:
                self.file.discard(end, offset - end)
            end = offset + nbytes

    def stats(self) -> list[dict[str, int]]:
        """Of each lane."""
        return [lane.stats() for lane in self._lanes]
