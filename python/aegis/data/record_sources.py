"""Where records come from: files of a dtype, .npy files, NumPy arrays, tensors."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.dtypes import CODES
from aegis.data.formats import Source, look, read_npy_header
from aegis.data.record_fields import RecordField

__all__ = ["read_records"]

_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)


class _Part(NamedTuple):
    """A field within a record: values of ``dtype`` and ``shape`` from byte ``offset`` on."""

    name: str | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Layout(NamedTuple):
    """What a record holds."""

    parts: tuple[_Part, ...]
    record_bytes: int
    numpy: np.dtype[Any] | None = None
    """NumPy's name for it, where values are stored in the other byte order."""


def read_records(source: Any, dtype: Any, shape: Any, offset: int) -> dict[str | None, RecordField]:
    """The fields of a path, an array or a tensor: by name for a structured dtype, else one under None.

    Raises ValueError or OSError as :class:`~aegis.RecordDataset` says.
    """
    if isinstance(source, str | os.PathLike):
        head = look(os.path.abspath(os.fspath(source)))
        if head.head.startswith(npy.MAGIC_PREFIX):
            return _read_npy(head, dtype, shape, offset)
        return _read_raw(head, dtype, shape, offset)
    for name, value in {"dtype": dtype, "shape": shape, "offset": offset or None}.items():
        if value is not None:
            raise ValueError(f"{name}: expected none beside a {type(source).__name__}, got {value}")
    if isinstance(source, Tensor):
        return {None: _tensor_field(source)}
    if isinstance(source, np.ndarray):
        return _array_fields(source, in_file=False)
    raise TypeError(f"source: expected a path, a NumPy array or a tensor, got a {type(source).__name__}")


# --- what a record holds ---------------------------------------------------------------------------------------------


def _layout(dtype: Any, shape: Any) -> _Layout:
    extents = _shape(shape)
    if isinstance(dtype, str) and isinstance(getattr(torch, dtype, None), torch.dtype):
        dtype = getattr(torch, dtype)
    if isinstance(dtype, torch.dtype):
        part = _Part(None, _known(dtype, dtype), extents, 0)
        return _Layout((part,), part.size)
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype: expected a torch or NumPy dtype, got {dtype!r}") from None
    if found.subdtype is not None:
        found, inner = found.subdtype
        extents += inner
    swapped = None if found.isnative else np.dtype((found, extents))
    if found.names is None or found.fields is None:
        part = _Part(None, _torch_dtype(found), extents, 0)
        return _Layout((part,), part.size, swapped)
    if extents:
        raise ValueError(f"shape: expected none beside a dtype with fields, which has their shapes, got {extents}")
    parts = []
    for name in found.names:
        field, at = found.fields[name][:2]
        base, inner = field.subdtype or (field, ())
        parts.append(_Part(name, _torch_dtype(base), _shape(inner), at))
    if not parts:
        raise ValueError(f"dtype: expected a dtype with fields that hold something, got {found}")
    return _Layout(tuple(parts), found.itemsize, swapped)


def _shape(shape: Any) -> tuple[int, ...]:
    extents = () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        raise ValueError(f"shape: expected extents of at least 1, got {shape}")
    return extents


def _known(dtype: torch.dtype, given: object) -> torch.dtype:
    if dtype not in CODES:
        raise ValueError(f"dtype: expected one of {_NAMES}, got {given}")
    return dtype


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype: expected one of {_NAMES}, got {dtype}")
    return _known(found, dtype)


# --- files -----------------------------------------------------------------------------------------------------------


def _read_raw(source: Source, dtype: Any, shape: Any, offset: int) -> dict[str | None, RecordField]:
    path, size = source.path, source.size
    if dtype is None:
        raise ValueError(f"{path}: nothing in the file says what its records are: give dtype and shape")
    layout = _layout(dtype, shape)
    if not 0 <= offset < size:
        raise ValueError(f"{path}: offset: expected 0 to {size - 1} (the file has {size} bytes), got {offset}")
    count, left = divmod(size - offset, layout.record_bytes)
    if left:
        start = f" from byte {offset}" if offset else ""
        raise ValueError(
            f"{path}: expected a whole number of records of {layout.record_bytes} bytes{start}, got a file of {size} "
            f"bytes: {left} bytes are left over after {count} records"
        )
    return _open(path, layout, count, offset)


