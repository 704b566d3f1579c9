"""In which order samples are visited, and how that order is saved and entered again."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from aegis._C import MixtureOrder, Schedule
from aegis.data.mixture import MixtureBase, TokenMixture

__all__ = ["IndexOrder", "Progress", "SeededSampler", "index_batches", "stands_in"]


@dataclass
class Progress:
    """How far one epoch has come. Shared by a loader and the iterator that it made for the epoch."""

    epoch: int
    start: int = 0
    """Where the epoch was entered: samples over all ranks with a seed, batches of this rank without."""
    batches: int = 0
    """Delivered since then."""
    rng: dict[str, Any] | None = None
    """What torch's shuffle was drawn from, once it is drawn: plain values."""
    started: bool = False
    """Whether an iterator was made for it, now or in the run it was saved in."""
    resumed: bool = False
    """Whether that was in an earlier run, which also made the draws of this epoch."""

    def advance(self) -> None:
        """Counts a batch delivered."""
        self.batches += 1


class SeededSampler(Sampler[int]):
    """One rank's samples of an epoch, in an order that takes no memory and can be entered anywhere.

    With ``shuffle`` the order is a keyed permutation of (seed, epoch), evaluated a sample at a time; without, it
    is 0, 1, 2, … The global order comes first and the rank's slice of it second, a batch at a time, so the union
    over ranks does not depend on how many there are. Every rank has the same number of batches; at most
    ``world_size - 1`` samples at the end of an epoch go to nobody. With ``tail`` the last batch is as long as the
    others: "pad" fills it up with rows of padding, "wrap" with the epoch's first samples.
    """

    def __init__(
        self,
        data_source: Sized,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        tail: str | None = None,
    ) -> None:
        self.data_source = data_source
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.tail = tail
        self.epoch = 0
        self.base: MixtureBase | None = None
        """Where a mixture's weights were changed."""
        self.shorter: dict[int, int] = {}
        """Samples in epochs that had begun when files were appended."""
        self.schedule(0)  # bad arguments are errors now, not at the first batch

    def samples(self, epoch: int) -> int:
        """In an epoch, on all ranks together."""
        if isinstance(self.data_source, TokenMixture):
            return self.data_source.samples_in(epoch, self.base)
        return self.shorter.get(epoch) or len(self.data_source)

    def schedule(self, epoch: int, start: int = 0) -> Schedule:
        """The batches of an epoch from ``start`` on: samples that all ranks together have already had.

        ValueError where that is before a mixture's weights were changed.
        """
        order = None
        if isinstance(self.data_source, TokenMixture):
            order = self.data_source.order(epoch, self.base, seed=self.seed, shuffle=self.shuffle)
            if start < order.begin:
                raise ValueError(
                    f"epoch: {epoch} can be entered from sample {order.begin} on, where the weights were changed, got "
                    f"sample {start}"
                )
        return self._schedule(epoch, start, order)

    def counts(self, epoch: int, start: int = 0) -> Schedule:
        """As :meth:`schedule`, for the numbers of its batches and not what is in them."""
        return self._schedule(epoch, start, None)

    def _schedule(self, epoch: int, start: int, order: MixtureOrder | None) -> Schedule:
        return Schedule(
            self.samples(epoch),
            self.batch_size,
            drop_last=self.drop_last,
            rank=self.rank,
            world_size=self.world_size,
            start=start,
            seed=self.seed if self.shuffle else None,
            epoch=epoch,
            fill=self.tail or "none",
            order=order,
        )

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration goes through."""
        self.epoch = epoch

    def __len__(self) -> int:
        schedule = self.counts(self.epoch)
        if schedule.steps == 0:
            return 0
        return (schedule.steps - 1) * self.batch_size + len(schedule.batch(schedule.steps - 1))

    def __iter__(self) -> Iterator[int]:
        schedule = self.schedule(self.epoch)
        return (sample for step in range(schedule.steps) for sample in schedule.batch(step).tolist())


def stands_in(sampler: Any) -> bool:
    """Whether :func:`index_batches` gives the order of ``sampler`` as arrays instead of asking it."""
    if type(sampler) is not BatchSampler:
        return False
    inner = sampler.sampler
    if type(inner) is RandomSampler:
        return not inner.replacement and inner.num_samples == len(inner.data_source)
    return type(inner) in (SequentialSampler, SeededSampler)


def index_batches(sampler: Any, progress: Progress) -> Iterator[Any]:
    """The batches of sample numbers that the batch sampler ``sampler`` gives, from where ``progress`` says.

    Exactly torch's own samplers are stood in for: the same numbers from the same random draws at the same moments,
    but as slices of an int64 array instead of lists of Python ints. Others are asked themselves, and skipped through
    to where the epoch is entered.
    """
    if not stands_in(sampler):
        return _skipped(iter(sampler), progress.start)
    inner = sampler.sampler
    if isinstance(inner, SeededSampler):
        schedule = inner.schedule(progress.epoch, progress.start)
        return map(schedule.batch, range(schedule.steps))
    if isinstance(inner, RandomSampler):
        return _shuffled(inner, sampler, progress)
    return (np.arange(rows.start, rows.stop) for rows in _bounds(len(inner), sampler, progress))


def _bounds(n: int, sampler: BatchSampler, progress: Progress) -> Iterator[slice]:
    size = sampler.batch_size
    end = n - n % size if sampler.drop_last else n
    return (slice(at, min(at + size, end)) for at in range(progress.start * size, end, size))


def _shuffled(inner: RandomSampler, sampler: BatchSampler, progress: Progress) -> Iterator[NDArray[np.int64]]:
    n = len(inner.data_source)
    generator = _shuffle_generator(inner, progress)
    order: NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
    # At its end torch's sampler draws one more permutation, of which it takes nothing: whoever shares its generator
    # can tell, also whether that was before or after the last batch.
    owed = generator is inner.generator
    for rows in _bounds(n, sampler, progress):
        if owed and rows.stop - rows.start < sampler.batch_size:
            torch.randperm(n, generator=generator)
            owed = False
        yield order[rows]
    if owed:
        torch.randperm(n, generator=generator)


def _shuffle_generator(inner: RandomSampler, progress: Progress) -> torch.Generator:
    if progress.rng is None:
        if inner.generator is not None:
            own: torch.Generator = inner.generator
            progress.rng = {"state": own.get_state().tolist()}
            return own
        progress.rng = {"seed": int(torch.empty((), dtype=torch.int64).random_().item())}
    generator = torch.Generator()
    if "seed" in progress.rng:
        generator.manual_seed(int(progress.rng["seed"]))
    else:
        generator.set_state(torch.tensor(progress.rng["state"], dtype=torch.uint8))
    return generator


def _skipped(batches: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        next(batches, None)
    yield from batches


class _Delivery(Protocol):
    progress: Progress


class IndexOrder:
    """What torch's iterators see as a loader's index sampler: its order, entered where the epoch's progress says.

    ``sampler`` is the loader's batch sampler, or its sampler when ``batch_size`` is None.
    """

    def __init__(self, delivery: _Delivery, sampler: Any, *, batched: bool) -> None:
        self._delivery = delivery
        self._sampler = sampler
        self._batched = batched

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        progress = self._delivery.progress  # now, not at the first batch: a loader may have several iterators
        sampler = self._sampler if self._batched else BatchSampler(self._sampler, 1, False)
        batches = index_batches(sampler, progress)
        if stands_in(sampler):
            batches = map(np.ndarray.tolist, batches)
        return batches if self._batched else (batch[0] for batch in batches)

    def __getattr__(self, name: str) -> Any:
        # Scripts and frameworks ask a loader's index sampler for batch_size, sampler and what theirs has besides.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._sampler, name)
