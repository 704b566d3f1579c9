"""Linear layers with weights of -1, 0 and +1 times a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from aegis import ops
from aegis.quant.straight_through import absmean, round_to_trits, ternary_training_linear

__all__ = ["Precision", "TernaryLinear"]

Precision = Literal["int8", "exact"]

LAYOUT = 1
"""The tag of :func:`aegis.ops.pack_ternary`'s format: 16 trits to a word, from its lowest bits up."""

_linear = torch.ops.aegis.ternary_linear
_linear_inference = torch.ops.aegis.ternary_linear.inference


class TernaryLinear(nn.Module):
    """A linear layer whose weights are -1, 0 and +1 times a scale: two bits each.

    It computes ``x @ (trits * scale).T + bias`` with :func:`aegis.ops.ternary_linear`, and has no gradient; with
    ``train=True`` it holds a float weight instead, trains it as BitNet b1.58 does (Ma et al. 2024) and becomes a layer
    of two bits by :meth:`freeze`.

    Buffers of the packed layer, all in its ``state_dict``:

    - ``packed``: (out_features, ceil(in_features / 16)) uint32, see :func:`aegis.ops.pack_ternary`.
    - ``scale``: (out_features,) or (1,) float32; it stays float32 when the module is moved to another dtype.
    - ``layout``: int64 of two: the tag of the format, and in_features. Both are checked when a state is loaded, and so
      are the codes.

    Args:
        in_features, out_features, bias, device, dtype: as of ``nn.Linear``. A packed layer begins with all weights
            zero; ``dtype`` is that of the bias.
        precision: of the activations: ``"int8"`` (as trained), or ``"exact"``. Then more than eight rows on a CPU are
            multiplied by torch, so that an element that is not finite spoils its whole row.
        train: whether it trains. In training activations are rounded to int8 like those of a packed layer, and the
            weight has one scale, its mean magnitude; gradients pass through both roundings unchanged.

    Raises:
        ValueError: sizes below 0, or no such precision; at a call, what :func:`aegis.ops.ternary_linear` refuses.
        RuntimeError: when a gradient is asked of a packed layer.
    """

    if TYPE_CHECKING:  # TorchScript reads the annotations of a class, and knows no postponed ones
        packed: Tensor
        scale: Tensor
        layout: Tensor
        linear_dtype: torch.dtype | None
        """Of the layer that was packed, where that lost nothing."""
    else:
        linear_dtype = None
    exact_rows: ClassVar[int] = 8
    """With exact activations on a CPU, more rows are multiplied by torch, with weights that are unpacked for it."""
    __constants__: ClassVar[list[str]] = ["exact_rows"]
    __jit_ignored_attributes__: ClassVar[list[str]] = ["linear_dtype"]
    __jit_unused_properties__: ClassVar[list[str]] = ["weight"]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        precision: Precision = "int8",
        train: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"{name}: expected at least 0, got {size!r}")
        if precision not in ("int8", "exact"):
            raise ValueError(f"precision: expected 'int8' or 'exact', got {precision!r}")
        if train and precision != "int8":
            raise ValueError(f"precision: expected 'int8', which is what is trained, got {precision!r}")
        self.in_features = in_features
        self.out_features = out_features
        self.precision = precision
        self.float_weight: nn.Parameter | None
        self.bias: nn.Parameter | None
        if train:
            linear = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
            self.register_parameter("float_weight", linear._parameters["weight"])
            self.register_parameter("bias", linear._parameters["bias"])
        else:
            self.register_parameter("float_weight", None)
            empty = torch.zeros(out_features, (in_features + 15) // 16, dtype=torch.uint32, device=device)
            self._set_packed(empty, torch.ones(out_features, dtype=torch.float32, device=device))
            self.register_parameter("bias", None)
            if bias:
                zeros = torch.zeros(out_features, device=device, dtype=dtype)
                self.bias = nn.Parameter(zeros, requires_grad=False)

    def _set_packed(self, packed: Tensor, scale: Tensor) -> None:
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("layout", torch.tensor([LAYOUT, self.in_features], device=packed.device))

    # --- making one ----------------------------------------------------------------------------------------------

    @classmethod
    def from_packed(
        cls, packed: Tensor, scale: Tensor, in_features: int, bias: Tensor | None = None, precision: Precision = "int8"
    ) -> TernaryLinear:
        """A layer of packed weights, which are taken as they are and not copied.

        Raises:
            ValueError: what :func:`aegis.ops.unpack_ternary` refuses, or a bias of another shape or device.
        """
        _check_packed(packed, scale, in_features)
        module = cls(in_features, packed.shape[0], False, precision=precision, device="meta")
        module._set_packed(packed.contiguous(), scale)
        if bias is not None:
            if bias.shape != (packed.shape[0],):
                raise ValueError(f"bias: expected shape ({packed.shape[0]},), got {tuple(bias.shape)}")
            if bias.device != packed.device:
                raise ValueError(f"bias: expected on the device of packed, {packed.device}, got {bias.device}")
            module.bias = nn.Parameter(bias.detach(), requires_grad=False)
        return module

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        per_tensor: bool = False,
        precision: Precision = "int8",
        train: bool = False,
    ) -> TernaryLinear:
        """A layer with the weights of ``linear``, rounded to trits, whatever that loses; with ``train=True`` a layer
        that trains on from them.

        The new layer has the device and dtype of ``linear``, a copy of its bias, and nothing of its memory.

        Args:
            per_tensor: one scale for all rows instead of one for each; not with ``train``, which always has one.

        Raises:
            ValueError: weights that are not finite, or of a dtype other than float32, bfloat16 and float16.
        """
        weight = linear.weight.detach()
        if train:
            module = cls(
                linear.in_features,
                linear.out_features,
                linear.bias is not None,
                precision=precision,
                train=True,
                device=weight.device,
                dtype=weight.dtype,
            )
            assert module.float_weight is not None
            with torch.no_grad():
                module.float_weight.copy_(weight)
                if linear.bias is not None:
                    assert module.bias is not None
                    module.bias.copy_(linear.bias)
            return module
        packed, scale = ops.pack_ternary(weight, per_tensor=per_tensor)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        return cls.from_packed(packed, scale, linear.in_features, bias, precision)

    @torch.no_grad()
    def freeze(self) -> TernaryLinear:
        """Rounds the float weight of a training layer and packs it, in place; returns the layer itself.

        The packed layer computes what the training one did, up to the rounding of float sums and, where the weight is
        bfloat16 or float16, of the scale, which stays float32. A layer that is packed already stays as it is.

        Raises:
            ValueError: a weight that is not finite; nothing is changed.
        """
        if self.float_weight is None:
            return self
        weight = self.float_weight.float()
        scale = absmean(weight).reshape(1)
        self._set_packed(*ops.pack_ternary(weight, scale))
        self.float_weight = None
        if self.bias is not None:
            self.bias.requires_grad_(False)
        return self

    # --- using it ------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(x)
        # self.packed would be looked up by Python code of nn.Module's.
        buffers, parameters = self._buffers, self._parameters
        weight, bias = parameters["float_weight"], parameters["bias"]
        if weight is not None:
            return ternary_training_linear(x, weight, bias)
        _check_input(x, self.in_features)
        if bias is not None and bias.dtype != x.dtype and torch.is_autocast_enabled(x.device.type):
            bias = bias.to(x.dtype)  # type: ignore[assignment]
        exact, gradients = self.precision == "exact", torch.is_grad_enabled()
        many = exact and x.numel() > self.exact_rows * self.in_features
        if many and x.is_cpu and not (gradients and x.requires_grad):
            return nn.functional.linear(x, self.dequantize(x.dtype), bias)
        operator = _linear if gradients else _linear_inference
        result: Tensor = operator(x, buffers["packed"], buffers["scale"], bias, exact)
        return result

    def _scripted(self, x: Tensor) -> Tensor:
        """What ``forward`` does, in the words that TorchScript knows."""
        weight = self.float_weight
        if weight is not None:
            return ternary_training_linear(x, weight, self.bias)
        _check_input(x, self.in_features)
        exact = self.precision == "exact"
        many = exact and x.numel() > self.exact_rows * self.in_features
        if many and x.is_cpu and not (torch.is_grad_enabled() and x.requires_grad):
            dense = torch.ops.aegis.unpack_ternary(self.packed, self.scale, self.in_features)
            return nn.functional.linear(x, dense.to(x.dtype), self.bias)
        result: Tensor = torch.ops.aegis.ternary_linear(x, self.packed, self.scale, self.bias, exact)
        return result

    @torch.no_grad()
    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The (out_features, in_features) weight the layer stands for, made anew at each call."""
        if self.float_weight is not None:
            weight = self.float_weight.float()
            return round_to_trits(weight, absmean(weight)).to(dtype)
        return ops.unpack_ternary(self.packed, self.scale, self.in_features, dtype=dtype)

    @property
    def weight(self) -> Tensor:
        """:meth:`dequantize`, for code that looks at a linear layer's weight: a copy, and costly to make. Of a training
        layer, its float weight."""
        if self.float_weight is not None:
            return self.float_weight
        return self.dequantize(torch.float32 if self.bias is None else self.bias.dtype)

    def extra_repr(self) -> str:
        state = "train=True" if self.float_weight is not None else f"precision={self.precision!r}"
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, {state}"

    # --- moving and loading it -----------------------------------------------------------------------------------

    # pickle (not torch.save) knows no uint32 tensors: the words travel as int32.
    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_buffers"] = dict(self._buffers)
        if "packed" in self._buffers:
            state["_buffers"]["packed"] = self.packed.view(torch.int32)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "packed" in self._buffers:
            self.packed = self.packed.view(torch.uint32)

    def _apply(self, fn: Any, recurse: bool = True) -> TernaryLinear:
        scale = self._buffers.get("scale")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if scale is not None and self.scale.dtype != torch.float32:  # half the digits of every weight would be lost
            self.scale = scale.to(self.scale.device)
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = ("packed", "scale", "layout")
        packed, scale, layout = (state_dict.get(prefix + name) for name in names)
        if self.float_weight is None and packed is not None and scale is not None:
            try:
                _check_layout(layout, self.in_features)
                _check_packed(packed, scale, self.in_features)
                if scale.shape != self.scale.shape and packed.shape == self.packed.shape:  # one for all, or one a row
                    self.scale = torch.empty_like(scale, device=self.scale.device)
            except ValueError as error:
                error_msgs.append(f"{prefix.rstrip('.') or 'TernaryLinear'}: {error}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _check_input(x: Tensor, in_features: int) -> None:
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise ValueError(f"x: expected a last dimension of {in_features}, got shape {list(x.shape)}")


def _check_layout(layout: Tensor | None, in_features: int) -> None:
    if layout is None or layout.shape != (2,):
        raise ValueError(f"layout: expected a tag and a size, got {layout if layout is None else tuple(layout.shape)}")
    if layout.is_meta:
        raise ValueError("layout: expected a tag and a size, got a tensor on the meta device, which has neither")
    tag, size = layout.tolist()
    if tag != LAYOUT:
        raise ValueError(f"layout: expected tag {LAYOUT} (16 trits to a word, lowest bits first), got {tag}")
    if size != in_features:
        raise ValueError(f"layout: expected in_features {in_features}, got {size}")


def _check_packed(packed: Tensor, scale: Tensor, in_features: int) -> None:
    """What costs nothing beside reading the weights once: dtypes, shapes, and that every code means something."""
    words = (in_features + 15) // 16
    if packed.dtype != torch.uint32 or packed.dim() != 2 or packed.shape[1] != words:
        raise ValueError(
            f"packed: expected uint32 with {words} words in a row (for {in_features} trits), got {packed.dtype} of "
            f"shape {tuple(packed.shape)}"
        )
    if scale.dtype != torch.float32 or scale.shape not in ((packed.shape[0],), (1,)):
        raise ValueError(
            f"scale: expected float32 of shape ({packed.shape[0]},) or (1,), got {scale.dtype} of shape "
            f"{tuple(scale.shape)}"
        )
    if packed.device != scale.device:
        raise ValueError(f"scale: expected on the device of packed, {packed.device}, got {scale.device}")
    if packed.is_meta:
        return
    if not scale.isfinite().all():
        raise ValueError("scale: expected finite values, got others")
    words_of = packed.contiguous().view(torch.int32)
    if bool((words_of & (words_of >> 1) & 0x55555555).any()):
        raise ValueError("packed: expected codes 00, 01 and 10, got 11")
    used = in_features % 16
    if used and packed.shape[0] and bool((words_of[:, -1] & (-1 << 2 * used)).any()):
        raise ValueError(f"packed: expected zeros past the {in_features} trits of a row, got others")
