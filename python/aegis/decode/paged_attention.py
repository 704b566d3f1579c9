"""Keys and values that lie on pages, as attention reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Pages", "linear", "mark", "pages_of"]


class Pages(NamedTuple):
    """Where a batch's keys and values lie: block i of batch row b on page ``blocks[rows[b], i]``, or
    ``blocks[b, i]``."""

    blocks: Tensor
    rows: Tensor | None

    def linear(self, pool: Tensor, batch: int, length: int | None = None) -> Tensor:
        blocks = self.blocks[:batch] if self.rows is None else self.blocks.index_select(0, self.rows)
        if length is not None:
            blocks = blocks[:, : -(-length // pool.shape[2])]
        return linear(pool, blocks)[:, :, :length]


def linear(pool: Tensor, blocks: Tensor) -> Tensor:
    """Pages (pages, heads, slots, size) of a block table (batch, n) as (batch, heads, n * slots, size): a copy."""
    batch, count = blocks.shape
    _, heads, slots, size = pool.shape
    picked = pool.transpose(0, 1).index_select(1, blocks.reshape(-1))
    return picked.view(heads, batch, count * slots, size).transpose(0, 1)


def mark(pool: Tensor, positions: Any, pages: Any) -> None:
    """Lets the attention function know, from keys that it is handed, that they are a pool of pages."""
    pool._aegis_pages = positions, pages  # type: ignore[attr-defined]


def pages_of(key: Tensor, mask: Tensor | None) -> tuple[Pages, Tensor | None] | None:
    """The pages that keys lie on, and the mask without them; None where keys are no pool of pages.

    A mask that is spans (batch, 1, 1, 2 + n) has a block table behind them: captured and compiled passes have it so,
    since in them nothing but tensors gets from a cache to the attention function. Elsewhere the pool is marked.
    """
    if mask is not None and mask.dtype == torch.int64 and mask.ndim == 4 and mask.shape[3] > 2:
        return Pages(mask[:, 0, 0, 2:], None), mask[..., :2]
    marked = getattr(key, "_aegis_pages", None)
    if marked is None:
        return None
    positions, pages = marked
    return Pages(pages.blocks, positions.selection), mask
