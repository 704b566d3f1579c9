"""What a sampler is told, checked and laid out as tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import Tensor

PerRow: TypeAlias = "float | Sequence[float] | Tensor"
"""One number for all rows, or one for each: a sequence, or a 1-D tensor."""


def column(
    name: str,
    value: PerRow | None,
    *,
    off: float,
    low: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
    expected: str = "a number",
) -> Tensor:
    """``value`` as a (rows,) or (1,) float64 tensor on the CPU; None is ``off``.

    Raises ValueError, which says what was ``expected``, where a number is NaN, not in [low, high], or no integer though
    ``whole``, and TypeError where it is no number.
    """
    if value is None:
        value = off
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        numbers = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):  # which of them depends on what is no number
        raise TypeError(f"{name}: expected a number, or one for each row, got {value!r}") from None
    if numbers.ndim > 1 or numbers.numel() == 0:
        raise ValueError(f"{name}: expected a number, or one for each row, got shape {list(numbers.shape)}")
    wrong = ~((numbers >= low) & (numbers <= high))
    if whole:
        wrong |= numbers != numbers.round()
    if wrong.any():
        raise ValueError(f"{name}: expected {expected}, got {numbers[wrong].flatten()[0].item():g}")
    return numbers.reshape(-1)


def table(columns: Mapping[str, Tensor]) -> Tensor:
    """The columns side by side, (rows, columns) float32; (1, columns) where none has more than one row.

    Raises ValueError where two columns have different numbers of rows.
    """
    rows, first = 1, ""
    for name, numbers in columns.items():
        if len(numbers) > 1:
            if rows > 1 and len(numbers) != rows:
                raise ValueError(f"{name}: expected {rows} rows, as {first} has, got {len(numbers)}")
            rows, first = len(numbers), name
    return torch.stack([numbers.expand(rows) for numbers in columns.values()], dim=1).float().contiguous()


def seed_column(seed: int | Sequence[int] | Tensor | None) -> Tensor | None:
    """The seeds as a (rows,) or (1,) int64 tensor on the CPU; seeds count modulo 2**64."""
    if seed is None:
        return None
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.ndim > 1 or seed.numel() == 0:
            raise ValueError(f"seed: expected a 1-D int64 tensor, got {seed.dtype} of shape {list(seed.shape)}")
        return seed.detach().cpu().reshape(-1).clone()
    several: Any = seed
    try:  # NumPy's arrays have an __index__ too
        given = [seed] if isinstance(seed, SupportsIndex) and not getattr(seed, "ndim", 0) else list(several)
        if any(isinstance(s, bool) for s in given):
            raise TypeError
        seeds = [operator.index(s) for s in given]
    except TypeError:
        raise TypeError(f"seed: expected an int, or one for each row, got {seed!r}") from None
    if not seeds:
        raise ValueError("seed: expected an int, or one for each row, got none")
    return torch.tensor([(s + 2**63) % 2**64 - 2**63 for s in seeds])


def bias_vector(logit_bias: Mapping[int, float], vocabulary: int) -> Tensor:
    """(vocabulary,) float32 on the CPU. Raises ValueError where a token is outside of the vocabulary."""
    bias = torch.zeros(vocabulary)
    for token, value in logit_bias.items():
        if not 0 <= token < vocabulary:
            raise ValueError(f"logit_bias: expected tokens 0 to {vocabulary - 1}, got {token}")
        bias[token] = value
    return bias


def checked_bias(logit_bias: Mapping[int, float] | None) -> dict[int, float] | None:
    """None where there is nothing to add. Raises TypeError where it does not map integers to numbers, and ValueError
    for a NaN."""
    if not logit_bias:
        return None
    try:
        bias = {operator.index(token): float(value) for token, value in logit_bias.items()}
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f"logit_bias: expected a mapping of tokens to numbers, got {logit_bias!r}") from None
    if any(math.isnan(value) for value in bias.values()):
        raise ValueError("logit_bias: expected numbers, got nan")
    return bias
