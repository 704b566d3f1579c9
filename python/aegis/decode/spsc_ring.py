"""A ring of 64-byte entries from one thread or process to another."""

from __future__ import annotations

import math
import os
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegis import _C

__all__ = ["SpscRing"]

_Wait = _C.SpscRing.Wait
_FIELDS = {
    "sequence": ("<u8", 0),
    "token": ("<u4", 8),
    "position": ("<u4", 12),
    "logit_delta": ("<f4", 16),
    "draft_probability": ("<f4", 20),
    "flags": ("<u4", 24),
    "attestation": ("<u4", 28),
    "parent": ("<u4", 32),
    "slot": ("<u4", 36),
}


class SpscRing:
    """Entries from one producer to one consumer, without locks: threads, or, if ``shared``, processes.

    Args:
        capacity: entries, at least 1; rounded up to a power of two.
        shared: lie in a memfd that other processes map. Then the ring goes along in a fork, and can be an argument of a
            ``multiprocessing.Process`` of any start method, or of :meth:`attach` by its ``fileno()``.

    Entries are NumPy records of ``SpscRing.dtype``: sequence (uint64), token, position (uint32), logit_delta,
    draft_probability (float32), flags, attestation, parent, slot (uint32); the ring copies 60 bytes, gives them no
    meaning, and keeps the last 4 for itself (0 in what is popped). One thread at a time pushes and one pops. Waits give
    the interpreter to others, end with Ctrl-C, and notice within some 10 ms where the other side's process is gone, if
    it has used the ring.

    As a context manager it is closed at the end.

    Raises:
        ValueError: a capacity below 1 or above ``2**30``.
        RuntimeError: no memory.

    Cost: one call moves a batch of any size; beside the copy, 20 to 60 ns in C++ for a batch that crosses CPUs.
    """

    dtype: np.dtype[Any] = np.dtype(
        {
            "names": list(_FIELDS),
            "formats": [kind for kind, _ in _FIELDS.values()],
            "offsets": [offset for _, offset in _FIELDS.values()],
            "itemsize": 64,
        }
    )
    """Of an entry."""

    def __init__(self, capacity: int = 1024, *, shared: bool = False) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"capacity: expected an int, got {capacity!r}")
        if not 1 <= capacity <= 2**30:
            raise ValueError(f"capacity: expected 1 to {2**30} entries, got {capacity}")
        self._ring = _C.SpscRing.create(capacity, bool(shared))

    @classmethod
    def attach(cls, fd: int) -> SpscRing:
        """The ring behind another's ``fileno()``, which is duplicated. Raises RuntimeError where it is none."""
        ring = cls.__new__(cls)
        ring._ring = _C.SpscRing.attach(fd)
        return ring

    def push(self, entries: NDArray[Any], *, timeout: float = 60.0) -> int:
        """Copies entries into the ring, in order, waiting for room.

        Args:
            entries: an array of ``dtype``, of one dimension.
            timeout: seconds to wait while nothing moves; 0 does not wait.

        Returns:
            How many were pushed: all of them, unless the time was over.

        Raises:
            BrokenPipeError: the ring is closed, or the consumer's process is gone and there is no room; the entries
                that were pushed before are in the ring.
            TypeError, ValueError: entries of another dtype or shape.
        """
        array = self._checked("entries", entries)
        if not array.flags.c_contiguous or array.ctypes.data % 8:  # to NumPy, records are aligned anywhere
            array = array.copy()
        pushed, end = self._ring.push(array, _seconds(timeout))
        if end == _Wait.closed:
            raise BrokenPipeError(
                f"push: expected an open ring, got a closed one; {pushed} of {len(array)} were pushed"
            )
        if end == _Wait.gone:
            raise BrokenPipeError(f"push: the consumer's process is gone; {pushed} of {len(array)} were pushed")
        return pushed

    def pop(self, most: int | None = None, *, out: NDArray[Any] | None = None, timeout: float = 60.0) -> NDArray[Any]:
        """Takes the entries that are there, at least one, waiting for it.

        Args:
            most: the most to take, at least 1; without, as many as the ring can hold, or ``out``.
            out: an array of ``dtype`` to write to, contiguous; without, a new one.
            timeout: seconds to wait for the first; 0 does not wait.

        Returns:
            The entries, a view of ``out`` if given. Empty where the ring is closed and nothing is left.

        Raises:
            TimeoutError: none came.
            BrokenPipeError: the producer's process is gone, and nothing is left.
        """
        if out is None:
            size = self.capacity if most is None else most
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"most: expected at least 1, got {size!r}")
            out = np.empty(min(size, max(len(self), 1)), self.dtype)
        else:
            self._checked("out", out)
            if most is not None:
                raise ValueError("most: expected none beside out, whose length says it")
            if len(out) == 0:
                raise ValueError("out: expected room for an entry, got none")
        popped, end = self._ring.pop(out, _seconds(timeout))
        if end == _Wait.timeout:
            raise TimeoutError(f"pop: no entry came within {timeout} seconds")
        if end == _Wait.gone:
            raise BrokenPipeError("pop: the producer's process is gone, and nothing is left")
        return out[:popped]

    def close(self) -> None:
        """Lets nothing more in. Either side may; what is in the ring can still be popped."""
        self._ring.close()

    @property
    def closed(self) -> bool:
        """Whether either side has closed it."""
        return self._ring.closed

    @property
    def capacity(self) -> int:
        """Entries that there is room for."""
        return self._ring.capacity

    def __len__(self) -> int:
        """Entries in the ring now."""
        return len(self._ring)

    def fileno(self) -> int:
        """The memfd of a shared ring. Raises ValueError where it is not shared."""
        fd = self._ring.fd
        if fd < 0:
            raise ValueError("ring: expected one with shared=True, since others cannot map this one")
        return fd

    def __enter__(self) -> SpscRing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self.fileno()),)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"SpscRing({len(self)} of {self.capacity} entries{state})"

    def _checked(self, name: str, array: Any) -> NDArray[Any]:
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype:
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(f"{name}: expected an array of SpscRing.dtype, got {got}")
        if array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
        return array


def _rebuild(descriptor: Any) -> SpscRing:
    fd = descriptor.detach()
    try:
        return SpscRing.attach(fd)
    finally:
        os.close(fd)


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout < math.inf:
        raise ValueError(f"timeout: expected seconds, 0 or more and finite, got {timeout!r}")
    return float(timeout)
