"""A batch on its way from a worker: a small message, with the bytes of its tensors in slots.

A batch is pickled as multiprocessing would, except that what a plain CPU tensor or a NumPy array consists of goes to a
*piece*: bytes in the message when small, else a range of shared memory that the message names. Whatever can be pickled
keeps its structure and types, and tensors that share memory go on sharing it.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.dtypes import CODES, DTYPES, MAX_DIMS

__all__ = ["SMALL", "Contents", "Piece", "Slot", "Writer", "pack", "unpack"]

SMALL = 16 << 10
"""What consists of at most so many bytes travels inside the message: a slot would not be quicker."""

MESSAGE = 64 << 10
"""A pickle of more bytes goes to a slot too: long texts, or images that are still encoded."""

_TYPES = tuple(DTYPES.values())
_TYPE_INDEX = {dtype: i for i, dtype in enumerate(_TYPES)}


class Slot(NamedTuple):
    """A piece in shared memory: ``nbytes`` at the start of a slot of ``capacity`` bytes."""

    lane: int
    offset: int
    capacity: int
    nbytes: int


Piece = bytes | Slot


class Contents(NamedTuple):
    """A batch, taken apart."""

    pickled: Piece
    pieces: list[Piece]
    buffers: list[int]
    """Pieces that the pickle asks for in this order, as buffers of its own."""
    left: int
    """Tensors in it that torch's own reduction moves."""


class Writer(Protocol):
    """Who finds memory for pieces."""

    def write(self, address: int, nbytes: int) -> Slot | None:
        """Where ``nbytes`` from ``address`` on now lie, copied unless they lay there already; None without memory."""


class _Pieces:
    """Collects the memory of one batch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._storages: dict[tuple[int, int], int] = {}  # pieces by address and size
        self.pieces: list[Piece] = []
        self.buffers: list[int] = []
        self.left = 0

    def storage_of(self, tensor: Tensor) -> int | None:
        """The piece with all that lies behind ``tensor``, or None where that is torch's to move.

        Torch keeps the kinds that it treats in ways of its own, memory that is shared already, and small views of
        something large: it moves that once for all the batches that view it.
        """
        if (
            tensor.layout is not torch.strided
            or tensor.device.type != "cpu"
            or tensor.is_nested
            or tensor.dtype not in _TYPE_INDEX
            or tensor.requires_grad
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        piece = self._storages.get(key)
        if piece is None:
            nbytes = storage.nbytes()
            if storage.is_shared() or (nbytes > SMALL and nbytes > 2 * tensor.nbytes):
                return None
            piece = self._add(*key)
            if piece is not None and nbytes > 0:
                self._storages[key] = piece
        return piece

    def out_of_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Takes the memory of a NumPy array; returns whether it is to stay in the pickle instead."""
        with buffer.raw() as raw:
            if raw.nbytes <= SMALL:
                return True
            piece = self._add(_address(raw), raw.nbytes)
        if piece is None:
            return True
        self.buffers.append(piece)
        return False

    def _add(self, address: int, nbytes: int) -> int | None:
        piece = _piece(address, nbytes, self._writer)
        if piece is None:
            return None
        self.pieces.append(piece)
        return len(self.pieces) - 1


