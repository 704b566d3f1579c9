"""The distribution that tokens are drawn from, at several positions of a row at once."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from aegis.decode.processors import check_stateless
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler

__all__ = ["Domain", "Law", "coins", "draw"]


class Domain(IntEnum):
    """What a random number is for. Numbers of different domains are independent; see ``aegis.ops.sample``."""

    PICK = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4


_PLAIN = {torch.device("cpu"): torch.tensor([[1.0, 0.0, 1.0, 0.0]])}
"""Settings without limits, on each device that has drawn: a copy in every draw would wait for the GPU."""
_NEVER = 2.0**-110
"""Of the largest chance: what aegis.ops.sample takes for 0, which it does below 2**-100."""


def draw(distribution: Tensor, state: Tensor) -> Tensor:
    """(rows,) int64: a token from each row of a (rows, vocabulary) distribution; state (rows, 4) names the number.

    A row need not sum to 1. What is 0 is never drawn."""
    # On CPUs, a logarithm of 0 takes ten times and more what one of another number does, and most chances are 0.
    never = distribution.amax(1, keepdim=True) * _NEVER
    return _draw(distribution.clamp(min=never).log_(), state)


def coins(chances: Tensor, state: Tensor) -> Tensor:
    """(rows,) bool: True with these chances; never for 0, always for 1."""
    return _draw(torch.stack([1 - chances, chances], 1).log(), state).bool()


def _draw(scores: Tensor, state: Tensor) -> Tensor:
    if scores.device not in _PLAIN:
        with torch.inference_mode(False):
            _PLAIN[scores.device] = _PLAIN[torch.device("cpu")].to(scores.device)
    tokens, _, _ = torch.ops.aegis.sample(scores, _PLAIN[scores.device], state.contiguous())
    return tokens  # type: ignore[no-any-return]


class Ahead(NamedTuple):
    """Where positions stand that do not simply follow one another: those of a tree."""

    steps: Tensor
    """(1 or b, n) int64: how far each is from the end of its row's text."""
    texts: Tensor | None
    """(b, n, columns) int64: what lies between; of meaning up to ``steps``. None where nobody needs_text."""


class Tables(NamedTuple):
    """What a law computes with where it needs no text."""

    settings: Tensor
    """(1 or rows, 4) float32: temperature, top_k, top_p, min_p."""
    bias: Tensor | None
    """(V,) float32, which is added to logits."""


