"""Memory on a device for batches, and what keeps a batch on the host until its copy is done."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from aegis.data.link import Link

__all__ = ["BufferSet", "Transfer", "map_tensors"]


def map_tensors(batch: Any, change: Callable[[Tensor], Any]) -> Any:
    """``batch`` with ``change`` made to each of its tensors; containers keep their types, and the rest is as it was.

    Containers are mappings, sequences, named tuples and dataclasses. An object that is none, and has a method ``to``
    (a packed sequence, a batch of a graph library), is given to ``change`` as it is.
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, str | bytes):
        return batch
    if isinstance(batch, Mapping):
        return _like(batch, {key: map_tensors(value, change) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "to"):
        return change(batch)  # type: ignore[arg-type]
    if isinstance(batch, tuple):
        items = [map_tensors(value, change) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if isinstance(batch, Sequence):
        items = [map_tensors(value, change) for value in batch]
        return items if type(batch) is list else _like(batch, dict(enumerate(items)))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass(batch, change)
    return change(batch) if callable(getattr(batch, "to", None)) else batch


def _like(container: Any, items: dict[Any, Any]) -> Any:
    """A copy of ``container`` with these items; what cannot be copied or written to comes as a dict or a list."""
    with suppress(Exception):
        other = copy.copy(container)
        for key, value in items.items():
            other[key] = value
        return other
    return items if isinstance(container, Mapping) else list(items.values())


def _dataclass(batch: Any, change: Callable[[Tensor], Any]) -> Any:
    other = copy.copy(batch)
    for field in dataclasses.fields(batch):
        object.__setattr__(other, field.name, map_tensors(getattr(batch, field.name), change))
    return other


def movable(tensor: object) -> bool:
    """Whether a copy of its bytes is a copy of it."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
    )


class BufferSet:
    """Memory of one batch on a device: the k-th tensor of each batch lies at the same address.

    An address changes only where a tensor is larger than all before it at its place.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._memory: list[Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """The tensors that follow are those of a new batch."""
        self._next = 0

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor over the memory of the next place."""
        at = self._next
        self._next += 1
        count = torch.Size(shape).numel()
        nbytes = count * dtype.itemsize
        if at == len(self._memory):
            self._memory.append(self._link.empty((nbytes,), torch.uint8))
        elif self._memory[at].numel() < nbytes:
            self._memory[at] = self._link.empty((nbytes,), torch.uint8)
        return self._memory[at][:nbytes].view(dtype).view(shape)


class Transfer:
    """What a loader keeps from iterator to iterator for its batches on a device. They may be in several threads."""

    # The consumer's work may lag so many copies behind the host. Each of them holds a slot.
    MOST_UNDER_WAY = 4

    def __init__(self, link: Link) -> None:
        self.link = link
        self.batches = 0
        self.nbytes = 0
        self.waits = 0
        self._idle: list[list[BufferSet]] = []
        self._under_way: deque[tuple[Any, Any]] = deque()  # marks of the copies, and what they read
        self._pid = os.getpid()

    def check_process(self) -> None:
        """RuntimeError in a forked child, where a device cannot be used."""
        if self._pid != os.getpid():
            raise RuntimeError("device: expected the process that made the loader, got a child that it forked")

    def keep(self, source: Any) -> Any:
        """A mark behind all copies until now. Before it is reached ``source`` is not let go, and its slots not written
        again."""
        mark = self.link.mark_copies()
        self._under_way.append((mark, source))
        return mark

    def let_go(self) -> None:
        """Of what copies have read. Waits where too many are under way."""
        self._let_go(self.MOST_UNDER_WAY)

    def _let_go(self, most: int) -> None:
        # Who looks at a mark has taken it out, so that nobody drops what belongs to another, in another thread or in a
        # signal handler; a lock would be in the handler's way.
        while self._under_way:
            try:
                item = self._under_way.popleft()
            except IndexError:
                return
            try:
                done = self.link.reached(item[0])
                if not done and len(self._under_way) + 1 >= most:
                    self.waits += most > 0
                    self.link.wait(item[0])
                    done = True
            except BaseException:
                self._under_way.appendleft(item)
                raise
            if not done:
                self._under_way.appendleft(item)
                return

    def take_buffers(self, count: int) -> list[BufferSet]:
        """For one iterator alone."""
        with suppress(IndexError):
            return self._idle.pop()
        return [BufferSet(self.link) for _ in range(count)]

    def give_back(self, buffers: list[BufferSet]) -> None:
        """For the next one."""
        self._idle.append(buffers)

    def finish(self) -> None:
        """Waits for all copies. In a forked child there is nothing to wait for: they are its parent's."""
        if self._pid != os.getpid():
            return
        self._let_go(0)

    def stats(self) -> dict[str, float]:
        """As :meth:`aegis.FlatArenaDataLoader.stats` explains them."""
        pins = {"ranges": 0, "bytes": 0, "refused": 0} if self.link.pins is None else self.link.pins.stats()
        return {
            "device_batches": self.batches,
            "device_bytes": self.nbytes,
            "device_waits": self.waits,
            "pinned_slots": pins["ranges"],
            "pinned_bytes": pins["bytes"],
            "pins_refused": pins["refused"],
        }

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process the device may be gone
            self.finish()
