"""Where the next tokens of a cache go: the lengths of its rows, on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aegis import _C

__all__ = ["Leftover", "Positions", "capturing"]

Leftover = tuple[int, int, int, int]
"""Row, from, touched, before: what a buffer holds behind the tokens of a pass; see core/kv_slots.h."""


def capturing(device: torch.device) -> bool:
    """Whether Python's numbers would be frozen: while torch.compile traces or a CUDA graph is captured."""
    return torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


class Positions:
    """Shared by all layers of a cache, so that they cannot disagree.

    ``lengths`` (rows,) int64 lives on the device, never moves once the cache has buffers, and is what the kernels
    read; ``host`` is the same numbers in C++, for capacity checks and for the shapes of views. Both advance when the
    last layer has been written.

    A forward pass goes over the rows ``selected``, or over rows 0, 1, ... of its batch.
    """

    def __init__(self, rows: int, capacity: int, windows: Sequence[tuple[int, int]], device: torch.device) -> None:
        self.host = _C.KvSlots(rows, capacity, windows)
        with torch.inference_mode(False):  # tensors made in that mode could not be written outside of it
            self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
            # 1 for rows in use: what they advance by for each token, where the host has no say.
            self.growth = torch.zeros_like(self.lengths)
        self._wraps = bool(windows)
        self._parted = False
        """From before a change on the host until it is on the device, which an exception may come between."""
        self.selected: list[int] | None = None
        self.selection: Tensor | None = None
        self.bracketed = False
        """Between begin_step and commit_step: a forward pass then works with tensors alone."""
        self.open: tuple[int, int] | None = None
        """(batch, tokens) of the eager pass that has begun."""
        self.shortest = self.longest = 0
        """Lengths of the rows of that pass."""
        self.at = self.lengths
        """Their positions on the device: what where() gave."""
        self.leftovers: list[Leftover] = []
        """What layers have to clear before attention reads their buffers in that pass, or in the one that is bracketed:
        other requests' keys and values, and those of tokens taken back, may be no numbers, and a weight of 0 does not
        take a NaN out of a sum."""
        self.slack = 0
        """Places between a window and the tokens of this pass: what a tree has side by side there."""
        self.by_spans = False
        """Whether the attention of that pass reads slots itself (aegis.decode.attention)."""
        self._all_rows = list(range(rows))
        self._mapped = self._map()

    def _map(self) -> Any:
        """The lengths as a NumPy array over the same memory, where the host can write them: no operator to call."""
        return self.lengths.numpy() if self.lengths.device.type == "cpu" else None

    def place(self, device: torch.device) -> None:
        """Moves to the device of the first keys and values."""
        if self.lengths.device != device:
            with torch.inference_mode(False):
                self.lengths, self.growth = self.lengths.to(device), self.growth.to(device)
            self._mapped = self._map()
            self.selection = None if self.selection is None else self.selection.to(device)

    def current_rows(self) -> list[int]:
        """Those that questions are about: the selected ones, or all in use."""
        return self.host.rows_in_use if self.selected is None else self.selected

    def length_range(self) -> tuple[int, int]:
        return self.host.length_range(self.current_rows())

    def adopt(self, other: Positions) -> None:
        """The same lengths and rows as another, in memory of its own."""
        self.host = other.host.copy()
        self.place(other.lengths.device)
        self._changed()

    def select(self, rows: Sequence[int] | None) -> None:
        self.open = None
        selected = None if rows is None else list(rows)
        selection = None if rows is None else torch.tensor(selected, dtype=torch.int64).to(self.lengths.device)
        self.selected, self.selection = selected, selection  # without a call between, where an exception could come

    def batch_rows(self, batch: int) -> list[int]:
        """The rows that a batch goes to.

        Raises:
            ValueError: the batch does not fit.
        """
        if self.selected is not None and batch != len(self.selected):
            raise ValueError(f"batch: expected {len(self.selected)} rows, as many as are selected, got {batch}")
        if batch > len(self._all_rows):
            raise ValueError(f"batch: expected at most {len(self._all_rows)} rows, those of the cache, got {batch}")
        return self._all_rows[:batch] if self.selected is None else self.selected

    def begin(self, batch: int, tokens: int, by_spans: bool = False) -> None:
        """Opens an eager pass; nothing has been written yet, and nothing is if this raises."""
        rows = self.batch_rows(batch)
        self._begin_on_host(rows, tokens)
        self.by_spans = by_spans
        self.shortest, self.longest = self.host.length_range(rows)
        self.leftovers = self._find_leftovers() if self.shortest != self.longest or self._reads_on() else []
        self.at = self.where(batch)
        self.open = (batch, tokens)

    def _reads_on(self) -> bool:
        """Whether attention may read behind the longest row: by spans it is handed buffers, of which it takes the part
        up to there on a CPU, unless they wrap."""
        return self.by_spans and (self._wraps or self.lengths.device.type != "cpu")

    def _find_leftovers(self) -> list[Leftover]:
        return self.host.leftovers()

    def commit(self) -> None:
        """Closes it: the rows are longer now."""
        assert self.open is not None
        batch, tokens = self.open
        self._parted = True
        self.host.commit(bool(self.leftovers))
        if self._mapped is None:
            self.advance(batch, tokens)
        else:
            self._publish_lengths()
        self._parted = False
        self.open = None

    def begin_bracket(self, rows: list[int], tokens: int) -> None:
        self._begin_on_host(rows, tokens)
        if len(rows) < len(self._all_rows):
            self.host.touch_free(tokens)
        self.leftovers = self._find_leftovers()
        self.open = None
        self.bracketed = True

    def end_bracket(self, completed: bool) -> None:
        self._parted = True
        self.bracketed = False
        if completed:
            self.host.commit(bool(self.leftovers))
        else:
            self.host.abort()
            self._publish_lengths()
        self._parted = False

    def _begin_on_host(self, rows: list[int], tokens: int) -> None:
        self.rejoined()
        self._parted = True
        if self.host.begin(rows, tokens):
            self._publish_growth()
        self._parted = False

    def where(self, batch: int) -> Tensor:
        """(batch,) positions of the next tokens. May be a view of ``lengths``."""
        lengths = self.rejoined()
        if self.selection is not None:
            return lengths.index_select(0, self.selection)
        return lengths if batch == len(self._all_rows) else lengths[:batch]

    def advance(self, batch: int, tokens: int) -> None:
        """Lets the rows in use of a batch grow, on the device."""
        if self.selection is not None:
            self.lengths.index_add_(0, self.selection, self.growth.index_select(0, self.selection), alpha=tokens)
        elif batch == len(self._all_rows):
            self.lengths.add_(self.growth, alpha=tokens)
        else:
            self.lengths[:batch].add_(self.growth[:batch], alpha=tokens)

    def device_length(self) -> Tensor:
        """0-d: the length of the longest current row, for code in which Python's numbers would be frozen."""
        lengths = self.lengths if self.selection is None else self.lengths.index_select(0, self.selection)
        return lengths[0] if len(lengths) == 1 else lengths.amax()

    def crop(self, tokens: Sequence[int]) -> None:
        """Takes tokens off the current rows, at most all of them."""
        rows, self._parted = self._parted, True
        self.host.crop(self.current_rows(), tokens)
        self._changed(rows)

    def acquire(self) -> int:
        self._parted = True
        row = self.host.acquire()
        self._changed()
        return row

    def release(self, rows: Sequence[int]) -> None:
        self._parted = True
        self.host.release(rows)
        self._changed()

    def reset(self) -> None:
        self._parted = True
        self.host.reset()
        self._changed()

    def gather(self, sources: Sequence[int]) -> None:
        self._parted = True
        self.host.gather(sources)
        self._changed()

    def _changed(self, rows: bool = True) -> None:
        """Brings the host's numbers to the device, after a change between passes."""
        self.open = None
        self.bracketed = False
        self._publish_lengths()
        if rows:
            self._publish_growth()
        self._parted = False

    def rejoined(self) -> Tensor:
        """``lengths``, to which the host's are brought first where an exception has come between."""
        if self._parted:
            self._publish_lengths()
            self._publish_growth()
            self._parted = False
        return self.lengths

    def _publish_lengths(self) -> None:
        if self._mapped is None:
            self.lengths.copy_(torch.tensor(self.host.lengths))
        else:
            self._mapped[:] = self.host.lengths

    def _publish_growth(self) -> None:
        self.growth.copy_(torch.tensor([int(self.host.in_use(row)) for row in self._all_rows]))
