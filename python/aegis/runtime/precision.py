"""Whether float32 matrix products and convolutions may take TF32, and what is in force."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["precision", "set_tf32", "tf32"]


def _places() -> dict[str, Any]:
    """What has an ``fp32_precision`` (torch 2.9 and later), in the order in which one is the default of the next."""
    backends = torch.backends
    return {
        "all": backends,
        "cuda": backends.cudnn,
        "cuda.matmul": backends.cuda.matmul,
        "cudnn.conv": backends.cudnn.conv,  # type: ignore[attr-defined]
        "cudnn.rnn": backends.cudnn.rnn,
        "mkldnn.matmul": backends.mkldnn.matmul,  # type: ignore[attr-defined]
    }


def _older() -> tuple[str, bool] | None:
    """``torch.get_float32_matmul_precision()`` and ``torch.backends.cudnn.allow_tf32``; None where the process has set
    an ``fp32_precision`` that they cannot express: torch then refuses to read them."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def precision() -> dict[str, str]:
    """What float32 arithmetic may be rounded to, by backend and operation: "ieee", "tf32", "bf16", or "none" where a
    wider setting (in the end float32 itself) decides.

    Reads the ``fp32_precision`` settings alone, which torch answers whichever way they were made.
    """
    return {name: str(place.fp32_precision) for name, place in _places().items()}


def set_tf32(enabled: bool) -> None:
    """Lets CUDA's float32 matrix products, convolutions and recurrent layers take TF32, or not.

    torch has two sets of switches for this, and raises where one is read after the other was written. The older ones
    (``set_float32_matmul_precision``, ``cudnn.allow_tf32``) write both, so they are used as long as they can be read;
    in a process that has set an ``fp32_precision``, that is.
    """
    if _older() is not None:
        torch.set_float32_matmul_precision("high" if enabled else "highest")
        torch.backends.cudnn.allow_tf32 = enabled
        return
    for name in ("cuda.matmul", "cudnn.conv", "cudnn.rnn"):
        _places()[name].fp32_precision = "tf32" if enabled else "ieee"


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """:func:`set_tf32` for a block; afterwards every setting is as before, also after an exception. Nests.

    The settings belong to the process: other threads see them too.
    """
    older, before = _older(), precision()
    set_tf32(enabled)
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older[0])
            torch.backends.cudnn.allow_tf32 = older[1]
        for name, place in _places().items():
            if place.fp32_precision != before[name]:
                place.fp32_precision = before[name]