class _Pickler(ForkingPickler):
    """Gives the memory of tensors and arrays to ``pieces``.

    No method of its own goes to its base class: in a reference cycle it would keep the batch, and the worker its slots,
    until the garbage collector runs.
    """

    def __init__(self, file: io.BytesIO, pieces: _Pieces) -> None:
        super().__init__(file, 5, True, pieces.out_of_band)
        self._pieces = pieces

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not (obj.flags.writeable and obj.dtype.isnative):
            # By multiprocessing's pickles it comes back writable and in this machine's byte order. Out of band it would
            # come back as it is.
            return obj.copy(order="K").__reduce_ex__(5) if obj.dtype.isnative else obj.__reduce__()
        if type(obj) is not Tensor:
            return NotImplemented
        piece = self._pieces.storage_of(obj)
        if piece is None:
            self._pieces.left += 1
            return NotImplemented
        kind, shape = _TYPE_INDEX[obj.dtype], tuple(obj.shape)
        if obj.stride() == _row_major(shape) and obj.nbytes == obj.untyped_storage().nbytes():
            return _whole, (piece, kind, shape)
        return _part, (piece, kind, shape, obj.stride(), obj.storage_offset())


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _piece(address: int, nbytes: int, writer: Writer) -> Piece | None:
    if nbytes == 0:
        return b""
    return ctypes.string_at(address, nbytes) if nbytes <= SMALL else writer.write(address, nbytes)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def pack(box: list[Any], writer: Writer) -> Contents:
    """Takes apart the batch that is alone in ``box``, and out of it: nothing here refers to it afterwards.

    Raises what pickling raises.
    """
    file = io.BytesIO()
    pieces = _Pieces(writer)
    _Pickler(file, pieces).dump(box.pop())
    pickled: Piece | None = None
    with file.getbuffer() as view:
        if view.nbytes > MESSAGE:
            pickled = writer.write(_address(view), view.nbytes)
    return Contents(pickled or file.getvalue(), pieces.pieces, pieces.buffers, pieces.left)


# --- unpacking -----------------------------------------------------------------------------------------------------


class _Memory:
    """What a piece becomes where it arrives: ordinary memory of torch's, or a slot and its lease."""

    def __init__(self, piece: Piece, lease_of: Callable[[Slot], _C.SlotLease]) -> None:
        if isinstance(piece, bytes):
            self._bytes, self._nbytes = piece, len(piece)
            self._slot: _C.SlotLease | None = None
        else:
            self._slot, self._nbytes = lease_of(piece), piece.nbytes
        self._storage: torch.UntypedStorage | None = None  # once a tensor was made

    def whole(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """All of it as a contiguous tensor."""
        if self._storage is not None or len(shape) > MAX_DIMS:
            return self.part(dtype, shape, _row_major(shape), 0)
        tensor = self._over_slot(dtype, shape)
        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            if self._slot is None:
                ctypes.memmove(tensor.data_ptr(), self._bytes, self._nbytes)
            else:
                self._slot.read(tensor.data_ptr(), self._nbytes)
        self._storage = tensor.untyped_storage()
        return tensor

    def _over_slot(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
        if self._slot is None:
            return None
        try:
            return from_dlpack(self._slot.view(*CODES[dtype], shape))
        except RuntimeError:  # no room for another mapping
            return None

    def part(self, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        """A tensor somewhere in it."""
        if self._storage is None:
            self.whole(torch.uint8, (self._nbytes,))
        assert self._storage is not None
        return torch.empty((0,), dtype=dtype, device="cpu").set_(self._storage, offset, shape, strides)

    def array(self) -> NDArray[np.uint8]:
        """All of it as writable bytes."""
        return self.whole(torch.uint8, (self._nbytes,)).numpy()


class _Opening(threading.local):
    memory: tuple[_Memory, ...] = ()  # of the parcel that this thread unpickles


_opening = _Opening()


def _whole(piece: int, kind: int, shape: tuple[int, ...]) -> Tensor:
    return _opening.memory[piece].whole(_TYPES[kind], shape)


def _part(piece: int, kind: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    return _opening.memory[piece].part(_TYPES[kind], shape, strides, offset)


def unpack(contents: Contents, lease_of: Callable[[Slot], _C.SlotLease]) -> Any:
    """The batch again. ``lease_of`` gives the lease of a slot; the tensors over a slot share it.

    Raises what unpickling raises.
    """
    memory = tuple(_Memory(piece, lease_of) for piece in contents.pieces)
    buffers = [memory[piece].array() for piece in contents.buffers]
    pickled: Any = contents.pickled
    if isinstance(pickled, Slot):
        pickled = _Memory(pickled, lease_of).array()
    before, _opening.memory = _opening.memory, memory
    try:
        return pickle.loads(pickled, buffers=buffers)
    finally:
        _opening.memory = before
