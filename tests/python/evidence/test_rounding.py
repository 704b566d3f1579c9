"""Weights as bfloat16 values: which values, which of the two neighbours, and how often."""

from __future__ import annotations

import pytest
import torch
from aegis.evidence.rounding import round_weights_
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=50), st.integers(0, 2**31))
def test_every_way_gives_a_neighbour_that_bfloat16_has(values: list[float], seed: int) -> None:
    given_values = torch.tensor(values)
    exact = given_values.to(torch.bfloat16).float()
    for how in ("nearest", "stochastic", "truncate"):
        rounded = given_values.clone()
        round_weights_([rounded], how, torch.Generator().manual_seed(seed))
        assert torch.equal(rounded, rounded.to(torch.bfloat16).float())
        spacing = torch.maximum(exact.abs(), torch.tensor(2.0**-126)) * 2.0**-7
        assert ((rounded - given_values).abs() <= spacing).all()
        if how == "truncate":
            assert (rounded.abs() <= given_values.abs()).all()
        if how == "nearest":
            assert torch.equal(rounded, exact)
        again = rounded.clone()
        round_weights_([again], how, torch.Generator().manual_seed(seed))
        assert torch.equal(again, rounded)


@pytest.mark.parametrize("value", [1.001, -1.001, 3.0e-5, 1.0])
def test_stochastic_rounding_is_right_on_average(value: float) -> None:
    weights = torch.full((200_000,), value)
    round_weights_([weights], "stochastic", torch.Generator().manual_seed(0))
    assert weights.unique().numel() == (1 if value == 1.0 else 2)
    # Six deviations of the mean of so many draws between neighbours that lie 2**-7 apart.
    assert weights.double().mean().item() == pytest.approx(value, rel=6 * 2.0**-8 / 200_000**0.5 + 1e-7)
