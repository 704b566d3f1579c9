"""How fast a measured value moves: a straight line through its samples, with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drift", "drift"]

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

    Samples that follow each other resemble each other, and the textbook interval is too narrow then: the number of
    samples counts as n (1 - r) / (1 + r), where r is the correlation of residuals one apart, if positive (Bayley and
    Hammersley, 1946).
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
    alike = float(residuals[:-1] @ residuals[1:]) / energy if energy > 0.0 else 0.0
    effective = max(float(_LEAST), count * (1.0 - max(alike, 0.0)) / (1.0 + max(alike, 0.0)))
    error = (energy / (count - 2) * (count / effective) / spread) ** 0.5
    return Drift(slope * span, _student(effective - 2.0) * error * span, slope, count)


def _student(freedom: float) -> float:
    """Two-sided 95 % point of Student's t, from 3 degrees of freedom on within 1 % (Abramowitz and Stegun, 26.7.5)."""
    terms = [
        _Z,
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    ]
    return sum(term / freedom**power for power, term in enumerate(terms))
