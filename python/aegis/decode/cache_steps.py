"""Passes of a cache that do not come back to Python: compiled and captured ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_positions import Positions

__all__ = ["TakesSteps"]


class TakesSteps:
    """What brackets such a pass."""

    if TYPE_CHECKING:
        _positions: Positions
        _stored: dict[int, SlottedLayer]
        _step: int

        @property
        def batch_size(self) -> int: ...

    def begin_step(self, tokens: int = 1, batch_size: int | None = None) -> None:
        """Before a compiled or captured pass of ``tokens`` new tokens: checks the capacity of the current rows on the
        host. Until :meth:`commit_step`, passes work with tensors alone and return whole buffers.

        Such a pass goes over rows 0, 1, ... of its batch (or the selected ones). Free rows among them are carried
        along: their tokens are written to slot 0 and they stay empty. If no row is in use, the first ``batch_size``
        (all) are taken into use.

        Raises:
            ValueError: a row has no room; nothing has changed.
        """
        positions = self._positions
        rows = positions.current_rows() or positions.batch_rows(self.batch_size if batch_size is None else batch_size)
        positions.begin_bracket(rows, tokens)
        self._step = tokens
        if positions.leftovers:
            try:
                for layer in self._stored.values():
                    layer.clear(positions.leftovers)
            except BaseException:
                self.abort_step()
                raise

    def commit_step(self, tokens: int = 1) -> None:
        """After it: lets the host's lengths follow the device's.

        Raises:
            RuntimeError: there was no begin_step of as many tokens.
        """
        if not self._positions.bracketed or self._step != tokens:
            raise RuntimeError(f"commit_step: expected a begin_step({tokens}) before it")
        self._positions.end_bracket(completed=True)

    def abort_step(self) -> None:
        """Instead, where the pass failed: takes the device's lengths back to the host's."""
        if self._positions.bracketed:
            self._positions.end_bracket(completed=False)

    @contextmanager
    def step(self, tokens: int = 1, batch_size: int | None = None) -> Iterator[None]:
        """begin_step, then commit_step, or abort_step after an exception, wherever it comes."""
        try:
            self.begin_step(tokens, batch_size)
            yield
            self.commit_step(tokens)
        except BaseException:
            self.abort_step()
            raise
