"""Where the next tokens of a paged cache go: lengths of rows, and the pages they lie on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegis.decode.cache_positions import Leftover, Positions
from aegis.decode.layer_pages import LayerPages, Pairs
from aegis.decode.page_table import PageTable, token_array

__all__ = ["PagedPositions", "as_tokens"]


class PagedPositions(Positions):
    """Positions, of which each row has pages: some in full layers, others in those with a window.

    Args:
        kinds: the pages of each kind of layer, those that keep most first; all have blocks of one size.
        copy: a method that gets a group and pairs of its pages before a pass, to copy what they hold in every layer. It
            is held weakly: it is that of the cache, whose memory is to go with its last reference.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        device: torch.device,
        kinds: dict[str, LayerPages],
        copy: Callable[[LayerPages, Pairs], None],
    ) -> None:
        super().__init__(rows, capacity, [], device)
        self.kinds = kinds
        self.groups = list(dict.fromkeys(kinds.values()))
        self._trimmed = [group for group in self.groups if group.keep is not None]
        self._copy = WeakMethod(copy)
        self._untold: dict[int, NDArray[Any]] = {}  # of rows, tokens that are going to be fed
        self._stepping: list[int] = []
        self._torn = False
        """From before a change of rows until all tables have it, which an exception may come between."""
        self._moved: tuple[Any, list[int], dict[int, NDArray[Any]]] | None = None
        """A gather that is to be finished: the host before it, the sources, and what is untold behind it."""

    @property
    def table(self) -> PageTable:
        """Where all that is asked of one table has the same answer in each."""
        return self.groups[0].table

    @property
    def _tables(self) -> list[PageTable]:
        return [group.table for group in self.groups]

    def place(self, device: torch.device) -> None:
        super().place(device)
        for group in self.groups:
            group.place(device)

    # Passes

    def begin(self, batch: int, tokens: int, by_spans: bool = False) -> None:
        self.rejoined()
        rows = self.batch_rows(batch)
        fresh = [row for row in rows if not self.host.in_use(row)]
        super().begin(batch, tokens, by_spans)
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
        self._close(rows)

    def begin_bracket(self, rows: list[int], tokens: int) -> None:
        self.rejoined()
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
            self._close(self._stepping)

    def _find_leftovers(self) -> list[Leftover]:
        """None: what a page holds behind its row's tokens is left out of the copies that attention is handed."""
        return []

    def _grow(self, rows: Sequence[int], tokens: int) -> None:
        held = self.host.lengths
        lengths = [held[row] + tokens for row in rows]
        for group in self.groups[1:]:
            group.table.expect_room(rows, lengths)  # as the first one's grow() does: all of them, or none
        for group in self.groups:
            pairs = group.grow(rows, lengths)
            if pairs:
                copy = self._copy()
                assert copy is not None
                try:
                    copy(group, pairs)
                finally:  # what the table says is so: also where this raises, the rows have other pages now
                    group.publish(rows)

    def _publish(self, rows: Sequence[int]) -> None:
        for group in self.groups:
            group.publish(rows)

    def _close(self, rows: Sequence[int]) -> None:
        """After a pass over rows. Names are told first: what is given back can then still be found."""
        self._tell_fed(rows)
        self._trim(rows)

    def _trim(self, rows: Sequence[int]) -> None:
        if self._trimmed:
            self._torn = True
            lengths = self.host.lengths
            for group in self._trimmed:
                group.trim(rows, lengths)
            self._torn = False

    def _tell_fed(self, rows: Sequence[int]) -> None:
        """Lets others share what has been written of the tokens that rows were acquired with."""
        if not self._untold:
            return
        for row in rows:
            tokens = self._untold.pop(row, None)
            if tokens is not None:
                count = self.host.lengths[row] - self.table.known(row)
                self._tell(row, tokens[:count])
                if count < len(tokens):
                    self._untold[row] = tokens[count:]

    # Between passes

    def tell(self, row: int, tokens: NDArray[Any]) -> None:
        """What a row's tokens are, from the first that is not known."""
        self.rejoined()
        self.host.length_range([row])
        unknown = self.host.lengths[row] - self.table.known(row)
        if len(tokens) > unknown:
            raise ValueError(
                f"tokens: expected at most {unknown}, those of the row that are not known, got {len(tokens)}"
            )
        self._tell(row, tokens)

    def _tell(self, row: int, tokens: NDArray[Any]) -> None:
        start = self.table.known(row)
        for table in self._tables:
            known = table.known(row)
            if known >= start:  # less is known where an exception came between the two, and the tokens before are gone
                table.tell(row, tokens[known - start :])

    def acquire_with(self, tokens: NDArray[Any]) -> int:
        """A free row that begins with the pages there are of these tokens, all but the last at most."""
        capacity = self.host.capacity
        if not 1 <= len(tokens) <= capacity:
            raise ValueError(f"tokens: expected 1 to {capacity}, what a row can hold, got {len(tokens)}")
        self.rejoined()
        found = min(table.lookup(tokens[:-1]) for table in self._tables)
        row = self._begin_with(found, lambda row, table: table.begin(row, tokens[:found]))
        self._untold[row] = tokens[found:]
        return row

    def fork(self, row: int) -> int:
        """A free row of the same tokens in the same pages."""
        if not self.host.in_use(row):
            raise ValueError(f"row: expected one in use, got {row}")
        self.rejoined()
        self._drop_room(row)
        twin = self._begin_with(self.host.lengths[row], lambda twin, table: table.fork(row, twin))
        if row in self._untold:
            self._untold[twin] = self._untold[row]
        return twin

    def _begin_with(self, length: int, begin: Callable[[int, PageTable], object]) -> int:
        """A free row of ``length`` tokens whose pages are there."""
        self._torn = True
        row = self.host.acquire()
        for table in self._tables:
            table.free(row)
            begin(row, table)
        if length > 0:
            self.host.begin([row], length)
            self.host.commit()
        self._changed()
        self._publish([row])
        self._trim([row])
        self._torn = False
        return row

    def _drop_room(self, row: int) -> None:
        """Gives back what a pass that failed had taken."""
        for group in self.groups:
            group.crop(row, self.host.lengths[row])

    def crop(self, tokens: Sequence[int]) -> None:
        self.rejoined()
        rows = self.current_rows()
        lengths = self.host.lengths
        for row, count in zip(rows, tokens, strict=False):  # as many as there are is checked by the host
            room = max(lengths[row] - max(group.least(row) for group in self.groups), 0)
            if room < count < lengths[row]:
                raise ValueError(
                    f"row {row}: expected to lose at most {room} of its {lengths[row]} tokens, since a sliding layer "
                    f"no longer holds the window before them, got {count}"
                )
        untold, cropped = self._untold, {row for row, count in zip(rows, tokens, strict=False) if count > 0}
        # What is left of them is dropped first: fed behind fewer tokens, it would be told of others.
        self._untold = {row: tokens for row, tokens in untold.items() if row not in cropped}
        self._torn = True
        try:
            super().crop(tokens)
        except (ValueError, IndexError):
            self._untold = untold
            raise
        for row in rows:
            self._drop_room(row)
        self._torn = False

    def release(self, rows: Sequence[int]) -> None:
        for row in rows:
            if not self.host.in_use(row):
                raise ValueError(f"row: expected one in use, got {row}, which is free")
        self.rejoined()
        self._torn = True
        for row in rows:
            self._untold.pop(row, None)
        super().release(rows)
        self._empty(rows)
        self._torn = False

    def reset(self) -> None:
        self._torn = True
        self._moved = None
        self._untold.clear()
        super().reset()
        self._mend()

    def _empty(self, rows: Sequence[int]) -> None:
        for row in rows:
            for table in self._tables:
                table.free(row)
                table.begin(row, ())
        self._publish(rows)

    def gather(self, sources: Sequence[int]) -> None:
        """Row i gets the pages of row sources[i]; nothing is copied."""
        self.rejoined()
        count = len(self._all_rows)
        if len(sources) > count or not all(self.host.in_use(source) for source in sources):
            super().gather(sources)  # which says what is wrong
        self._torn = True
        for table in self._tables:
            for row, source in enumerate(sources):
                table.fork(source, count + row)
        untold = {row: self._untold[source] for row, source in enumerate(sources) if source in self._untold}
        self._moved = self.host.copy(), list(sources), untold
        self._mend()

    def rejoined(self) -> Tensor:
        if self._torn:
            self._mend()
        return super().rejoined()

    def _mend(self) -> None:
        """Brings all tables to what the host says, however far a change came: it can be repeated.

        A gather that had made its forks, of sequences behind those of rows, goes on to its end; before, they are freed.
        """
        count = len(self._all_rows)
        moved = self._moved
        if moved is not None:
            self.host = moved[0].copy()
            super().gather(moved[1])
            self._untold = dict(moved[2])
        lengths = self.host.lengths
        for table in self._tables:
            for row in self._all_rows:
                if count + row in table:
                    if moved is not None:
                        if row in table:
                            table.free(row)
                        table.fork(count + row, row)
                    table.free(count + row)
                if row not in table:
                    table.begin(row, ())
                if table.length(row) > lengths[row]:
                    table.crop(row, lengths[row])
        self._moved = None
        self._publish(self._all_rows)
        self._changed()
        self._torn = False

    def adopt(self, other: Positions) -> None:
        assert isinstance(other, PagedPositions)
        other.rejoined()
        super().adopt(other)
        for group, its in zip(self.groups, other.groups, strict=True):
            group.table = its.table.copy()
        self._untold = dict(other._untold)
        self._publish(self._all_rows)


def as_tokens(tokens: Any) -> NDArray[Any]:
    """One row of token ids, of a list, an array or a tensor of any device: a copy, which nobody changes later."""
    given = tokens.detach().cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"tokens: expected integers of one dimension, got {given.dtype} of shape {given.shape}")
    return token_array(given).copy()
