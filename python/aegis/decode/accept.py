"""Which guesses are kept, and what follows them (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aegis.decode.law import Domain, coins, draw

__all__ = ["Verified", "accept_by_ratio", "accept_equal"]


class Verified(NamedTuple):
    """What a pass brought to each row of a range; the text holds it."""

    fresh: Tensor
    """(b, longest path + 1) int64: the guesses kept, and the token behind them."""
    tokens: list[list[int]]
    """The same on the host."""
    kept: list[int]
    """How many guesses."""
    proposed: list[int]
    """How many could have been: the longest path of guesses."""
    nodes: list[int]
    """How many guesses were verified."""


def accept_equal(picked: Tensor, guesses: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Keeps guesses for as long as they are what the target picked: exact for whatever guessed, since every token is
    the target's own pick.

    Args:
        picked: (b, k + 1) int64, what the target picks at each position.
        guesses: (b, k) int64.
        counts: (b,) int64, how many of these count.

    Returns:
        (b,) how many are kept, and (b,) the token that follows them.
    """
    kept = _run(guesses == picked[:, :-1], counts)
    return kept, picked.gather(1, kept[:, None])[:, 0]


def accept_by_ratio(
    target: Tensor, draft: Tensor, guesses: Tensor, state: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Keeps a guess with the chance min(1, p/q), and draws what follows the last one kept from max(p - q, 0), or, where
    all are kept, from the target's next distribution. What comes out is distributed as the target's.

    Args:
        target: (b, k + 1, V) float32, p at each position.
        draft: (b, k, V) float32, q that each guess was drawn from.
        guesses: (b, k) int64, k of at least 1.
        state: (b, 4), names the random numbers of the first position.
        counts: (b,) int64, how many of the guesses count, at least 1; without, all.

    Returns:
        As :func:`accept_equal`.
    """
    batch, count = guesses.shape
    p = target[:, :-1].gather(2, guesses[:, :, None])[:, :, 0]
    q = draft.gather(2, guesses[:, :, None])[:, :, 0]
    chances = torch.where(q > 0, (p / q).clamp(max=1), (p > 0).float())
    states = state[:, None].repeat(1, count, 1)
    states[:, :, 2] += torch.arange(count, device=state.device)
    states[:, :, 3] = Domain.ACCEPT
    accepted = coins(chances.reshape(-1), states.view(-1, 4)).view(batch, count)
    counts = torch.full_like(guesses[:, 0], count) if counts is None else counts
    kept = _run(accepted, counts)

    rows = torch.arange(batch, device=guesses.device)
    all_kept = kept == counts
    last = target.flatten(0, 1).index_select(0, rows * (count + 1) + kept)
    rest = draft.flatten(0, 1).index_select(0, rows * count + kept.clamp(max=count - 1))
    rest.mul_(~all_kept[:, None])
    torch.sub(last, rest, out=rest).clamp_(min=0)
    # p and q that differ by rounding alone leave nothing
    rest.addcmul_(last, (rest.amax(1, keepdim=True) == 0).float())
    states = state.clone()
    states[:, 2] += kept
    states[:, 3] = torch.where(all_kept, int(Domain.BONUS), int(Domain.RESIDUAL))
    return kept, draw(rest, states)


def _run(good: Tensor, counts: Tensor) -> Tensor:
    """How many at the beginning of each row are good, of the first ``counts``."""
    columns = torch.arange(good.shape[1], device=good.device)
    return (good & (columns < counts[:, None])).long().cumprod(1).sum(1)
