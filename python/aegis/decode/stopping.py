"""When a row of a batch is finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["Stopping"]


class Stopping:
    """Asked once for each step. End tokens, stop sequences and the length are looked at here, on the host; any other
    criterion of transformers is called as ``model.generate`` calls it.

    Args:
        generation_config: prepared by transformers: its end and padding tokens are tensors.
        criteria: of transformers; None is none.
        sequences: token sequences that end a row.
        rows: of the batch.

    Raises:
        ValueError: an empty stop sequence; rows that can end while there is no token to fill them up with.
    """

    def __init__(
        self, generation_config: Any, criteria: Sequence[Any] | None, sequences: Sequence[Sequence[int]], rows: int
    ) -> None:
        from transformers.generation import stopping_criteria as hf

        self._sequences = [list(map(int, sequence)) for sequence in sequences]
        if not all(self._sequences):
            raise ValueError("stop_sequences: expected sequences of at least 1 token, got an empty one")
        self._ends: set[int] = set()
        self._others = []
        for criterion in criteria or ():
            if type(criterion) is hf.EosTokenCriteria:
                self._ends.update(criterion.eos_token_id.flatten().tolist())
            elif type(criterion) is not hf.MaxLengthCriteria:
                self._others.append(criterion)
        self.max_length: int = generation_config.max_length
        pad = generation_config._pad_token_tensor
        self.pad = 0 if pad is None else int(pad)
        can_end = bool(self._ends or self._sequences or self._others)
        if pad is None and rows > 1 and can_end:
            raise ValueError("pad_token_id: expected a token to fill up finished rows with, got None")
        self.finished = [False] * rows

    def step(self, tokens: list[int], so_far: Tensor) -> bool:
        """Takes note of the tokens just picked, which are the last column of ``so_far`` (B, n).

        Returns:
            Whether nothing is left to do.
        """
        length = so_far.shape[1]
        for row, token in enumerate(tokens):
            if token in self._ends or any(_ends_with(so_far[row], sequence) for sequence in self._sequences):
                self.finished[row] = True
        for criterion in self._others:
            answer = criterion(so_far, None)
            done = answer.tolist() if isinstance(answer, Tensor) else [bool(answer)] * len(tokens)
            self.finished = [a or b for a, b in zip(self.finished, done, strict=True)]
        return length >= self.max_length or all(self.finished)


def _ends_with(row: Tensor, sequence: list[int]) -> bool:
    return len(row) >= len(sequence) and row[-len(sequence) :].tolist() == sequence
