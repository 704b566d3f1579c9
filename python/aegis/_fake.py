"""Shapes and dtypes of every operator's results, for torch.compile and torch.export."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.register_fake("aegis::extract_batch")
def _(arena: Tensor, offsets: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0], block_size)
    return offsets.new_empty(shape), offsets.new_empty(shape)


@torch.library.register_fake("aegis::extract_batch.out")
def _(arena: Tensor, offsets: Tensor, *, inputs: Tensor, targets: Tensor) -> None:
    return None
