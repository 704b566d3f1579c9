"""Several token data sets as one, by weight."""

from __future__ import annotations

import copy
import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from aegis import _C
from aegis.data.token_batch import Structure
from aegis.data.token_dataset import TokenDataset, fill_rows

__all__ = ["MixtureBase", "TokenMixture", "whole_weights"]

LONGEST_ROUND = 1 << 20
_EXACT = Fraction(1, 1 << 40)


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the proportion of ``weights``, together at most 2^20.

    Exactly in proportion where such numbers exist (weights of up to six decimals, thirds), else as near as 2^20 parts
    allow. ValueError for a weight that is zero, negative, infinite or NaN, and where one is less than 2^-20 of all.
    """
    for at, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            hint = ": leave a source out that is not wanted" if weight == 0 else ""
            raise ValueError(f"weights: expected numbers above 0, got {weight} for source {at}{hint}")
    exact = [Fraction(weight) if isinstance(weight, int | float) else Fraction(float(weight)) for weight in weights]
    total = sum(exact)
    shares = [weight / total for weight in exact]
    simple = [share.limit_denominator(LONGEST_ROUND) for share in shares]
    length = 1
    for share in simple:
        length = math.lcm(length, share.denominator)
        if length > LONGEST_ROUND:
            break
    near = all(abs(a - b) <= _EXACT for a, b in zip(simple, shares, strict=True))
    if length <= LONGEST_ROUND and near and sum(simple) == 1 and min(simple) > 0:
        return [int(share * length) for share in simple]
    scaled = [share * LONGEST_ROUND for share in shares]
    whole = [math.floor(part) for part in scaled]
    by_rest = sorted(range(len(whole)), key=lambda at: (whole[at] - scaled[at], at))
    for at in by_rest[: LONGEST_ROUND - sum(whole)]:
        whole[at] += 1
    if min(whole) == 0:
        at = whole.index(0)
        raise ValueError(f"weights: expected at least 2**-20 of all, got {weights[at]} for source {at}")
    return whole


@dataclass(frozen=True)
class MixtureBase:
    """Where a run took up its present weights: rounds are counted from there."""

    epoch: int
    position: int
    starts: tuple[tuple[int, int], ...]
    """Of each source: the pass over it that was under way, and how many samples of that pass had come."""


class TokenMixture(Dataset[Any]):
    """Samples of several :class:`~aegis.TokenDataset` by weight, for FlatArenaDataLoader with ``seed=``.

    After any number of samples every source has had its share of them but for less than one sample, in each epoch, on
    all ranks together; which source comes where follows from the position, without an index. Within a source samples
    come in file order, or with ``shuffle=True`` in a new order for each pass over it. A source that is exhausted
    begins its next pass.

    Args:
        sources: data sets of one block_size and the same fields. Formats, dtypes and layouts may differ.
        weights: samples in proportion, one number above 0 for each source; by default as many as it has.
            :attr:`weights` has them as whole numbers of at most 2^20 together, exact where that is possible (up to
            six decimals), and a share is a weight by their sum.
        exhausted: "repeat", or "stop": the epoch ends where the source would have to begin a second pass. One for all,
            or one for each source. Where none stops, an epoch goes on where the last one ended; where one does, every
            epoch begins all sources anew.
        samples: in an epoch. By default until a source stops, or as many as all sources have.

    Weights may differ from those of a saved state: the run goes on where it was in every source, and shares count from
    there.

    ``mixture[i]`` counts through the samples of one source after another. There is no ``len()``: torch's samplers
    would ignore the weights.

    Raises:
        ValueError: there is no source, sources do not fit each other, or a weight is zero, negative or no number.
    """

    def __init__(
        self,
        sources: Sequence[TokenDataset],
        weights: Sequence[float] | None = None,
        *,
        exhausted: str | Sequence[str] = "repeat",
        samples: int | None = None,
    ) -> None:
        self._sources = tuple(sources)
        if not self._sources:
            raise ValueError("sources: expected at least one data set, got none")
        for at, source in enumerate(self._sources):
            if not isinstance(source, TokenDataset):
                raise ValueError(f"sources: expected data sets of tokens, got a {type(source).__name__} as source {at}")
            for name in ("block_size", "fields", "max_documents"):
                first, own = getattr(self._sources[0], name), getattr(source, name)
                if first != own:
                    raise ValueError(f"sources: expected one {name}, got {first} and, in source {at}, {own}")
        self._lengths = [len(source) for source in self._sources]
        weights = self._lengths if weights is None else list(weights)
        policies = [exhausted] * len(self._sources) if isinstance(exhausted, str) else list(exhausted)
        for name, given in (("weights", weights), ("exhausted", policies)):
            if len(given) != len(self._sources):
                raise ValueError(f"{name}: expected one for each of {len(self._sources)} sources, got {len(given)}")
        for policy in policies:
            if policy not in ("repeat", "stop"):
                raise ValueError(f"exhausted: expected 'repeat' or 'stop', got {policy!r}")
        if samples is not None and samples < 1:
            raise ValueError(f"samples: expected at least 1, got {samples}")
        self._stops = [at for at, policy in enumerate(policies) if policy == "stop"]
        self.given_samples = samples
        """``samples`` as it was given."""
        self._round = _C.MixtureRound(whole_weights(weights))

    @property
    def sources(self) -> tuple[TokenDataset, ...]:
        """The data sets."""
        return self._sources

    @property
    def weights(self) -> list[int]:
        """Samples of each source in a round, which has ``sum(weights)``."""
        return self._round.weights

    @property
    def lengths(self) -> list[int]:
        """Samples that each source has."""
        return list(self._lengths)

    @property
    def samples(self) -> int:
        """In the first epoch."""
        return self.samples_in(0)

    @property
    def total(self) -> int:
        """Samples of all sources together, each counted once."""
        return sum(self._lengths)

    @property
    def block_size(self) -> int:
        """Tokens in a sample."""
        return self._sources[0].block_size

    @property
    def tail_tokens(self) -> int:
        """Tokens of all sources that are never delivered."""
        return sum(source.tail_tokens for source in self._sources)

    @property
    def structure(self) -> Structure | None:
        """Makes a batch of the tensors that a filler has written; None where it is the list of them."""
        return self._sources[0].structure

    def filler(self, *, pads: bool = False) -> _C.BatchFiller:
        """What writes batches, for the C++ feeder."""
        first = self._sources[0]
        return _C.RowFiller([s.source for s in self._sources], first.fields, max_documents=first.max_documents)

    def __len__(self) -> int:
        raise TypeError(
            "a TokenMixture has no length: its samples come by weight, in FlatArenaDataLoader(mixture, seed=...); "
            "see its samples (of an epoch) and total"
        )

    def __getitem__(self, index: int) -> Any:
        """Sample ``index`` of all sources, one after another."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many samples; torch's DataLoader calls this for a batch."""
        rows = np.fromiter(map(operator.index, indices), np.int64, len(indices))
        filler, structure = self.filler(), self.structure
        if structure is None:
            x, y = fill_rows(filler, rows)
            return list(zip(x.unbind(), y.unbind(), strict=True))
        return [structure.sample(fill_rows(filler, rows[at : at + 1])) for at in range(len(rows))]

    def __repr__(self) -> str:
        whole = sum(self.weights)
        parts = [
            f"{weight / whole:.4g} of {source}" for weight, source in zip(self.weights, self._sources, strict=True)
        ]
        return f"TokenMixture({', '.join(parts)})"

    def fingerprint(self, files: Sequence[int] | None = None) -> str:
        """16 hex digits of the sources' fingerprints and which of them stop; weights may change and are not in it.

        ``files``: of each source so many files alone.
        """
        digest = hashlib.sha256(str(self._stops).encode())
        for at, source in enumerate(self._sources):
            digest.update(source.fingerprint(None if files is None else files[at]).encode())
        return digest.hexdigest()[:16]

    # --- orders: where every source is at a position of an epoch -----------------------------------------------

    def order(self, epoch: int, base: MixtureBase | None, *, seed: int, shuffle: bool) -> _C.MixtureOrder:
        """The order of an epoch's samples, of a run that took up its weights at ``base``."""
        starts, phase = self._begin(epoch, base)
        sources = [(length, *start) for length, start in zip(self._lengths, starts, strict=True)]
        return _C.MixtureOrder(self._round, sources, phase=phase, seed=seed, shuffle=shuffle)

    def samples_in(self, epoch: int, base: MixtureBase | None = None) -> int:
        """How many samples an epoch has."""
        base = self.base_or_begin(base)
        if not self._stops:
            return self.given_samples or self.total
        fresh = epoch > base.epoch
        begun = 0 if fresh else base.position
        had = [0 if fresh else start for _, start in base.starts]
        ends = [self._round.position_of(at, self._lengths[at] - had[at]) for at in self._stops]
        return min(begun + min(ends), self.given_samples or 2**62)

    def starts_at(self, epoch: int, base: MixtureBase | None, position: int) -> tuple[tuple[int, int], ...]:
        """Where every source is before the sample at ``position``, as in :class:`MixtureBase`."""
        starts, phase = self._begin(epoch, base)
        counted = self._counts(max(phase, 0))
        had = [now - before for now, before in zip(self._counts(phase + position), counted, strict=True)]
        return self._advanced(starts, had)

    def base_or_begin(self, base: MixtureBase | None) -> MixtureBase:
        """``base``, or where a run begins."""
        return MixtureBase(0, 0, ((0, 0),) * len(self._sources)) if base is None else base

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_round": self.weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _round=_C.MixtureRound(state["_round"]))

    def as_it_was(self, weights: Sequence[int], lengths: Sequence[int], samples: int | None) -> TokenMixture:
        """This mixture with other weights and samples, and with sources of other lengths: only for its orders."""
        other = copy.copy(self)
        other._round = _C.MixtureRound(weights)
        other._lengths = list(lengths)
        other.given_samples = samples
        return other

    def renewed(self, starts: Sequence[tuple[int, int]], lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """``starts`` of sources that had ``lengths``: with a new pass where they have grown."""
        return tuple(
            start if now == before or start[1] == 0 else (start[0] + 1, 0)
            for start, now, before in zip(starts, self._lengths, lengths, strict=True)
        )

    def _begin(self, epoch: int, base: MixtureBase | None) -> tuple[tuple[tuple[int, int], ...], int]:
        """Where every source is when an epoch begins, and its first position's place in the rounds."""
        base = self.base_or_begin(base)
        if epoch < base.epoch:
            raise ValueError(f"epoch: expected at least {base.epoch}, where the weights were changed, got {epoch}")
        if epoch == base.epoch:
            return base.starts, -base.position
        first = self.samples_in(base.epoch, base) - base.position
        since = epoch - base.epoch - 1
        if not self._stops:
            phase = first + since * self.samples_in(epoch, base)
            _check_epoch(epoch, phase)
            return self._advanced(base.starts, self._counts(phase)), phase
        passes = [
            pass_ + -(-(begin + had) // length) + since * -(-each // length)
            for (pass_, begin), had, each, length in zip(
                base.starts,
                self._counts(first),
                self._counts(self.samples_in(epoch, base)),
                self._lengths,
                strict=True,
            )
        ]
        _check_epoch(epoch, max(passes))
        return tuple((number, 0) for number in passes), 0

    def _counts(self, position: int) -> list[int]:
        return [self._round.count(at, position) for at in range(len(self._sources))]

    def _advanced(self, starts: Sequence[tuple[int, int]], had: Sequence[int]) -> tuple[tuple[int, int], ...]:
        return tuple(
            (number + (begin + more) // length, (begin + more) % length)
            for (number, begin), more, length in zip(starts, had, self._lengths, strict=True)
        )


def _check_epoch(epoch: int, counted: int) -> None:
    """ValueError where samples or passes before an epoch no longer count in 64 bits."""
    if counted >= 2**62:
        raise ValueError(f"epoch: expected one with fewer than 2**62 samples before it, got {epoch}")
