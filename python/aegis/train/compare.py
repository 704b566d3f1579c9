"""The same training through several loaders, in turns, so that every loss can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aegis.train.meter import StepRecord
from aegis.train.trainer import Batch, Trainer

__all__ = ["Side", "compare", "first_difference"]


@dataclass
class Side:
    """One loader with a trainer of its own, and its own copy of torch's global random state (CPU)."""

    name: str
    trainer: Trainer
    batches: Iterator[Batch]
    random_state: Tensor = field(default_factory=torch.get_rng_state)

    @contextmanager
    def own_random_state(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(outside)


def compare(
    sides: Sequence[Side],
    *,
    turn: int = 10,
    on_step: Callable[[Side, StepRecord], None] = lambda side, record: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Advance all sides ``turn`` steps each, in alternating order, until their steps are done.

    Turns of some length keep the batches that one side prefetches during another's turn few, and spread the
    moods of the machine over both. ``stop`` is asked between rounds, so that all sides end at the same step.
    """
    order = list(sides)
    while order[0].trainer.step < order[0].trainer.config.steps and not stop():
        for side in order:
            with side.own_random_state():
                until = min(side.trainer.step + turn, side.trainer.config.steps)
                while side.trainer.step < until:
                    on_step(side, side.trainer.advance(side.batches))
        order.reverse()


def first_difference(left: Sequence[StepRecord], right: Sequence[StepRecord]) -> int | None:
    """Index of the first record whose losses differ in any bit, or None; a missing record is a difference."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a.loss.hex() != b.loss.hex() or a.val_loss.hex() != b.val_loss.hex():
            return i
    return None if len(left) == len(right) else min(len(left), len(right))
