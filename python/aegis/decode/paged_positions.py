"""Where the next tokens of a paged cache go: lengths of rows, and the pages they lie on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegis.decode.cache_positions import Positions
from aegis.decode.page_table import PageTable, token_array

__all__ = ["PagedPositions", "as_tokens"]

Pairs = list[tuple[int, int]]


class PagedPositions(Positions):
    """Positions, of which each row has its pages in a table of all.

    Row r is sequence r of ``table``, whose length is never less than the row's: it also has room for the pass that is
    under way. ``blocks`` (rows, blocks) int64 tells the pages to kernels; it lives on the device and never moves once
    the cache has buffers. Behind a row's last page it names a page of the row's own that nobody reads, pages + r: a
    step that carries a free row along writes there.

    Args:
        table: an empty one.
        copy: a method that gets pairs of pages before a pass, to copy what they hold in every layer. It is held weakly:
            it is that of the cache, whose memory is to go with its last reference.
    """

    def __init__(
        self, rows: int, capacity: int, device: torch.device, table: PageTable, copy: Callable[[Pairs], None]
    ) -> None:
        super().__init__(rows, capacity, [], device)
        self.table = table
        self._copy = WeakMethod(copy)
        count = -(-capacity // table.block_size)
        with torch.inference_mode(False):
            spare = torch.arange(table.pages, table.pages + rows)
            self._host_blocks = spare[:, None].repeat(1, count)
            self.blocks = self._host_blocks.to(device)  # the same tensor on a CPU
        self._numbers: NDArray[Any] = self._host_blocks.numpy()
        self._held = [0] * rows  # pages in _host_blocks
        self._untold: dict[int, NDArray[Any]] = {}  # of rows, tokens that are going to be fed
        self._stepping: list[int] = []
        for row in range(rows):
            table.begin(row, ())

    def place(self, device: torch.device) -> None:
        super().place(device)
        if self.blocks.device != device:
            with torch.inference_mode(False):
                self.blocks = self.blocks.to(device)

    # Passes

    def begin(self, batch: int, tokens: int) -> None:
        rows = self.batch_rows(batch)
        fresh = [row for row in rows if not self.host.in_use(row)]
        super().begin(batch, tokens)
        try:
            self._grow(rows, tokens)
        except BaseException:
            self.open = None
            self.host.abort()
            if fresh:
                self.release(fresh)
            raise

    def commit(self) -> None:
        assert self.open is not None
        rows = self.batch_rows(self.open[0])
        super().commit()
        self._tell_fed(rows)

    def begin_bracket(self, rows: list[int], tokens: int) -> None:
        fresh = [row for row in rows if not self.host.in_use(row)]
        super().begin_bracket(rows, tokens)
        try:
            self._grow(rows, tokens)
        except BaseException:
            self.bracketed = False
            self.host.abort()
            if fresh:
                self.release(fresh)
            raise
        self._stepping = list(rows)

    def end_bracket(self, completed: bool) -> None:
        super().end_bracket(completed)
        if completed:
            self._tell_fed(self._stepping)

    def _grow(self, rows: Sequence[int], tokens: int) -> None:
        held = self.host.lengths
        lengths = [held[row] + tokens for row in rows]
        pairs = self.table.extend(rows, lengths)
        if pairs:
            copy = self._copy()
            assert copy is not None
            try:
                copy(pairs)
            finally:  # what the table says is so: also where this raises, the rows have other pages now
                self._publish(rows)
            return
        size = self.table.block_size
        self._publish([row for row, length in zip(rows, lengths, strict=True) if self._held[row] * size < length])

    def _publish(self, rows: Sequence[int]) -> None:
        """Brings the pages of rows into ``blocks``."""
        if not rows:
            return
        for row in rows:
            pages = self.table.pages_of(row)
            numbers = self._numbers[row]
            numbers[: len(pages)] = pages
            numbers[len(pages) : self._held[row]] = self.table.pages + row
            self._held[row] = len(pages)
        if self.blocks is not self._host_blocks:
            low, high = min(rows), max(rows) + 1
            self.blocks[low:high].copy_(self._host_blocks[low:high])

    def _tell_fed(self, rows: Sequence[int]) -> None:
        """Lets others share what has been written of the tokens that rows were acquired with."""
        if not self._untold:
            return
        for row in rows:
            tokens = self._untold.pop(row, None)
            if tokens is not None:
                count = self.host.lengths[row] - self.table.known(row)
                self.table.tell(row, tokens[:count])
                if count < len(tokens):
                    self._untold[row] = tokens[count:]

    # Between passes

    def tell(self, row: int, tokens: NDArray[Any]) -> None:
        """What a row's tokens are, from the first that is not known."""
        self.host.length_range([row])
        unknown = self.host.lengths[row] - self.table.known(row)
        if len(tokens) > unknown:
            raise ValueError(
                f"tokens: expected at most {unknown}, those of the row that are not known, got {len(tokens)}"
            )
        self.table.tell(row, tokens)

    def acquire_with(self, tokens: NDArray[Any]) -> int:
        """A free row that begins with the pages there are of these tokens, all but the last at most."""
        capacity = self.host.capacity
        if not 1 <= len(tokens) <= capacity:
            raise ValueError(f"tokens: expected 1 to {capacity}, what a row can hold, got {len(tokens)}")
        found = self.table.lookup(tokens[:-1])
        row = self.host.acquire()
        self._begin_with(row, found, lambda: self.table.begin(row, tokens[:found]))
        self._untold[row] = tokens[found:]
        return row

    def fork(self, row: int) -> int:
        """A free row of the same tokens in the same pages."""
        if not self.host.in_use(row):
            raise ValueError(f"row: expected one in use, got {row}")
        length = self.host.lengths[row]
        twin = self.host.acquire()
        self._drop_room(row)
        self._begin_with(twin, length, lambda: self.table.fork(row, twin))
        if row in self._untold:
            self._untold[twin] = self._untold[row]
        return twin

    def _begin_with(self, row: int, length: int, begin: Callable[[], object]) -> None:
        self.table.free(row)
        begin()
        if length > 0:
            self.host.begin([row], length)
            self.host.commit()
        self._changed()
        self._publish([row])

    def _drop_room(self, row: int) -> None:
        """Gives back what a pass that failed had taken."""
        length = self.host.lengths[row]
        if self.table.length(row) > length:
            self.table.crop(row, length)
            self._publish([row])

    def crop(self, tokens: Sequence[int]) -> None:
        rows = self.current_rows()
        super().crop(tokens)
        for row, count in zip(rows, tokens, strict=True):
            if count > 0:
                self._untold.pop(row, None)
            self._drop_room(row)

    def release(self, rows: Sequence[int]) -> None:
        for row in rows:
            if not self.host.in_use(row):
                raise ValueError(f"row: expected one in use, got {row}, which is free")
        super().release(rows)
        self._empty(rows)

    def reset(self) -> None:
        super().reset()
        count = len(self._all_rows)
        for twin in range(count, 2 * count):  # of a gather that an exception ended
            if twin in self.table:
                self.table.free(twin)
        self._empty(self._all_rows)

    def _empty(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._untold.pop(row, None)
            if row in self.table:  # not where an exception came between the two
                self.table.free(row)
            self.table.begin(row, ())
        self._publish(rows)

    def gather(self, sources: Sequence[int]) -> None:
        """Row i gets the pages of row sources[i]; nothing is copied."""
        count = len(self._all_rows)
        super().gather(sources)
        untold = {row: self._untold[source] for row, source in enumerate(sources) if source in self._untold}
        lengths = self.host.lengths
        for row, source in enumerate(sources):
            self.table.fork(source, count + row)
            self.table.crop(count + row, lengths[row])
        for row in self._all_rows:
            self.table.free(row)
            if row < len(sources):
                self.table.fork(count + row, row)
                self.table.free(count + row)
            else:
                self.table.begin(row, ())
        self._untold = untold
        self._publish(self._all_rows)

    def adopt(self, other: Positions) -> None:
        assert isinstance(other, PagedPositions)
        super().adopt(other)
        self.table = other.table.copy()
        self._untold = dict(other._untold)
        self._publish(self._all_rows)


def as_tokens(tokens: Any) -> NDArray[Any]:
    """One row of token ids, of a list, an array or a tensor of any device: a copy, which nobody changes later."""
    given = tokens.detach().cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"tokens: expected integers of one dimension, got {given.dtype} of shape {given.shape}")
    return token_array(given).copy()
