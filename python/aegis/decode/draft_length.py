"""How many tokens to guess for one pass of the target."""

from __future__ import annotations

import copy
from collections.abc import Sequence

__all__ = ["DraftLength"]

_MEMORY = 0.9  # what a pass ago counts beside this one


class DraftLength:
    """With chance a that a guess is kept, k guesses bring (1 - a^(k + 1)) / (1 - a) tokens and cost 1 + k c passes of
    the target (Leviathan et al. 2023, theorem 3.8); the best k is taken for a as it was lately.

    Args:
        most: guesses, at least 1.
        cost: c, of one guess beside a pass of the target.
        adaptive: False is always ``most``.
    """

    def __init__(self, most: int, cost: float, *, adaptive: bool) -> None:
        self._most = most
        self._cost = max(cost, 0.02)  # verifying one more token is not free either
        self._adaptive = adaptive
        self.reset()

    def reset(self) -> None:
        self.now = self._most
        # As if some guesses had been seen before: one bad pass is no evidence.
        self._tried, self._kept = 4.0, 3.0

    def note(self, rows: Sequence[tuple[int, int]]) -> None:
        """A pass: the guesses of each row, and how many were kept. Those behind the first one lost were not tried."""
        tried = sum(min(kept + 1, guesses) for guesses, kept in rows)
        if not self._adaptive or tried == 0:
            return
        self._tried = self._tried * _MEMORY + tried
        self._kept = self._kept * _MEMORY + sum(kept for _, kept in rows)
        chance = min(self._kept / self._tried, 0.99)
        self.now = max(range(1, self._most + 1), key=lambda k: self._gain(chance, k))

    def foreseen(self, rows: Sequence[tuple[int, int]]) -> int:
        """What ``now`` would be after such a pass."""
        twin = copy.copy(self)
        twin.note(rows)
        return twin.now

    def _gain(self, chance: float, k: int) -> float:
        return (1 - chance ** (k + 1)) / (1 - chance) / (1 + k * self._cost)