def _read_npy(source: Source, dtype: Any, shape: Any, offset: int) -> dict[str | None, RecordField]:
    path = source.path
    if offset:
        raise ValueError(f"{path}: offset: expected none beside a .npy file, which says it itself, got {offset}")
    header = read_npy_header(path)
    if header.dtype.hasobject:
        raise ValueError(f"{path}: expected values of a fixed size, got {header.dtype}, which is pickled")
    if not header.shape or 0 in header.shape:
        raise ValueError(f"{path}: expected an array of at least one record, got shape {header.shape}")
    layout = _layout(header.dtype, header.shape[1:])
    wanted = layout if dtype is None else _layout(dtype, header.shape[1:] if shape is None else shape)
    if (shape is not None and _shape(shape) != header.shape[1:]) or wanted.parts != layout.parts:
        raise ValueError(f"{path}: expected records of {header.dtype} {header.shape[1:]}, as the file says")
    expected = header.offset + math.prod(header.shape) * header.dtype.itemsize
    if source.size != expected:
        raise ValueError(
            f"{path}: expected {expected} bytes (a header of {header.offset}, then {header.shape[0]} records of "
            f"{layout.record_bytes}), got {source.size}"
        )
    if header.fortran_order and len(header.shape) > 1:
        return _array_fields(np.load(path, allow_pickle=False), in_file=True)
    return _open(path, layout, header.shape[0], header.offset)


def _open(path: str, layout: _Layout, count: int, offset: int) -> dict[str | None, RecordField]:
    if layout.numpy is not None:
        return _array_fields(np.fromfile(path, layout.numpy, count, offset=offset), in_file=True)
    # The records of a file need not be aligned for their dtype, so a file is a store of bytes.
    store = _C.TokenStore([(path, "uint8", offset, count * layout.record_bytes, False)])
    records = from_dlpack(store.dlpack()).view(count, layout.record_bytes)
    return _split(records, layout.parts, store, in_file=True)


def _split(
    records: Tensor, parts: Sequence[_Part], store: _C.TokenStore | None, *, in_file: bool
) -> dict[str | None, RecordField]:
    """The fields of (n, record bytes) uint8."""
    fields: dict[str | None, RecordField] = {}
    for part in parts:
        rows = records[:, part.offset : part.offset + part.size]
        if part.dtype is torch.uint8:
            rows = rows.view(len(rows), *part.shape)
        fields[part.name] = RecordField(rows, part.dtype, part.shape, store, in_file)
    return fields


# --- memory ----------------------------------------------------------------------------------------------------------


def _array_fields(array: NDArray[Any], *, in_file: bool) -> dict[str | None, RecordField]:
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"source: expected an array of at least one record, got shape {array.shape}")
    layout = _layout(array.dtype, array.shape[1:])
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.names is not None:
        records = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), layout.record_bytes)
        return _split(_from_numpy(records), layout.parts, None, in_file=in_file)
    if not (array[:1].flags.c_contiguous and array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0):
        array = np.ascontiguousarray(array)
    return {None: RecordField(_from_numpy(array), layout.parts[0].dtype, array.shape[1:], in_file=in_file)}


def _from_numpy(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only read
        return torch.from_numpy(array)


def _tensor_field(tensor: Tensor) -> RecordField:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise ValueError(f"source: expected a dense CPU tensor, got {tensor.layout} on {tensor.device}")
    if tensor.requires_grad:
        raise ValueError("source: expected a tensor that requires no gradient, got one that does: detach() it")
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise ValueError(f"source: expected a tensor of at least one record, got shape {tuple(tensor.shape)}")
    rows = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    if not rows[0].is_contiguous():
        rows = rows.contiguous()
    return RecordField(rows, _known(tensor.dtype, tensor.dtype), tuple(tensor.shape[1:]))
