"""Linear layers with float8 (E4M3) weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from aegis import ops  # noqa: F401  (loads the operators)
from aegis.quant.scheme import Scheme

__all__ = ["BLOCK", "Float8Linear", "Float8Scheme", "dequantize"]

BLOCK = 128
"""Elements of a row that share a scale, where a whole row does not."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_linear = torch.ops.aegis.float8_linear
_linear_inference = torch.ops.aegis.float8_linear.inference


def dequantize(weight: Tensor, weight_scale: Tensor) -> Tensor:
    """The float32 numbers that (n, k) E4M3 values with (n, 1) or (n, ceil(k / 128)) scales stand for."""
    if weight_scale.shape[1] == 1:
        return weight.float() * weight_scale
    return weight.float() * weight_scale.repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]


class Float8Linear(nn.Module):
    """A linear layer that keeps its weights as float8 (E4M3), a quarter of float32's bytes.

    Inputs are quantised on the way, with a scale for each row of theirs (or for each 128 elements of it, where weights
    have blocks): see :func:`aegis.ops.float8_linear`, which also says what it costs. They may be float32, bfloat16 or
    float16, and so is the result. It has no gradient: to ask for one is an error, in the backward pass.

    Args:
        in_features, out_features: k and n.
        bias: whether there is one.
        block: 0, for a scale for each row of weights, or 128, for one for each 128 elements of a row.
        device: of the buffers.
        dtype: of the bias.

    Attributes:
        weight: (n, k) float8_e4m3fn, a buffer; zeros at first.
        weight_scale: (n, 1) or (n, ceil(k / 128)) float32, a buffer; ones at first. ``.half()``, ``.bfloat16()`` and
            ``.to(dtype)`` leave both as they are.
        bias: (n,) or None, a buffer.

    The names are those of compressed-tensors; :func:`aegis.quant.read_float8` and
    :func:`aegis.quant.write_float8` know other projects'.
    """

    if TYPE_CHECKING:  # TorchScript reads the annotations of a class, and knows no postponed ones
        weight: Tensor
        weight_scale: Tensor
        bias: Tensor | None
        in_features: int
        out_features: int
        block: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        block: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"{name}: expected at least 0, got {size!r}")
        _check_block(block)
        _check_bias_dtype(dtype)
        self.in_features, self.out_features, self.block = in_features, out_features, block
        groups = -(-in_features // BLOCK) if block else 1
        values = torch.zeros(out_features, in_features, dtype=torch.uint8, device=device)
        self.register_buffer("weight", values.view(torch.float8_e4m3fn))
        self.register_buffer("weight_scale", torch.ones(out_features, groups, device=device))
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype, device=device) if bias else None)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, block: int = 0) -> Float8Linear:
        """A layer with the weights of ``linear``, quantised, and its bias; on the same device.

        Raises:
            ValueError: weights that are not finite, or neither float32, bfloat16 nor float16.
        """
        reason = _refusal(linear, block)
        if reason:
            raise ValueError(f"linear: {reason}")
        with torch.no_grad():
            values, scales = torch.ops.aegis.float8_quantize(linear.weight.detach(), block)
            bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls.from_tensors(values, scales, bias)

    @classmethod
    def from_tensors(cls, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Float8Linear:
        """A layer of these very tensors.

        Args:
            weight: (n, k) float8_e4m3fn with adjacent elements in each row.
            weight_scale: (n, 1) or (n, ceil(k / 128)) float32, finite.
            bias: (n,) float32, bfloat16 or float16, or None.

        Raises:
            ValueError: another shape, dtype or device, or scales that are not finite.
        """
        if weight.dtype != torch.float8_e4m3fn or weight.ndim != 2:
            raise ValueError(
                f"weight: expected a 2-D tensor of float8_e4m3fn, got {_text(weight.dtype)} of shape "
                f"{list(weight.shape)}"
            )
        n, k = weight.shape
        blocks = -(-k // BLOCK)
        if weight_scale.dtype != torch.float32 or weight_scale.shape not in ((n, 1), (n, blocks)):
            raise ValueError(
                f"weight_scale: expected float32 of shape [{n}, 1] or [{n}, {blocks}], got "
                f"{_text(weight_scale.dtype)} of shape {list(weight_scale.shape)}"
            )
        if bias is not None:
            _check_bias_dtype(bias.dtype)
            if bias.shape != (n,):
                raise ValueError(f"bias: expected shape [{n}], got {list(bias.shape)}")
        for name, tensor in (("weight_scale", weight_scale), ("bias", bias)):
            if tensor is not None and tensor.device != weight.device:
                raise ValueError(f"{name}: expected to be on {weight.device} like weight, got {tensor.device}")
        _check_finite(weight_scale)
        layer = cls(0, 0, bias=False)
        layer.in_features, layer.out_features = k, n
        layer.block = BLOCK if weight_scale.shape[1] != 1 else 0
        layer.weight, layer.weight_scale, layer.bias = weight, weight_scale.contiguous(), bias
        return layer

    def dequantized(self) -> Tensor:
        """The (n, k) float32 weights that the values and scales stand for."""
        return dequantize(self.weight, self.weight_scale)

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            bias = self.bias
            if bias is not None:
                bias = bias.to(input.dtype)
            scripted: Tensor = torch.ops.aegis.float8_linear(input, self.weight, self.weight_scale, bias)
            return scripted
        buffers = self._buffers  # self.weight would be looked up by Python code of nn.Module's
        bias = buffers["bias"]
        if bias is not None and bias.dtype != input.dtype:
            bias = bias.to(input.dtype)
        operator = _linear if torch.is_grad_enabled() else _linear_inference
        result: Tensor = operator(input, buffers["weight"], buffers["weight_scale"], bias)
        return result

    def extra_repr(self) -> str:
        block = f", block={self.block}" if self.block else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{block}"

    def _apply(self, fn: Any, recurse: bool = True) -> Float8Linear:
        """Moves to other devices; a new dtype is the bias's alone."""
        scale = self.weight_scale
        self.weight = self.weight.view(torch.uint8)  # which .half() leaves alone
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self.weight = self.weight.view(torch.float8_e4m3fn)
        if self.weight_scale.dtype != torch.float32:
            self.weight_scale = scale.to(self.weight.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """With the values as bytes: torch cannot pickle a float8 tensor outside of torch.save."""
        state = self.__dict__.copy()
        state["_buffers"] = {**self._buffers, "weight": self.weight.view(torch.uint8)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.weight = self.weight.view(torch.float8_e4m3fn)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Refuses values that the shapes and dtypes of the layer do not allow, before any is copied."""
        errors: list[str] = rest[-1]
        for name, dtype in (("weight", torch.float8_e4m3fn), ("weight_scale", torch.float32)):
            tensor = state_dict.get(prefix + name)
            if tensor is not None and tensor.dtype != dtype:
                errors.append(f"{prefix}{name}: expected {_text(dtype)}, got {_text(tensor.dtype)}")
                return
        scale = state_dict.get(prefix + "weight_scale")
        if scale is not None and not scale.is_meta and not scale.isfinite().all():
            errors.append(f"{prefix}weight_scale: expected finite numbers, got others")
            return
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Float8Scheme(Scheme):
    """``convert(model, "float8", block=0)``: weights as E4M3. Always loses something, so it is not reversible."""

    name: ClassVar[str] = "float8"
    layer: ClassVar[type[nn.Module]] = Float8Linear

    def refusal(self, linear: nn.Linear, **options: Any) -> str | None:
        return _refusal(linear, _block_of(**options))

    def convert(self, linear: nn.Linear, **options: Any) -> Float8Linear:
        return Float8Linear.from_linear(linear, block=_block_of(**options))

    def dequantized(self, module: nn.Module) -> Tensor:
        assert isinstance(module, Float8Linear)
        return module.dequantized()

    def revert(self, module: nn.Module) -> nn.Linear | None:
        return None


def _refusal(linear: nn.Linear, block: int) -> str | None:
    _check_block(block)
    weight = linear.weight
    if weight.dtype not in _DTYPES:
        return f"expected weights of float32, bfloat16 or float16, got {_text(weight.dtype)}"
    if not weight.isfinite().all():
        return "expected finite weights, got NaN or infinity among them"
    return None


def _block_of(*, block: int = 0) -> int:
    """The scheme's only option."""
    return block


def _check_block(block: int) -> None:
    if block not in (0, BLOCK):
        raise ValueError(f"block: expected 0 (a scale for each row) or {BLOCK}, got {block}")


def _check_bias_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype of bias: expected float32, bfloat16 or float16, got {_text(dtype)}")


def _check_finite(weight_scale: Tensor) -> None:
    if weight_scale.is_meta:
        return
    bad = (~weight_scale.isfinite()).nonzero()
    if len(bad):
        row, group = bad[0].tolist()
        value = weight_scale[row, group].item()
        raise ValueError(f"weight_scale[{row}, {group}]: expected a finite number, got {value}")


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
