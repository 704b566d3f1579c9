"""The pages of those layers of a paged cache that keep the same positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aegis.decode.page_table import PageTable

__all__ = ["LayerPages"]

Pairs = list[tuple[int, int]]


class LayerPages:
    """Row r is sequence r of ``table``, whose length is never less than the row's: it also has room for the pass that
    is under way.

    ``blocks`` (rows, blocks) int64 tells the pages to kernels; it lives on the device and never moves once the cache
    has buffers. It names two kinds of pages beside the table's. Behind a row's last page stands one of the row's own
    that nobody reads, pages + r: a step that carries a free row along writes there. For what was given back before a
    window stands the last page of the pool, which is never written, and holds zeros.

    Args:
        table: an empty one.
        keep: how many positions of a row are kept, from its newest back; None where all are.
        window: the most that a query sees of them.
    """

    def __init__(
        self, table: PageTable, rows: int, capacity: int, keep: int | None, window: int, device: torch.device
    ) -> None:
        self.table = table
        self.keep, self._window = keep, window
        count = -(-capacity // table.block_size)
        with torch.inference_mode(False):  # tensors made in that mode could not be written outside of it
            spare = torch.arange(table.pages, table.pages + rows)
            self._host = spare[:, None].repeat(1, count)
            self.blocks = self._host.to(device)  # the same tensor on a CPU
        self._numbers = self._host.numpy()
        self._held = [0] * rows  # blocks in _host
        for row in range(rows):
            table.begin(row, ())

    @staticmethod
    def pool(pages: int, rows: int) -> int:
        """Pages of a pool of which a table hands out ``pages``."""
        return pages + rows + 1

    @property
    def in_use(self) -> int:
        """Pages that rows hold. Those that are kept for their content alone do not count."""
        return self.table.pages - self.table.free_pages - self.table.evictable_pages

    def place(self, device: torch.device) -> None:
        if self.blocks.device != device:
            with torch.inference_mode(False):
                self.blocks = self.blocks.to(device)

    def grow(self, rows: Sequence[int], lengths: Sequence[int]) -> Pairs:
        """Takes pages, and returns which of them to copy: they are in ``blocks`` after publish()."""
        pairs = self.table.extend(rows, lengths)
        if not pairs:
            size = self.table.block_size
            self.publish([row for row, length in zip(rows, lengths, strict=True) if self._held[row] * size < length])
        return pairs

    def trim(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Gives back the pages of rows of these lengths that no window reaches, from now on."""
        keep = self.keep
        if keep is not None:
            self.publish([row for row in rows if lengths[row] > keep and self.table.trim(row, lengths[row] - keep)])

    def least(self, row: int) -> int:
        """The least length above 0 that a row can be cropped to: one whose window is whole."""
        trimmed = 0 if self.keep is None else self.table.trimmed(row)
        return trimmed and trimmed + max(self._window - 1, 1)

    def publish(self, rows: Sequence[int]) -> None:
        """Brings the pages of rows into ``blocks``."""
        if not rows:
            return
        table = self.table
        for row in rows:
            pages = table.pages_of(row)
            numbers = self._numbers[row]
            numbers[: len(pages)] = pages
            if self.keep is not None:
                numbers[: len(pages)][pages == PageTable.NO_PAGE] = table.pages + len(self._held)
            numbers[len(pages) : self._held[row]] = table.pages + row
            self._held[row] = len(pages)
        if self.blocks is not self._host:
            low, high = min(rows), max(rows) + 1
            self.blocks[low:high].copy_(self._host[low:high])

    def crop(self, row: int, length: int) -> None:
        """Gives back what a row holds beyond a length."""
        if self.table.length(row) > length:
            self.table.crop(row, length)
            self.publish([row])
