"""Which layers of a model become ternary, and which become nn.Linear again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aegis import ops
from aegis.quant.scheme import Scheme, relative_error
from aegis.quant.ternary import Precision, TernaryLinear

__all__ = ["TernaryOptions", "TernaryScheme"]


@dataclass(frozen=True)
class TernaryOptions:
    """Options of ``convert(model, "ternary", ...)``."""

    force: bool = False
    """Convert layers that are not ternary, too. Of an ordinary model that leaves garbage: look at the errors."""
    tolerance: float = 0.01
    """The relative error up to which weights count as ternary."""
    per_tensor: bool = False
    precision: Precision = "int8"
    train: bool = False
    """Layers that train on from the weights as they are, ternary or not, until ``aegis.quant.freeze(model)``."""


class TernaryScheme(Scheme):
    """``convert(model, "ternary")``: for models whose weights are ternary, as BitNet's are; see
    :class:`TernaryOptions`."""

    name = "ternary"
    layer: ClassVar[type[nn.Module]] = TernaryLinear

    def refusal(self, linear: nn.Linear, **options: Any) -> str | None:
        chosen = TernaryOptions(**options)
        weight = linear.weight.detach()
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"dtype {str(weight.dtype).removeprefix('torch.')}"
        if not bool(weight.isfinite().all()):
            return "weights that are not finite"
        if chosen.force or chosen.train:
            return None
        packed, scale = ops.pack_ternary(weight, per_tensor=chosen.per_tensor)
        stored = ops.unpack_ternary(packed, scale, linear.in_features)
        if torch.equal(stored.to(weight.dtype), weight):
            return None
        error = relative_error(weight, stored)
        if error <= chosen.tolerance:
            return None
        return (
            f"not ternary (relative error {error:.3g}, more than {chosen.tolerance:g}; force=True converts it all the "
            "same)"
        )

    def convert(self, linear: nn.Linear, **options: Any) -> TernaryLinear:
        chosen = TernaryOptions(**options)
        module = TernaryLinear.from_linear(
            linear, per_tensor=chosen.per_tensor, precision=chosen.precision, train=chosen.train
        )
        weight = linear.weight.detach()
        if not chosen.train and torch.equal(module.dequantize(weight.dtype), weight):
            module.linear_dtype = weight.dtype
        return module

    def dequantized(self, module: nn.Module) -> Tensor:
        assert isinstance(module, TernaryLinear)
        return module.dequantize()

    def error(self, linear: nn.Linear, module: nn.Module) -> float:
        assert isinstance(module, TernaryLinear)
        return 0.0 if module.linear_dtype is not None else super().error(linear, module)

    def revert(self, module: nn.Module) -> nn.Linear | None:
        assert isinstance(module, TernaryLinear)
        if module.linear_dtype is None or module.float_weight is not None:
            return None
        dtype = module.linear_dtype if module.bias is None else module.bias.dtype
        linear = nn.Linear(module.in_features, module.out_features, False, device="meta", dtype=dtype)
        linear.weight = nn.Parameter(module.dequantize(dtype))
        if module.bias is not None:
            linear.bias = nn.Parameter(module.bias.detach().clone())
        return linear
