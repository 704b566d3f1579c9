"""What a way of storing weights in few bits has to offer to be used by ``convert``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__all__ = ["Scheme", "relative_error"]


class Scheme(ABC):
    """A way of storing the weight of an ``nn.Linear``. Options are keyword arguments, the same for all methods.

    No method changes the layer it is given.
    """

    name: ClassVar[str]
    layer: ClassVar[type[nn.Module]]
    """What layers become."""

    @abstractmethod
    def refusal(self, linear: nn.Linear, **options: Any) -> str | None:
        """Why this layer must not be converted; None where it may be."""

    @abstractmethod
    def convert(self, linear: nn.Linear, **options: Any) -> nn.Module:
        """A layer of this scheme in the place of one that was not refused, on the same device."""

    @abstractmethod
    def dequantized(self, module: nn.Module) -> Tensor:
        """The (out_features, in_features) weight that a converted layer stands for, of any floating-point dtype."""

    @abstractmethod
    def revert(self, module: nn.Module) -> nn.Linear | None:
        """The layer from which ``module`` was converted, bit for bit; None where something was lost."""

    def error(self, linear: nn.Linear, module: nn.Module) -> float:
        """How far the weights of ``module`` are from those of ``linear``: ``|W - W'| / |W|``, in Frobenius norms."""
        return relative_error(linear.weight.detach(), self.dequantized(module))


def relative_error(weight: Tensor, stored: Tensor) -> float:
    """``|weight - stored| / |weight|`` in Frobenius norms, summed in float64; 0 where the two are equal."""
    difference = torch.zeros((), dtype=torch.float64, device=weight.device)
    size = torch.zeros_like(difference)
    rows = max(1, (1 << 22) // max(1, weight.shape[-1]))  # a part at a time: float64 takes eight bytes an element
    stored = stored.to(weight.device)
    for begin in range(0, weight.shape[0], rows):
        part, other = weight[begin : begin + rows], stored[begin : begin + rows]
        difference += (part.double() - other.double()).square().sum()
        size += part.double().square().sum()
    if difference == 0:
        return 0.0
    return float((difference / size).sqrt())
