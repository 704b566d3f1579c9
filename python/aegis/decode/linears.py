"""Linear layers of a model that read their weights at the speed of memory while it decodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from aegis import ops  # noqa: F401  (loads the operators)

__all__ = ["SkinnyLinear", "skinny_linears"]

_skinny_linear = torch.ops.aegis.skinny_linear.inference
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class SkinnyLinear(nn.Linear):
    """``nn.Linear`` that hands up to 8 rows on a CPU to :func:`aegis.ops.skinny_linear`, and the rest to torch.

    Its parameters are those of the layer it replaces, and so are results up to the rounding of float sums. Where a
    gradient is asked for it does what ``nn.Linear`` does.
    """

    max_rows: ClassVar[int] = 8
    """What ``skinny_linear`` takes; more rows are torch's to multiply."""
    __constants__ = [*nn.Linear.__constants__, "max_rows"]  # noqa: RUF012 (nn.Linear declares no class variable)

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            if self._few(input, self.weight):
                result: Tensor = torch.ops.aegis.skinny_linear(input, self.weight, self.bias)
                return result
            return nn.functional.linear(input, self.weight, self.bias)
        parameters = self._parameters  # self.weight would be looked up by Python code of nn.Module's
        weight, bias = parameters["weight"], parameters["bias"]
        assert weight is not None
        if self._few(input, weight):
            result = _skinny_linear(input, weight, bias)
            return result
        return nn.functional.linear(input, weight, bias)

    def _few(self, input: Tensor, weight: Tensor) -> bool:
        few = input.numel() <= self.max_rows * self.in_features and input.dtype == weight.dtype
        return few and not torch.is_grad_enabled()


def _fits(module: nn.Module) -> bool:
    """Whether the operator can take this very module's place.

    A subclass, or a forward of its own, may do something else. Weights may be quantised tensors, or no parameters but
    made by a hook (pruning, weight_norm).
    """
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias", module)
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype in _DTYPES
        and weight.stride(-1) == 1
        and (bias is None or (type(bias) is nn.Parameter and bias.dtype == weight.dtype))
    )


@contextmanager
def skinny_linears(model: nn.Module) -> Iterator[int]:
    """Inside, every ``nn.Linear`` of ``model`` on a CPU is a ``SkinnyLinear``; yields how many.

    The modules stay the same objects, with the same parameters; only their class changes, and changes back. Layers of
    other classes, of other dtypes than float32, bfloat16 and float16, or with a ``forward`` of their own, stay as they
    are, and so do all where autocast is on. Leave in the order opposite to that of entering;
    ``aegis.decode.model_setup.set_up`` is for threads.
    """
    modules = [] if torch.is_autocast_enabled("cpu") else [module for module in model.modules() if _fits(module)]
    for module in modules:
        module.__class__ = SkinnyLinear
    try:
        yield len(modules)
    finally:
        for module in modules:
            module.__class__ = nn.Linear
