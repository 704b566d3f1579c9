"""What speculation gains, counted."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SpeculativeStats"]


class SpeculativeStats:
    """Of one runner, over all its texts."""

    def __init__(self) -> None:
        self._passes = self._rows = 0
        self._tokens = self._nodes = 0
        self._proposed = self._accepted = 0
        self._seconds = [0.0, 0.0, 0.0]

    def note(self, rows: Sequence[tuple[int, int]], nodes: int, tokens: int, clock: Sequence[float]) -> None:
        """A pass: of each row, the guesses and how many were kept; the nodes verified, of all rows; the tokens that
        came of it; when drafting began, verification, acceptance, and when that ended."""
        self._passes += 1
        self._rows += len(rows)
        self._nodes += nodes
        self._tokens += tokens
        self._proposed += sum(guesses for guesses, _ in rows)
        self._accepted += sum(kept for _, kept in rows)
        for part in range(3):
            self._seconds[part] += clock[part + 1] - clock[part]

    def as_dict(self) -> dict[str, float]:
        """Rates are NaN where there is nothing to count."""
        draft, verify, accept = self._seconds
        return {
            "passes": self._passes,
            "tokens": self._tokens,
            "proposed": self._proposed,
            "accepted": self._accepted,
            "acceptance_rate": self._accepted / self._proposed if self._proposed else float("nan"),
            "tokens_per_pass": self._tokens / self._rows if self._rows else float("nan"),
            "nodes_per_pass": self._nodes / self._rows if self._rows else float("nan"),
            "draft_seconds": draft,
            "wait_seconds": draft,
            "verify_seconds": verify,
            "accept_seconds": accept,
            "passes_ahead": 0,
        }
