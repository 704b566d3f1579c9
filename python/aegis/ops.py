"""The operators, with their Python signatures: each is ``torch.ops.aegis.<name>``.

Use either spelling in eager code; TorchScript wants ``torch.ops.aegis``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

torch.ops.load_library(str(Path(__file__).parent / "lib" / "libaegis_ops.so"))  # type: ignore[no-untyped-call]

from aegis import _fake  # noqa: E402, F401  (needs the schemas that the library just brought)

__all__ = ["extract_batch"]


def extract_batch(
    arena: Tensor,
    offsets: Tensor,
    block_size: int | None = None,
    *,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cut windows out of a flat token arena: inputs, and targets one token later.

    Args:
        arena: (n,) uint8, uint16, uint32, int32 or int64, contiguous.
        offsets: (batch,) int64 on the arena's device; window starts, ``0 <= offset < n - block_size``.
        block_size: tokens in a window; taken from ``inputs`` when that is given.
        inputs: (batch, block_size) int64 or int32, written in place. Together with ``targets``.
        targets: (batch, block_size) int64, written in place.

    Returns:
        ``(inputs, targets)``, fresh int64 tensors unless given. Narrowing to int32 saturates, it never wraps.

    Raises:
        ValueError: a wrong dtype, shape, stride, device or an overlap; nothing has been written.
        IndexError: an offset outside the arena (CPU); nothing has been written. On CUDA, where a look at the
            offsets would stall the stream, such a row is filled with -1 instead.

    Cost: one pass, on the calling thread (CPU) or the current stream (CUDA); bound by memory latency when the
    arena is larger than the caches.
    """
    if inputs is None and targets is None:
        if block_size is None:
            raise TypeError("block_size: expected an int, got None (and no inputs to take it from)")
        result: tuple[Tensor, Tensor] = torch.ops.aegis.extract_batch(arena, offsets, block_size)
        return result
    if inputs is None or targets is None:
        raise TypeError("inputs and targets: expected both or neither")
    if block_size is not None and inputs.ndim == 2 and inputs.shape[1] != block_size:
        raise ValueError(f"inputs: expected {block_size} columns (block_size), got {inputs.shape[1]}")
    torch.ops.aegis.extract_batch.out(arena, offsets, inputs=inputs, targets=targets)
    return inputs, targets
