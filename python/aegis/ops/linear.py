"""Linear layers for few rows, and what their weights are packed by."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "float8_linear",
    "float8_quantize",
    "pack_ternary",
    "skinny_linear",
    "ternary_linear",
    "unpack_ternary",
]


def float8_linear(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer whose weights, and for the product also whose inputs, are float8 (E4M3).

    Args:
        x: (..., k) float32, bfloat16 or float16. It is quantised as by :func:`float8_quantize`, with groups like those
            of the weights.
        weight: (n, k) float8_e4m3fn. Its rows may be apart, the elements of a row are adjacent.
        weight_scale: float32, contiguous: (n, 1), a scale for each row, or (n, ceil(k / 128)), one for each 128
            elements of it. A weight stands for ``weight * weight_scale``.
        bias: (n,) of the dtype of ``x``.

    All on one device.

    Returns:
        (..., n) of the dtype of ``x``. Not differentiable.

    A product of two E4M3 values is exact in float32. Sums are float32, in two levels: at most 128 products are added
    up one after another, then their sum is scaled and added to others. So each element is within
    ``(160 + k / 128) * 2**-24`` of the sum of the sizes of what was added (and of its rounding to the dtype) for any
    ``k``; the order of sums differs between instruction sets. A NaN among the inputs or weights makes its whole row or
    column NaN; infinite inputs count as 448 times their group's scale. Parts of a sum that exceed float32 make it
    infinite or NaN.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, or a weight_scale that is not finite (looked for on the CPU
            alone).
        RuntimeError: a gradient is asked for, in the backward pass.

    Cost: for up to 4 rows one pass over the weights, at about the speed of memory; more rows share decoded weights in
    tiles, 64 rows at a time. Shared out among torch's intra-op threads by rows of weights. No AMX is needed: AVX2,
    AVX-512, or AVX-512 BF16 with VBMI are used as they are there. On CUDA, up to 16 rows go through a kernel of
    aegis's and more through ``torch._scaled_mm``, where the GPU and the shape allow that. E4M3 and its use with scales
    is Micikevicius et al. 2022; sums in two levels are those of DeepSeek-V3's (2024).
    """
    operator = torch.ops.aegis.float8_linear if torch.is_grad_enabled() else torch.ops.aegis.float8_linear.inference
    result: Tensor = operator(x, weight, weight_scale, bias)
    return result


def float8_quantize(x: Tensor, block: int = 0) -> tuple[Tensor, Tensor]:
    """Numbers as float8 (E4M3) values and float32 scales: ``x`` is about ``values * scales``.

    Args:
        x: (..., k) float32, bfloat16 or float16.
        block: 0, for one scale a row, or 128, for one for each 128 elements of a row (the last may have fewer).

    Returns:
        ``(values, scales)``: (..., k) float8_e4m3fn and (..., 1) or (..., ceil(k / 128)) float32, both contiguous. The
        scale of a group is its largest finite magnitude divided by 448, at least ``2**-126``, and 1 where that
        magnitude is 0. Values are ``x / scale``, rounded to nearest, ties to even. Infinities become 448 and -448; NaN
        stays NaN. Every instruction set and CUDA give the same bits. Not differentiable.

    Raises:
        ValueError: a wrong dtype, a 0-D tensor or another ``block``.
        RuntimeError: a gradient is asked for, in the backward pass.

    Cost: two passes over ``x``, the second of which finds it in the cache, on torch's intra-op threads.
    """
    result: tuple[Tensor, Tensor] = torch.ops.aegis.float8_quantize(x, block)
    return result


