"""Element types as DLPack writes them: a type code and a width in bits."""

from __future__ import annotations

import torch

__all__ = ["CODES", "DTYPES", "MAX_DIMS"]

MAX_DIMS = 8
"""Of a tensor that is made from one of our capsules."""

DTYPES = {
    **{(0, 8 * dtype.itemsize): dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)},
    **{(1, 8 * dtype.itemsize): dtype for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)},
    **{(2, 8 * dtype.itemsize): dtype for dtype in (torch.float16, torch.float32, torch.float64)},
    (4, 16): torch.bfloat16,
    **{(5, 8 * dtype.itemsize): dtype for dtype in (torch.complex64, torch.complex128)},
    (6, 8): torch.bool,
}
"""By code and width; the types that every supported torch takes from DLPack."""

CODES = {dtype: key for key, dtype in DTYPES.items()}
