"""One layer of a PagedKVCache, as transformers calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.paged_attention import Pages, mark
from aegis.decode.paged_positions import PagedPositions

__all__ = ["PagedLayer"]

# Past the Python method around the operator, as in cache_layer.
_append = getattr(torch.ops.aegis.kv_append_.paged, "_op", torch.ops.aegis.kv_append_.paged)


class PagedLayer(SlottedLayer):
    """Keys and values, (pages, heads, block_size, size): position p of a row lies in slot ``p % block_size`` of the
    row's page ``p // block_size``. Nothing wraps: pages before a layer's window are given back."""

    _positions: PagedPositions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pages = self._positions.kinds[self.kind]

    def adopt(self, keys: Tensor, values: Tensor) -> None:
        super().adopt(keys, values)
        mark(keys, self._positions, self.pages)

    @property
    def is_croppable(self) -> bool:
        return self.pages.keep is None or self.window is None or self.pages.keep > self.window + 1

    def seen(self, shortest: int, longest: int, tokens: int) -> tuple[int | None, int]:
        total = longest + tokens
        start = 0 if self.window is None else max(shortest - (self.window - 1 + self._positions.slack), 0)
        return start, total - start

    def _write_and_read(self, keys: Tensor, values: Tensor, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
        positions = self._positions
        _append(self.keys, self.values, keys, values, positions.at, self.pages.blocks, positions.selection)
        if positions.by_spans:
            return self.pool()
        start, count = self.seen(positions.shortest, positions.longest, tokens)
        assert start is not None  # nothing wraps
        seen = self._linear(batch, start, count)
        if positions.shortest != positions.longest:
            lengths = positions.host.lengths
            for row, own in enumerate(positions.batch_rows(batch)):
                end = lengths[own] + tokens - start
                if end < count:  # and where a page was given back before a window, there are zeros
                    for copied in seen:
                        copied[row, :, end:].zero_()
        return seen

    def _update_by_tensors(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        batch, _, tokens, _ = keys.shape
        positions = self._positions
        positions.batch_rows(batch)
        torch.ops.aegis.kv_append_.paged(
            self.keys, self.values, keys, values, positions.where(batch), self.pages.blocks, positions.selection
        )
        if tokens == 1 and self.reads_spans():
            seen = self.pool()
        else:
            keys, values = self._linear(batch, 0, self.max_cache_len)
            ends = positions.where(batch)[:, None] + tokens
            behind = (torch.arange(self.max_cache_len, device=ends.device) >= ends)[:, None, :, None]
            seen = keys.masked_fill(behind, 0), values.masked_fill(behind, 0)
        if self._last:
            positions.advance(batch, tokens)
        return seen

    def pool(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _linear(self, batch: int, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Positions start, ..., start + count - 1 of the current rows, copied."""
        keys, values = self.pool()
        size = keys.shape[2]
        skipped = start // size
        pages = Pages(self.pages.blocks[:, skipped:], self._positions.selection)
        first, length = start - skipped * size, start + count - skipped * size
        return pages.linear(keys, batch, length)[:, :, first:], pages.linear(values, batch, length)[:, :, first:]

    def gather_rows(self, sources: list[int], longest: int) -> None:
        """Nothing: the rows got each other's pages."""

    def copy_pages(self, pairs: Tensor) -> None:
        """Copies pages pairs[:, 0] to pages pairs[:, 1]."""
        if self.is_initialized:
            for pool in self.pool():
                pool[pairs[:, 1]] = pool[pairs[:, 0]]

    def copy_each(self, pairs: list[tuple[int, int]]) -> None:
        """The same, slower, and without memory beside the pool."""
        if self.is_initialized:
            for pool in self.pool():
                for source, target in pairs:
                    pool[target].copy_(pool[source])

    def page_bytes(self) -> int:
        """Of a page's keys and values; 0 before there are any."""
        if not self.is_initialized:
            return 0
        return sum(pool[0].numel() * pool.element_size() for pool in self.pool())