class Law:
    """A sampler, and the logits processors before it.

    Args:
        sampler: its state is where each row of a batch stands: seed, row number, position of the next token.
    """

    def __init__(self, sampler: FusedLogitsSampler | ProcessedSampler) -> None:
        self.processors = tuple(sampler.processors) if isinstance(sampler, ProcessedSampler) else ()
        check_stateless(self.processors)
        self.sampler = sampler.sampler if isinstance(sampler, ProcessedSampler) else sampler
        self.greedy = self.sampler.greedy
        self.needs_text = bool(self.processors) or self.sampler.needs_history
        """Whether what came before matters to more than the model."""
        self.plain = not self.processors and not self.sampler.adjusts
        """Whether nothing but logits decides."""
        self._spread: dict[tuple[int, int, int], FusedLogitsSampler] = {}
        self._tables: dict[tuple[int, int, torch.device], Tables] = {}
        self._prompt_length: int | None = None

    @property
    def by_tensors(self) -> bool:
        """Whether :meth:`tables` and ``sampler.keep_ties`` say all of it."""
        return not self.needs_text and not self.sampler.strict

    def tables(self, rows: int, vocabulary: int, device: torch.device) -> Tables:
        """For a batch of so many rows."""
        key = rows, vocabulary, device
        if key not in self._tables:
            sampler = self._spread_over(0, rows, 1)
            sampler.prepare(rows, vocabulary, device)
            self._tables[key] = Tables(*sampler.tables)
        return self._tables[key]

    def begin(self, prompt_length: int) -> None:
        """A new text: what was generated begins behind so many tokens."""
        self._spread.clear()
        self._prompt_length = prompt_length if self.sampler.prompt_length is None else self.sampler.prompt_length

    def pick(
        self, logits: Tensor, first: int, state: Tensor, text: Tensor, lengths: Tensor, ahead: Ahead | None = None
    ) -> Tensor:
        """(b, n) int64: the tokens that the sampler would pick, each if those before it were the row's.

        Args:
            logits: (b, n, V), of rows first, first + 1, ... of the batch.
            state: (b, 4), of the random numbers of the first position.
            text: (rows of the batch, columns), what has been and what was drafted.
            lengths: (b,), what of that comes before the first position.
            ahead: of a tree: where the positions stand. Without, they follow one another.
        """
        sampler, scores, history = self._prepared(logits, first, text, lengths, ahead)
        batch, count, _ = logits.shape
        states = sampler.state.view(batch, count, 4)
        states.copy_(state[:, None])
        states[:, :, 2] += torch.arange(count, device=states.device) if ahead is None else ahead.steps
        tokens: Tensor = sampler(scores, history)
        return tokens.view(batch, count)

    def probabilities(
        self, logits: Tensor, first: int, text: Tensor, lengths: Tensor, ahead: Ahead | None = None
    ) -> Tensor:
        """(b, n, V) float32: what they are drawn from."""
        sampler, scores, history = self._prepared(logits, first, text, lengths, ahead)
        return sampler.probabilities(scores, history).view(logits.shape)

    def scores(self, logits: Tensor, first: int, text: Tensor, lengths: Tensor, ahead: Ahead | None = None) -> Tensor:
        """(b, n, V): the logits after processors, bias and penalties. May be the sampler's own memory."""
        sampler, scores, history = self._prepared(logits, first, text, lengths, ahead)
        return sampler.scores(scores, history).view(logits.shape)

    def _prepared(
        self, logits: Tensor, first: int, text: Tensor, lengths: Tensor, ahead: Ahead | None
    ) -> tuple[FusedLogitsSampler, Tensor, Tensor | None]:
        batch, count, vocabulary = logits.shape
        sampler = self._spread_over(first, batch, count)
        sampler.prepare(batch * count, vocabulary, logits.device)
        scores = logits.reshape(-1, vocabulary)
        if not self.needs_text:
            return sampler, scores, None
        steps = torch.arange(count, device=lengths.device) if ahead is None else ahead.steps
        ends = (lengths[:, None] + steps).view(-1)
        own = text[first : first + batch, : int(ends.max())].repeat_interleave(count, 0)
        if ahead is not None and ahead.texts is not None:
            between, width = ahead.texts.flatten(0, 1), own.shape[1]
            columns = lengths.repeat_interleave(count)[:, None] + torch.arange(between.shape[1], device=own.device)
            own = torch.nn.functional.pad(own, (0, between.shape[1])).scatter_(1, columns, between)[:, :width]
        if self.processors:
            scores = self._processed(scores, count, first, len(text), own, ends.tolist())
        if not sampler.needs_history:
            return sampler, scores, None
        columns = torch.arange(own.shape[1], device=own.device)
        return sampler, scores, torch.where(columns < ends[:, None], own, -1)  # no token: penalties pass it over

    def _spread_over(self, first: int, batch: int, count: int) -> FusedLogitsSampler:
        """The sampler for ``count`` positions of each of these rows."""
        key = first, batch, count
        if key not in self._spread:
            rows = [row for row in range(first, first + batch) for _ in range(count)]
            self._spread[key] = self.sampler.for_rows(rows)
            self._spread[key].prompt_length = self._prompt_length
        return self._spread[key]

    def _processed(self, scores: Tensor, count: int, first: int, rows: int, own: Tensor, ends: list[int]) -> Tensor:
        """One call for each position: their texts differ in length. A processor may look at the number of a row, so the
        batch has as many as there are, all of them the same."""
        result = torch.empty_like(scores, dtype=torch.float32)
        for index, end in enumerate(ends):
            row = first + index // count
            ids = own[index : index + 1, :end].repeat(rows, 1)
            mine = scores[index : index + 1].float().repeat(rows, 1)
            for processor in self.processors:
                mine = processor(ids, mine)
                if not isinstance(mine, Tensor):
                    raise ValueError(f"processors: expected {processor} to return scores, got {mine!r}")
            result[index] = mine[row]
        return result
