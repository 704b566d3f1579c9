"""Memory handed out front to back and taken back all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aegis import _C

__all__ = ["Arena"]


class Arena(_C.Arena):
    """A 64-byte-aligned, pre-faulted block of memory that tensors are cut from in O(1).

    Args:
        nbytes: size, rounded up to whole pages.
        huge_pages: try huge pages; ``arena.huge_pages`` says what the system granted.
        shared: back the memory by a file without a name, which forked and spawned processes can map.

    It is a buffer too: ``memoryview(arena)`` covers all of it. One thread at a time.
    """

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor over the arena's next free bytes. It keeps the arena alive.

        Raises:
            aegis.ArenaExhausted: (a MemoryError) the rest of the arena is too small; says need and room.
            ValueError: a negative extent.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(extent < 0 for extent in extents):
            raise ValueError(f"shape: expected extents of at least 0, got {extents}")
        count = math.prod(extents)
        start = self.allocate(count * dtype.itemsize)
        if count == 0:
            return torch.empty(extents, dtype=dtype)
        return torch.frombuffer(self, dtype=dtype, count=count, offset=start).view(extents)

    def __repr__(self) -> str:
        return f"Arena({self.used} of {self.nbytes} bytes in use, huge pages: {self.huge_pages})"
