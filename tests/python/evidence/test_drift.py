"""A straight line through samples: known lines, intervals that cover, samples that resemble each other."""

from __future__ import annotations

import numpy as np
import pytest
from aegis.evidence.drift import drift


def test_a_line_is_found_whatever_is_missing() -> None:
    steps = np.arange(100.0)
    values = 5.0 + 0.25 * steps
    values[::3] = np.nan
    found = drift(steps, values)
    assert found.slope == pytest.approx(0.25)
    assert found.change == pytest.approx(0.25 * 97)
    assert found.margin == pytest.approx(0.0, abs=1e-9)
    assert found.samples == 66


def test_the_interval_is_that_of_least_squares() -> None:
    steps = np.arange(20.0)
    values = np.tile([1.0, -1.0], 10)  # residuals that alternate: nothing to allow for
    found = drift(steps, values)
    slope, covariance = np.polyfit(steps, values, 1, cov=True)
    assert found.slope == pytest.approx(slope[0])
    assert found.margin == pytest.approx(2.101 * covariance[0, 0] ** 0.5 * 19, rel=1e-3)  # t, 18 degrees of freedom


def test_intervals_cover_the_truth_also_of_samples_that_resemble_each_other() -> None:
    generator = np.random.default_rng(1)
    for alike, least in ((0.0, 0.93), (0.8, 0.85)):
        covered = 0
        for _ in range(300):
            noise = generator.normal(size=120)
            for i in range(1, 120):
                noise[i] += alike * noise[i - 1]
            found = drift(np.arange(120.0), noise + 0.01 * np.arange(120.0))
            covered += abs(found.change - 0.01 * 119) <= found.margin
        assert covered / 300 >= least, alike


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_few_samples_have_no_interval(count: int) -> None:
    found = drift(np.arange(float(count)), np.arange(float(count)))
    assert found.margin == float("inf")
    assert found.samples == count
    assert drift(np.ones(9), np.arange(9.0)).margin == float("inf")
