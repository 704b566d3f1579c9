"""When a row of a batch is finished."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Stopping", "end_tokens", "until_end"]


class Stopping:
    """Asked once for each step. End tokens, stop sequences and the length are looked at here, on the host; any other
    criterion of transformers is called as ``model.generate`` calls it.

    Args:
        generation_config: prepared by transformers: its end and padding tokens are tensors.
        criteria: of transformers; None is none.
        sequences: token sequences that end a row.
        rows: of the batch.

    Raises:
        ValueError: a stop sequence that is empty, or is none; rows that can end while there is no token to fill them up
            with.
    """

    def __init__(
        self, generation_config: Any, criteria: Sequence[Any] | None, sequences: Sequence[Sequence[int]], rows: int
    ) -> None:
        from transformers.generation import stopping_criteria as hf

        self._sequences = _checked(sequences)
        self._ends: set[int] = set()
        self._others = []
        lengths = []
        for criterion in criteria or ():
            if type(criterion) is hf.EosTokenCriteria:
                self._ends.update(criterion.eos_token_id.flatten().tolist())
            elif type(criterion) is hf.MaxLengthCriteria:
                lengths.append(criterion.max_length)
            else:
                self._others.append(criterion)
        self.max_length = math.ceil(min(lengths, default=generation_config.max_length))
        self.fills = bool(self._sequences) or any(hasattr(criterion, "eos_token_id") for criterion in criteria or ())
        """Whether finished rows are filled up. As in model.generate, not where only other criteria end rows."""
        pad = generation_config._pad_token_tensor
        self.pad = 0 if pad is None else int(pad)
        if pad is None and rows > 1 and self.fills:
            raise ValueError("pad_token_id: expected a token to fill up finished rows with, got None")
        self.finished = [False] * rows

    def step(self, tokens: list[int], so_far: Tensor) -> bool:
        """Takes note of the tokens just picked, which are the last column of ``so_far`` (B, n).

        Returns:
            Whether nothing is left to do.

        Raises:
            ValueError: a criterion that answers neither with a bool nor with one for each row.
        """
        length = so_far.shape[1]
        for row, token in enumerate(tokens):
            if self._ends_row(token, so_far[row]):
                self.finished[row] = True
        for criterion in self._others:
            done = _answer(criterion, so_far)
            self.finished = [a or b for a, b in zip(self.finished, done, strict=True)]
        return length >= self.max_length or all(self.finished)

    def step_row(self, row: int, so_far: Tensor) -> bool:
        """The same for one row, (n,), which may be ahead of the others: whether it is finished now, its length aside.
        Criteria get it as a batch of one.

        Raises:
            ValueError: as :meth:`step`.
        """
        done = self._ends_row(int(so_far[-1]), so_far) or any(
            _answer(criterion, so_far[None])[0] for criterion in self._others
        )
        self.finished[row] |= done
        return self.finished[row]

    def _ends_row(self, token: int, so_far: Tensor) -> bool:
        return token in self._ends or any(_ends_with(so_far, sequence) for sequence in self._sequences)


def _checked(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    try:
        checked = [[operator.index(token) for token in sequence] for sequence in sequences]
    except TypeError as error:
        raise ValueError(f"stop_sequences: expected sequences of tokens, got {sequences!r}") from error
    if not all(checked):
        raise ValueError("stop_sequences: expected sequences of at least 1 token, got an empty one")
    return checked


def _answer(criterion: Any, so_far: Tensor) -> list[bool]:
    answer = criterion(so_far, None)
    rows = len(so_far)
    if isinstance(answer, bool):
        return [answer] * rows
    if not isinstance(answer, Tensor) or answer.shape not in ((), (1,), (rows,)):
        got = f"shape {list(answer.shape)}" if isinstance(answer, Tensor) else repr(answer)
        raise ValueError(f"stopping_criteria: expected a bool or a tensor of {rows} from {criterion}, got {got}")
    done: list[bool] = answer.to(torch.bool).expand(rows).tolist()
    return done


def _ends_with(row: Tensor, sequence: list[int]) -> bool:
    return len(row) >= len(sequence) and row[-len(sequence) :].tolist() == sequence


def end_tokens(tokens: int | Sequence[int] | None) -> Tensor:
    """int64, of one token, several or none; TypeError for anything else."""
    if isinstance(tokens, int):
        tokens = [tokens]
    try:
        return torch.tensor([operator.index(token) for token in (() if tokens is None else tokens)], dtype=torch.int64)
    except TypeError:
        raise TypeError(f"eos_token_id: expected a token or several, got {tokens!r}") from None


def until_end(
    tokens: Sequence[Sequence[int]], kept: Sequence[int], ends: Collection[int]
) -> tuple[list[int], list[bool]]:
    """Of each row, whose first ``kept`` + 1 tokens are new: how many these are up to the first end token, and whether
    there is one."""
    counts, met = [], []
    for row, count in zip(tokens, kept, strict=True):
        end = next((index for index in range(count + 1) if row[index] in ends), None) if ends else None
        counts.append(count + 1 if end is None else end + 1)
        met.append(end is not None)
    return counts, met
