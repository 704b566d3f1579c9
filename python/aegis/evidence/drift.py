"""How fast a measured value moves: a straight line through its samples, with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drift", "drift", "effective_count", "median_interval"]

Floats = NDArray[np.float64]

_Z = 1.959964  # two-sided 95 % point of the normal distribution
_LEAST = 5  # samples for an interval


@dataclass(frozen=True)
class Drift:
    """The change from the first to the last sample by the line fitted, in the samples' unit.

    Attributes:
        change: slope times span.
        margin: half the width of the 95 % confidence interval of ``change``; infinite with fewer than five samples.
        slope: per unit of x.
        samples: how many there were.
    """

    change: float
    margin: float
    slope: float
    samples: int


def drift(x: Floats, y: Floats) -> Drift:
    """Least squares over the samples where both are finite.

    The interval goes by :func:`effective_count`, at least five.
    """
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    count = len(x)
    if count < 2 or np.ptp(x) == 0.0:
        return Drift(0.0, float("inf"), 0.0, count)
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (y - y.mean())) / spread
    span = float(np.ptp(x))
    if count < _LEAST:
        return Drift(slope * span, float("inf"), slope, count)
    residuals = y - y.mean() - slope * centred
    energy = float(residuals @ residuals)
    effective = max(float(_LEAST), effective_count([residuals]))
    error = (energy / (count - 2) * (count / effective) / spread) ** 0.5
    return Drift(slope * span, _student(effective - 2.0) * error * span, slope, count)


def effective_count(residuals: Sequence[Floats]) -> float:
    """How many independent samples those of one or more series are worth.

    Samples that follow each other resemble each other, and textbook intervals are too narrow then: n of them count as
    n (1 - r) / (1 + r), where r is the correlation of residuals one apart, if positive (Bayley and Hammersley, 1946).
    """
    count = sum(len(series) for series in residuals)
    energy = sum(float(series @ series) for series in residuals)
    if energy == 0.0:
        return float(count)
    alike = max(0.0, sum(float(series[:-1] @ series[1:]) for series in residuals) / energy)
    return count * (1.0 - alike) / (1.0 + alike)


def median_interval(series: Sequence[Floats]) -> tuple[float, float, float]:
    """The median of one or more series, and the ends of the 95 % confidence interval that order statistics give it.

    What slows steps down goes on for a while, so they count as many as :func:`effective_count` makes of their ranks.
    """
    values = np.concatenate(series)
    ranks = np.unique(values, return_inverse=True)[1]
    ends = np.cumsum([len(one) for one in series])[:-1]
    effective = effective_count(np.split(ranks - ranks.mean(), ends))
    values.sort()
    reach = 0.98 * len(values) / max(effective, 1.0) ** 0.5
    low = max(0, int(len(values) / 2 - reach))
    high = min(len(values) - 1, int(np.ceil(len(values) / 2 + reach)))
    return float(np.median(values)), float(values[low]), float(values[high])


def _student(freedom: float) -> float:
    """Two-sided 95 % point of Student's t, from 3 degrees of freedom on within 1 % (Abramowitz and Stegun, 26.7.5)."""
    terms = [
        _Z,
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    ]
    return sum(term / freedom**power for power, term in enumerate(terms))
