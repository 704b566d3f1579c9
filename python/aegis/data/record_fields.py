"""One field of fixed-size records: where its rows lie, and how a batch of them is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aegis import _C, ops
from aegis.data.dtypes import CODES

__all__ = ["RecordField", "Scaling", "record_filler"]


@dataclass(frozen=True)
class Scaling:
    """uint8 values as ``x * scale + bias`` by channel, in float32 or bfloat16; scale and bias are (channels,)."""

    scale: Tensor
    bias: Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class RecordField:
    """Rows of one dtype and shape."""

    rows: Tensor
    """(n, *shape) of dtype; or (n, bytes of a row) uint8, where the memory may not be aligned for dtype."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    store: _C.TokenStore | None = None
    """What maps the rows, where they are read from a file in place."""
    in_file: bool = False
    """Whether the rows came from a file: their values are then part of what the data is."""
    scaling: Scaling | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, indices: Tensor) -> Tensor:
        """(len(indices), *shape) fresh: the rows of these numbers, converted where the field is."""
        if self.scaling is not None:
            scaling = self.scaling
            return ops.gather_records_scaled(self.rows, indices, scaling.scale, scaling.bias, scaling.dtype)
        rows = ops.gather_records(self.rows, indices)
        return rows if rows.dtype is self.dtype else rows.view(self.dtype).view(len(indices), *self.shape)

    def describe(self) -> str:
        """dtype, shape and conversion, the same on every machine."""
        text = f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"
        if self.scaling is None:
            return text
        to = str(self.scaling.dtype).removeprefix("torch.")
        return f"{text} to {to}, scale {self.scaling.scale.tolist()}, bias {self.scaling.bias.tolist()}"

    def _array(self) -> Any:
        """What _C.RecordFiller takes."""
        scaling = None
        if self.scaling is not None:
            to_bfloat16 = self.scaling.dtype is torch.bfloat16
            scaling = (self.scaling.scale.tolist(), self.scaling.bias.tolist(), to_bfloat16)
        return self.rows.__dlpack__(), (*CODES[self.dtype], self.shape), scaling, self.store


def record_filler(fields: tuple[RecordField, ...]) -> _C.RecordFiller:
    """Writes one tensor of a batch for each field. Keeps the memory that the rows lie in."""
    return _C.RecordFiller([field._array() for field in fields])