def pack_ternary(weight: Tensor, scale: Tensor | None = None, *, per_tensor: bool = False) -> tuple[Tensor, Tensor]:
    """Rounds weights to -1, 0 and +1 times a scale, and packs them into two bits each.

    Args:
        weight: (n, k) float32, bfloat16 or float16, of any strides, finite.
        scale: (n,) or (1,) float32, above 0: what to divide the weights by. Without, each row has its own: the mean
            magnitude of its weights (BitNet b1.58, Ma et al. 2024); where all weights that are not zero have one
            magnitude, that, so that weights that are ternary already are packed without loss; and 1 where all are zero.
        per_tensor: one scale for all rows instead, made in the same way.

    Returns:
        ``(packed, scale)``. ``packed`` is (n, ceil(k / 16)) uint32. Trit i of a word is in its bits 2i and 2i + 1: 00
        is 0, 01 is +1, 10 is -1. What fills up the last word of a row is zero. ``scale`` is (n,) float32, or (1,).

    Weights are rounded to the nearest trit, halves to zero. Neither result has a gradient.

    Raises:
        ValueError: a wrong dtype, shape or device, weights or a scale that are not finite, a scale that is not above 0.

    Cost: two passes over the weights, made once for a layer: tens of milliseconds for 4096 × 4096. Those on a GPU are
    packed on the CPU, and the result moved back.
    """
    weight = weight.detach()
    operands = (weight.cpu(), None if scale is None else scale.detach().cpu())
    packed, scales = torch.ops.aegis.pack_ternary(*operands, per_tensor)
    return packed.to(weight.device), scales.to(weight.device)


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` for few rows, at the speed at which memory gives the weights.

    Args:
        x: (..., k) float32, bfloat16 or float16, at most 8 rows (all sizes but the last, multiplied; 0 will do).
        weight: (n, k) of the same dtype. Its rows are read where they are: they may be apart (a slice of a wider
            matrix), but the elements of a row are adjacent.
        bias: (n,) of the same dtype.
        out: (..., n) of the same dtype, contiguous, written in place; not differentiable.

    Returns:
        (..., n) of the same dtype; ``out`` where that is given.

    Sums are float32, rounded once at the end. Their order differs from torch's and from one instruction set to
    another, so results are not the same bits: each element is within ``k * 2**-23 * (|x| @ |weight|.T + |bias|)`` of
    the exact value, plus that last rounding. With AVX-512 BF16, bfloat16 numbers below 2**-126 count as zero.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, more than 8 rows, or an ``out`` that overlaps an operand;
            nothing has been written.
        RuntimeError: ``out`` together with an operand that requires a gradient.

    Differentiable in x, weight and bias; the backward pass is torch's own matrix products. Where gradients are
    disabled this calls ``torch.ops.aegis.skinny_linear.inference``, which has none: an autograd registration costs
    4 µs a call, compiled 6 µs, whether or not a gradient is asked for.

    Cost: one pass over the weights. Larger ones are shared out among torch's intra-op threads
    (``torch.set_num_threads``), at least 128 KiB to each. An ``x`` or ``bias`` that is not contiguous is copied.
    """
    if out is not None:
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, out)):
            raise RuntimeError("out: expected operands without requires_grad, since writing to it has no gradient")
        torch.ops.aegis.skinny_linear.out(x, weight, bias, out=out)
        return out
    operator = torch.ops.aegis.skinny_linear if torch.is_grad_enabled() else torch.ops.aegis.skinny_linear.inference
    result: Tensor = operator(x, weight, bias)
    return result


def ternary_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    precision: Literal["int8", "exact"] = "int8",
) -> Tensor:
    """A linear layer with ternary weights: ``x @ (trits * scale).T + bias``.

    Args:
        x: (..., k) float32, bfloat16 or float16, any number of rows, k of at most 4,194,304.
        packed: (n, ceil(k / 16)) uint32, contiguous, as :func:`pack_ternary` makes them.
        scale: (n,) or (1,) float32, finite.
        bias: (n,) of x's dtype.
        precision: ``"int8"``: every row of x is rounded to whole numbers from -127 to 127 times a scale of its own,
            the largest magnitude over 127, as BitNet models are trained. Sums are then whole numbers, and results the
            same bits on every CPU. ``"exact"``: x as it is, in float32 sums.

    Returns:
        (..., n) of x's dtype, rounded once from float32.

    With int8, a row of x with NaN or an infinity gives a row of NaN. Exact, an element that only meets weights of zero
    takes no part, whatever it is; and results are within ``(k + 2) * 2**-23 * (|x| @ |weight|.T + |bias|)`` of the
    exact value, plus the last rounding.

    Raises:
        ValueError: a wrong dtype, shape, stride or device; a scale that is not finite, a code of 11 in ``packed``, or
            a row of it whose last word is not filled up with zeros, as where x has fewer elements than were packed. A
            GPU raises nothing for the last three: what meets them is NaN. An x of more elements than were packed, in as
            many words, meets zeros: only :class:`aegis.quant.TernaryLinear` knows how many there were.
        RuntimeError: when a gradient is asked of the result. :class:`aegis.quant.TernaryLinear` with ``train=True``
            has one.

    Cost: for few rows, one pass over the packed weights, an eighth of the bytes of bfloat16. Shared out among torch's
    intra-op threads, as :func:`skinny_linear` is.
    """
    if precision not in ("int8", "exact"):
        raise ValueError(f"precision: expected 'int8' or 'exact', got {precision!r}")
    operator = torch.ops.aegis.ternary_linear if torch.is_grad_enabled() else torch.ops.aegis.ternary_linear.inference
    result: Tensor = operator(x, packed, scale, bias, precision == "exact")
    return result


def unpack_ternary(packed: Tensor, scale: Tensor, k: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights that :func:`pack_ternary` packed.

    Args:
        packed: (n, ceil(k / 16)) uint32, contiguous.
        scale: (n,) or (1,) float32, finite.
        k: weights in a row.
        dtype: of the result; it is rounded from float32.

    Returns:
        (n, k): -scale, 0 or +scale. It has no gradient.

    Raises:
        ValueError: a wrong dtype, shape or device, a scale that is not finite, a code of 11, or a row whose last word
            is not filled up with zeros.

    Cost: two passes over the packed weights and one over the result. Those on a GPU are unpacked on the CPU, and the
    result moved back.
    """
    weight: Tensor = torch.ops.aegis.unpack_ternary(packed.cpu(), scale.detach().cpu(), k)
    return weight.to(packed.device, dtype)
