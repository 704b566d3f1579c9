"""What a loader keeps from iterator to iterator for batches that Python makes: slots, and counts of them."""

from __future__ import annotations

import os
import weakref

from aegis import _C
from aegis.data.slots import SlotArena

__all__ = ["Transport"]

# Memory that a process which could not be ended may still write.
_lost: list[SlotArena] = []


class Transport:
    """Shared by a loader and its iterators, which do not know the loader."""

    def __init__(self, pins: _C.DevicePins | None = None) -> None:
        self.pins = pins
        """Where batches go to a device: what pins their slots for it."""
        self._process = os.getpid()
        self._lanes: list[_C.SlotLane] = []  # for batches collated in this process
        self._arenas: weakref.WeakSet[SlotArena] = weakref.WeakSet()
        self._idle: list[SlotArena] = []  # of these, such as no iterator uses
        self.slot_batches = 0
        self.small_batches = 0
        self.torch_batches = 0
        self.no_memory = 0

    def count(self, *, slots: int, left: int, no_memory: bool) -> None:
        """Counts a batch of which ``slots`` tensors lie in slots and ``left`` were torch's to make or to move."""
        if left:
            self.torch_batches += 1
        elif slots:
            self.slot_batches += 1
        else:
            self.small_batches += 1
        self.no_memory += no_memory

    def lane(self, number: int) -> _C.SlotLane:
        """For the large tensor of this number in a batch collated in this process."""
        self._leave_to_parent()
        while number >= len(self._lanes):
            self._lanes.append(_C.SlotLane(pins=self.pins))
        return self._lanes[number]

    def _leave_to_parent(self) -> None:
        """In a forked child: the slots that it inherits are the parent's, whose workers may be writing them."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lanes, self._arenas, self._idle = [], weakref.WeakSet(), []

    def take_arena(self) -> SlotArena | None:
        """An arena for one iterator's workers alone; None where the system shares no memory."""
        self._leave_to_parent()
        if self._idle:
            return self._idle.pop()
        try:
            arena = SlotArena(self.pins)
        except RuntimeError:
            return None
        self._arenas.add(arena)
        return arena

    def give_back(self, arena: SlotArena, *, workers_ended: bool) -> None:
        """Once nobody is asked to write it any more."""
        if workers_ended:
            arena.reclaim()
            self._idle.append(arena)
        else:
            _lost.append(arena)

    def close(self) -> None:
        """Lets go of all memory but what batches hold."""
        self._lanes.clear()
        self._idle.clear()

    def stats(self) -> dict[str, float]:
        """As :meth:`aegis.FlatArenaDataLoader.stats` explains them."""
        self._leave_to_parent()
        lanes = [lane.stats() for lane in self._lanes]
        lanes += [lane for arena in list(self._arenas) for lane in arena.stats()]
        return {
            "slot_batches": self.slot_batches,
            "small_batches": self.small_batches,
            "torch_batches": self.torch_batches,
            "no_memory": self.no_memory,
            "slots": sum(lane["slots"] for lane in lanes),
            "held_slots": sum(lane["held"] for lane in lanes),
            "fresh_slots": sum(lane["fresh"] for lane in lanes),
            "slot_bytes": sum(lane["bytes"] for lane in lanes),
        }
