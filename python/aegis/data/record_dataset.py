"""Fixed-size records as a map-style data set."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from aegis.data.record_fields import RecordField, Scaling
from aegis.data.record_sources import read_records

__all__ = ["RecordDataset"]

_EDGE = 4096  # bytes of each end of a file's field that go into the fingerprint


class RecordDataset(Dataset[Any]):
    """Records of one size from files, NumPy arrays or tensors: sample i is record i of each.

    In FlatArenaDataLoader, C++ threads gather the rows of a batch, and convert uint8 ones on the way; batches are
    those that torch's DataLoader makes of the same data set. Files are mapped, not read, and shared by the processes
    that read them; a file cut short while in use ends in an exception, never in a crash or in zeroes.

    Args:
        source: a path, a NumPy array or a tensor of ``(n, *record)``: samples are tensors. Or several of them with
            equal n: a tuple or list, for samples that are tuples, or a dict, for samples that are dicts.
        dtype: what a raw file holds, as a torch or NumPy dtype or its name; ``">f4"`` is float32 in big-endian order.
            A NumPy dtype with fields, such as ``[("label", "u1"), ("image", "u1", (3, 32, 32))]``, gives records of
            several fields, and samples that are dicts.
        shape: of a record in a raw file; a single value when None. A .npy file and a dtype with fields say it.
        offset: byte of a raw file where the records begin.
        fields: names of the fields to deliver, in this order, as tuples; by default all of them, as dicts.
        scale, bias: deliver ``x * scale + bias`` of uint8 records, with one number for each channel (the record's first
            dimension) or one for all; see :func:`aegis.ops.gather_records_scaled` for the rounding.
        out_dtype: of that, torch.float32 or torch.bfloat16.

    Where there are several fields, dtype, shape, offset, scale and bias are dicts by field name, or by position in a
    tuple. Up to 16 fields can be written by C++ threads.

    Arrays and tensors are not copied: changes made to them are seen. Exceptions, which cost a copy in memory: rows
    that are not contiguous, a .npy file in Fortran order, and values in the other byte order (of a file all of it,
    also the fields that are not asked for).

    Raises:
        OSError: a file is missing, unreadable or a directory.
        ValueError: a file is empty, or its size is no multiple of the record's; lengths differ; or an argument is not
            what it should be.
        RuntimeError: from reading, when a file was cut short while in use.
    """

    def __init__(
        self,
        source: Any,
        *,
        dtype: Any = None,
        shape: Any = None,
        offset: Any = 0,
        fields: Sequence[str] | None = None,
        scale: Any = None,
        bias: Any = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> None:
        source = _absolute(source)
        self._arguments = {
            **{"source": source, "dtype": dtype, "shape": shape, "offset": offset},
            **{"fields": fields, "scale": scale, "bias": bias, "out_dtype": out_dtype},
        }
        found, self._names = _read(source, {"dtype": dtype, "shape": shape, "offset": offset or None})
        if fields is not None:
            found, self._names = _chosen(found, self._names, fields), None
        keys = list(found)
        single = keys == [None]
        scales, biases = _by_field("scale", scale, keys, single), _by_field("bias", bias, keys, single)
        self._fields = tuple(_scaled(found[key], key, scales[key], biases[key], out_dtype) for key in keys)
        self._bare = single
        self._length = len(self._fields[0])
        lengths = {key: len(field) for key, field in found.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"source: expected fields of equal length, got {lengths}")
        self._stores = {id(field.store): field.store for field in self._fields if field.store is not None}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Record ``index``: fresh tensors. Negative indices count from the end."""
        return self._sample([rows[0] for rows in self._gather([index])])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many records, gathered field by field; torch's DataLoader calls this for a batch."""
        columns = [rows.unbind() for rows in self._gather(indices)]
        return [self._sample(sample) for sample in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        fields = [field.describe() for field in self._fields]
        if self._names is not None:
            fields = [f"{name}: {field}" for name, field in zip(self._names, fields, strict=True)]
        return f"RecordDataset({len(self)} records: {', '.join(fields)})"

    @property
    def record_fields(self) -> tuple[RecordField, ...]:
        """The fields as the C++ feeder takes them, in the order of a sample."""
        return self._fields

    @property
    def structure(self) -> Callable[[list[Tensor]], Any] | None:
        """Makes a batch, as torch's default_collate would, of one tensor for each field; None where it is the list."""
        if self._bare:
            return itemgetter(0)
        if self._names is None:
            return None
        return _DictOf(self._names)

    def verify(self) -> None:
        """RuntimeError, with the path, if a file is shorter than when it was opened, or a read of it failed since. A
        file that was cut short and made whole again, and not read meanwhile, is not noticed.

        Reading through this data set or a loader checks this by itself. Cost: one system call per file.
        """
        for store in self._stores.values():
            store.verify_all()

    def fingerprint(self) -> str:
        """16 hex digits that change with the data or how it is delivered, and not with its place.

        From SHA-256 of the number of records, each field's name, dtype, shape and conversion and, for files, of the
        records in its first and last 4 KiB. Memory counts by dtype and shape alone, since it may be written to.
        """
        digest = hashlib.sha256(f"{len(self)} {self._names} {self._bare}".encode())
        for field in self._fields:
            digest.update(f" {field.describe()}".encode())
            if field.in_file:
                count = -(-_EDGE * len(self) // (field.rows.numel() * field.rows.itemsize))
                for rows in (field.rows[:count], field.rows[-count:]):
                    digest.update(rows.contiguous().view(torch.uint8).numpy().tobytes())
        self.verify()
        return digest.hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        """Files travel as paths, arrays and tensors as values."""
        sizes = {path: os.path.getsize(path) for path in _paths(self._arguments["source"])}
        return {**self._arguments, "sizes": sizes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for path, size in state.pop("sizes").items():
            if os.path.getsize(path) != size:
                raise ValueError(f"{path}: expected {size} bytes, as when pickled, got {os.path.getsize(path)}")
        RecordDataset.__init__(self, **state)

    def _gather(self, indices: Sequence[int]) -> list[Tensor]:
        rows = self._rows(indices)
        columns = [field.gather(rows) for field in self._fields]
        for store in self._stores.values():
            store.verify(0)  # after reading: a file cut short reads as zeroes
        return columns

    def _rows(self, indices: Sequence[int]) -> Tensor:
        """Row numbers, from indices that may count from the end."""
        count = len(self)
        asked = [operator.index(index) for index in indices]
        for index in asked:
            if not -count <= index < count:
                raise IndexError(f"index: expected {-count} to {count - 1}, got {index}")
        return torch.from_numpy(np.array(asked, np.int64)).remainder(count)

    def _sample(self, values: Sequence[Tensor]) -> Any:
        if self._bare:
            return values[0]
        return tuple(values) if self._names is None else dict(zip(self._names, values, strict=True))


class _DictOf:
    """Names for the tensors of a batch. A class, so that it can be pickled."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._names, tensors, strict=True))


# --- arguments -------------------------------------------------------------------------------------------------------


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _absolute(source: Any) -> Any:
    """Paths made absolute and containers copied: what a pickle or a worker elsewhere can open."""
    if _is_path(source):
        return os.path.abspath(os.fspath(source))
    if isinstance(source, Mapping):
        return {name: _absolute(one) for name, one in source.items()}
    if isinstance(source, tuple | list):
        return tuple(_absolute(one) for one in source)
    return source


def _paths(source: Any) -> list[str]:
    sources = source.values() if isinstance(source, dict) else source if isinstance(source, tuple) else [source]
    return [one for one in sources if _is_path(one)]


def _read(source: Any, options: dict[str, Any]) -> tuple[dict[Any, RecordField], list[str] | None]:
    """The fields by key (a name, a position, or None for a single one), and their names if they have some."""
    if not isinstance(source, dict | tuple):
        found = read_records(source, options["dtype"], options["shape"], options["offset"] or 0)
        return found, None if None in found else [str(name) for name in found]
    sources = source if isinstance(source, dict) else dict(enumerate(source))
    if not sources:
        raise ValueError("source: expected at least one field, got none")
    given = {name: _by_field(name, value, list(sources), False) for name, value in options.items()}
    fields: dict[Any, RecordField] = {}
    for key, one in sources.items():
        found = read_records(one, given["dtype"][key], given["shape"][key], given["offset"][key] or 0)
        if None not in found:
            raise ValueError(f"source: expected one field in each of several sources, got {list(found)} in {key!r}")
        fields[key] = found[None]
    return fields, list(sources) if isinstance(source, dict) else None


def _chosen(found: dict[Any, RecordField], names: list[str] | None, fields: Sequence[str]) -> dict[Any, RecordField]:
    if isinstance(fields, str) or not fields:
        raise ValueError(f"fields: expected a sequence of names, got {fields!r}")
    if names is None:
        raise ValueError(f"fields: expected none, as the fields of this source have no names, got {fields!r}")
    for name in fields:
        if name not in found:
            raise ValueError(f"fields: expected names out of {names}, got {name!r}")
    return {name: found[name] for name in fields}


def _by_field(argument: str, value: Any, keys: list[Any], single: bool) -> dict[Any, Any]:
    if single:
        return {keys[0]: value}
    if value is None:
        return dict.fromkeys(keys)
    if not isinstance(value, Mapping) or not set(value) <= set(keys):
        raise ValueError(f"{argument}: expected a dict by field out of {keys}, got {value!r}")
    return {key: value.get(key) for key in keys}


def _scaled(field: RecordField, key: Any, scale: Any, bias: Any, dtype: torch.dtype) -> RecordField:
    if scale is None and bias is None:
        return field
    where = "" if key is None else f" of field {key!r}"
    if field.dtype is not torch.uint8 or not field.shape:
        raise ValueError(f"scale{where}: expected uint8 records with a dimension of channels, got {field.describe()}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"out_dtype: expected torch.float32 or torch.bfloat16, got {dtype}")
    channels = field.shape[0]
    numbers = []
    for name, value, default in (("scale", scale, 1.0), ("bias", bias, 0.0)):
        given = torch.as_tensor(default if value is None else value, dtype=torch.float32)
        if given.shape not in ((), (channels,)) or not bool(given.isfinite().all()):
            raise ValueError(f"{name}{where}: expected 1 or {channels} finite numbers, got {value!r}")
        numbers.append(given.expand(channels).clone())
    return replace(field, scaling=Scaling(numbers[0], numbers[1], dtype))
