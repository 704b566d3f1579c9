"""The loop of ``aegis.generate`` where a draft guesses: rows get ahead of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aegis.decode.speculative import SpeculativeFastRunner
from aegis.decode.stopping import Stopping

__all__ = ["decode"]


class _Rows:
    """What has been decoded of each row, (rows, longest), and how far it counts."""

    def __init__(self, input_ids: Tensor, longest: int, stopping: Stopping) -> None:
        rows, self.prompt = input_ids.shape
        self.tokens = torch.full((rows, longest), stopping.pad, dtype=torch.int64)
        self.tokens[:, : self.prompt] = input_ids
        self.lengths = [self.prompt] * rows
        self.stops = [longest] * rows
        """The length at which a row is finished, as far as that is known."""
        self._stopping = stopping

    def take(self, row: int, tokens: list[int], *, last: bool) -> None:
        """Adds tokens to a row, up to where it is finished; they may be its last."""
        for token in tokens:
            length = self.lengths[row]
            if length >= self.enough(row):
                break
            self.tokens[row, length] = token
            self.lengths[row] = length + 1
            if not self._stopping.finished[row] and self._stopping.step_row(row, self.tokens[row, : length + 1]):
                self.stops[row] = length + 1
        if last:
            self.stops[row] = min(self.stops[row], self.lengths[row])

    def enough(self, row: int) -> int:
        """As in model.generate, a row is filled up with padding behind its end if end tokens or sequences were named,
        and else goes on until all are finished."""
        return self.stops[row] if self._stopping.fills else max(self.stops)

    def common(self) -> int:
        """Columns that will not change any more."""
        behind = [length for row, length in enumerate(self.lengths) if length < self.enough(row)]
        return min([*behind, max(self.stops)])


def decode(
    runner: SpeculativeFastRunner,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    stopping: Stopping,
    longest: int,
    chunk: int,
    callback: Callable[[Tensor], object] | None,
    bar: Any,
) -> Tensor:
    """Continues prompts until ``stopping`` has no more to say; arguments are checked. Returns as ``generate`` does.

    The callback gets a token of each row at a time, once all rows have got there.
    """
    if longest - 1 > runner.cache.max_cache_len:
        raise ValueError(
            f"max_cache_len: expected room for {longest - 1} tokens (max_length without the last, which is "
            f"not fed), got {runner.cache.max_cache_len}"
        )
    rows = _Rows(input_ids, longest, stopping)
    reported = rows.prompt

    def report() -> int:
        common = rows.common()
        for column in range(reported, common):
            if callback is not None:
                callback(rows.tokens[:, column].clone())
        if bar is not None:
            bar.update(common - reported)
        return common

    fresh = runner.prefill(input_ids, attention_mask, chunk=chunk)[:, None].tolist()
    counts = [1] * len(fresh)
    while True:
        for row, (tokens, count) in enumerate(zip(fresh, counts, strict=True)):
            rows.take(row, tokens[:count], last=runner.ended[row])
        # A row may be done by what another row did: all that count are finished.
        for row in range(len(fresh)):
            if rows.lengths[row] >= rows.enough(row) and not runner.ended[row]:
                runner.end(row, rows.lengths[row])
        reported = report()
        if all(runner.ended):
            total = max(rows.stops)
            return rows.tokens[:, :total].to(input_ids.device)
        ahead = max(length for length, ended in zip(rows.lengths, runner.ended, strict=True) if not ended)
        step = runner.step(max_tokens=longest - ahead)
        fresh, counts = step.tokens.tolist(), step.counts
