"""The operators, with their Python signatures: each is ``torch.ops.aegis.<name>``.

Use either spelling in eager code; TorchScript wants ``torch.ops.aegis``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

torch.ops.load_library(str(Path(__file__).parent / "lib" / "libaegis_ops.so"))  # type: ignore[no-untyped-call]


from aegis import _autograd, _fake  # noqa: E402, F401  (need the schemas that the library just brought)

__all__ = [
    "decode_attention",
    "extract_batch",
    "float8_linear",
    "float8_quantize",
    "gather_records",
    "gather_records_scaled",
    "kv_append_",
    "kv_move_",
    "pack_ternary",
    "sample",
    "skinny_linear",
    "ternary_linear",
    "to_bfloat16_rne",
    "unpack_ternary",
]


_SCALED_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rows: Tensor | None = None,
    blocks: Tensor | None = None,
) -> Tensor:
    """Attention of the newest token of each row to a range of positions in its key-value cache.

    Args:
        query: (batch, heads, 1, head_size) float32, bfloat16 or float16.
        keys, values: (rows, key_heads, slots, head_size) of the same dtype; ``heads`` is a multiple of ``key_heads``,
            and adjacent heads share one. All three may have any strides but in the last dimension, which is dense.
        spans: (batch, 2) or (batch, 1, 1, 2) int64: row b attends to positions ``start <= p < end``, of which p lies
            in slot ``p % slots``.
        scale: what products of query and key are multiplied by, usually ``head_size ** -0.5``.
        window: where positive, only the last ``window`` positions before ``end`` count.
        softcap: where positive, scores become ``softcap * tanh(score / softcap)``.
        rows: (batch,) int64, the row of ``keys`` and ``values``, or of ``blocks``, that belongs to each batch row; by
            default the same.
        blocks: (rows, n) int64, dense in the last dimension: keys and values are then (pages, key_heads, slots,
            head_size), and position p of a row lies in slot ``p % slots`` of page ``blocks[row, p // slots]``. Rows may
            share pages. On the CPU the result has the same bits as over one buffer that does not wrap.

    Returns:
        (batch, 1, heads, head_size), fresh and contiguous: the layout that Hugging Face's attention functions return.
        Zeros for a row whose range is empty. Not differentiable.

    Scores, weights and sums are float32, rounded to the dtype once at the end. Results differ from
    scaled_dot_product_attention in the order of sums, and are the same bits for every number of threads. Slots outside
    of the ranges are not read: what is in them does not matter.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, a negative ``window`` or ``softcap``, a span with
            ``start < 0``, ``start > end`` or more positions than slots, or than ``blocks`` has room for.
        IndexError: an element of ``rows``, or of ``blocks`` within a range, outside of the cache.

        On CUDA, where a look at spans, rows and blocks would stall the stream, the result of such a row is NaN instead.

    Cost: one pass over the keys and values within the ranges, shared out among torch's intra-op threads by row, key
    head and pieces of at most 256 positions, at least 128 KiB to each thread. Softmax is online (Milakov, Gimelshein
    2018), pieces are put together as in flash-decoding (Dao, Haziza, Massa, Sizov 2023), and pages are found by way of
    a table as in PagedAttention (Kwon et al. 2023). On CUDA a block of threads has a piece, and everything is read on
    the device when the kernels run, so a captured graph follows spans and blocks.
    """
    attend = torch.ops.aegis.decode_attention
    result: Tensor = (
        attend(query, keys, values, spans, scale, window, softcap, rows)
        if blocks is None
        else attend.paged(query, keys, values, spans, scale, blocks, window, softcap, rows)
    )
    return result


def extract_batch(
    arena: Tensor,
    offsets: Tensor,
    block_size: int | None = None,
    *,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cut windows out of a flat token arena: inputs, and targets one token later.

    Args:
        arena: (n,) uint8, uint16, uint32, int32 or int64, contiguous.
        offsets: (batch,) int64 on the arena's device; window starts, ``0 <= offset < n - block_size``.
        block_size: tokens in a window; taken from ``inputs`` when that is given.
        inputs: (batch, block_size) int64 or int32, written in place. Together with ``targets``.
        targets: (batch, block_size) int64, written in place.

    Returns:
        ``(inputs, targets)``, fresh int64 tensors unless given. Narrowing to int32 saturates, it never wraps.

    Raises:
        ValueError: a wrong dtype, shape, stride, device or an overlap; nothing has been written.
        IndexError: an offset outside the arena (CPU); nothing has been written. On CUDA, where a look at the
            offsets would stall the stream, such a row is filled with -1 instead.

    Cost: one pass, on the calling thread (CPU) or the current stream (CUDA); bound by memory latency when the
    arena is larger than the caches.
    """
    if inputs is None and targets is None:
        if block_size is None:
            raise TypeError("block_size: expected an int, got None (and no inputs to take it from)")
        result: tuple[Tensor, Tensor] = torch.ops.aegis.extract_batch(arena, offsets, block_size)
        return result
    if inputs is None or targets is None:
        raise TypeError("inputs and targets: expected both or neither")
    if block_size is not None and inputs.ndim == 2 and inputs.shape[1] != block_size:
        raise ValueError(f"inputs: expected {block_size} columns (block_size), got {inputs.shape[1]}")
    torch.ops.aegis.extract_batch.out(arena, offsets, inputs=inputs, targets=targets)
    return inputs, targets


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


def gather_records(source: Tensor, indices: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Copy rows of ``source``, chosen by number: what ``source[indices]`` gives, for data larger than the caches.

    Args:
        source: (n, *row) of any dtype; each row contiguous, rows may lie apart.
        indices: (batch,) int64 on the source's device; ``0 <= index < n``.
        out: (batch, *row) of the source's dtype, contiguous, written in place.

    Returns:
        (batch, *row), fresh unless ``out`` is given. Not differentiable.

    Raises:
        ValueError: a wrong dtype, shape, stride, device or an overlap; nothing has been written.
        IndexError: an index outside the source (CPU), naming its place; nothing has been written. On CUDA, where a
            look at the indices would stall the stream, such a row is filled with zeroes instead.

    Cost: one pass, on the calling thread (CPU) or the current stream (CUDA); bound by the latency of memory for short
    rows and by its bandwidth for long ones.
    """
    if out is None:
        result: Tensor = torch.ops.aegis.gather_records(source, indices)
        return result
    torch.ops.aegis.gather_records.out(source, indices, out=out)
    return out


def gather_records_scaled(
    source: Tensor,
    indices: Tensor,
    scale: Tensor,
    bias: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Copy uint8 rows, chosen by number, as floating-point values: ``source[indices] * scale + bias`` by channel.

    Args:
        source: (n, channels, *rest) uint8; each row contiguous, rows may lie apart.
        indices: (batch,) int64; ``0 <= index < n``.
        scale, bias: (channels,) float32, finite. All four on one device.
        dtype: of the result, torch.float32 or torch.bfloat16; ``torch.ops.aegis`` takes 0 or 1 for them.
        out: (batch, channels, *rest) of either dtype, contiguous, written in place; ``dtype`` is ignored then.

    Returns:
        (batch, channels, *rest), fresh unless ``out`` is given. The arithmetic is float32 without fused
        multiply-add, so the bits are those of torch's ``x.float() * scale + bias``; bfloat16 is that, rounded to
        nearest even. Every instruction set and CUDA give the same.

    Raises:
        ValueError: as for :func:`gather_records`, and a scale or bias that is not finite (CPU).
        IndexError: as for :func:`gather_records`; on CUDA such a row is filled with zeroes.

    Cost: one pass; the intermediate tensors of the three torch operations are never made.
    """
    if out is None:
        if dtype not in _SCALED_DTYPES:
            raise ValueError(f"dtype: expected torch.float32 or torch.bfloat16, got {dtype}")
        result: Tensor = torch.ops.aegis.gather_records_scaled(source, indices, scale, bias, _SCALED_DTYPES[dtype])
        return result
    torch.ops.aegis.gather_records_scaled.out(source, indices, scale, bias, out=out)
    return out


def kv_append_(
    keys: Tensor,
    values: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    positions: Tensor,
    rows: Tensor | None = None,
    blocks: Tensor | None = None,
) -> None:
    """Write the keys and values of new tokens into the slots of a KV cache, in place.

    Token ``t`` of batch row ``b`` has position ``p = positions[b] + t`` and goes to slot ``p % slots`` of cache row
    ``rows[b]``: a buffer that is never outgrown holds every token, a shorter one the last ``slots`` of them.

    Args:
        keys, values: (rows, heads, slots, size), written; any dtype. The two may differ in dtype and size.
        new_keys, new_values: (batch, heads, tokens, size), of the dtypes and sizes of keys and values. Of more tokens
            than there are slots, the last are written.
        positions: (batch,) int64, contiguous, at least 0.
        rows: (batch,) int64, contiguous: different rows of the cache, or of ``blocks``; 0, 1, 2, ... where it is left
            out. All on one device. Keys and values have a last dimension of stride 1 and otherwise any strides.
        blocks: (rows, n) int64, dense in the last dimension: keys and values are then (pages, heads, slots, size), and
            position p of a row lies in slot ``p % slots`` of page ``blocks[row, p // slots]``. All tokens are written;
            no two batch rows may write into one slot.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, a batch larger than the cache, a row named twice, or
            operands that overlap (the memory between the first and the last element counts); nothing has been written.
        IndexError: a negative position, or a row or page outside of the cache, or more tokens than ``blocks`` has room
            for (CPU); nothing has been written. On CUDA, where a look at them would stall the stream, such a batch row
            or token is left out instead.

    Positions are read on the device when the kernel runs, so a captured CUDA graph follows them. Not differentiable.

    Cost: one copy of the new vectors, on the calling thread or, above 256 KiB, on torch's intra-op threads.
    """
    if blocks is None:
        torch.ops.aegis.kv_append_(keys, values, new_keys, new_values, positions, rows)
    else:
        torch.ops.aegis.kv_append_.paged(keys, values, new_keys, new_values, positions, blocks, rows)


def kv_move_(keys: Tensor, values: Tensor, sources: Tensor, positions: Tensor, rows: Tensor | None = None) -> None:
    """Keep some of the newest tokens of a KV cache and put them close behind those before them, in place.

    Position ``positions[b] + t`` of cache row ``rows[b]`` gets what position ``sources[b, t]`` holds. So a path of a
    tree that was verified becomes a text.

    Args:
        keys, values: (rows, heads, slots, size), written; any dtype. The two may differ in dtype and size. Position p
            lies in slot ``p % slots``.
        sources: (batch, tokens) int64, contiguous, ascending in each row: ``sources[b, t]`` is at least
            ``positions[b] + t``, and less than ``positions[b] + slots``. -1 leaves a position as it is.
        positions: (batch,) int64, contiguous, at least 0.
        rows: (batch,) int64, contiguous: different rows of the cache; 0, 1, 2, ... where it is left out. All on one
            device. Keys and values have a last dimension of stride 1 and otherwise any strides.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, a batch larger than the cache, a row named twice, or
            operands that overlap; nothing has been written.
        IndexError: a source or position out of these ranges, or a row outside of the cache (CPU); nothing has been
            written. On CUDA, where a look at them would stall the stream, such a token or batch row is left as it is,
            and sources that do not ascend give vectors that were overwritten before.

    Numbers are read on the device when the kernel runs. Not differentiable.

    Cost: a copy of the vectors that change place, on the calling thread or, above 256 KiB, on torch's intra-op threads.
    """
    torch.ops.aegis.kv_move_(keys, values, sources, positions, rows)


def pack_ternary(weight: Tensor, scale: Tensor | None = None, *, per_tensor: bool = False) -> tuple[Tensor, Tensor]:
    """Rounds weights to -1, 0 and +1 times a scale, and packs them into two bits each.

    Args:
        weight: (n, k) float32, bfloat16 or float16, of any strides, finite.
        scale: (n,) or (1,) float32, above 0: what to divide the weights by. Without, each row has its own: the mean
            magnitude of its weights (BitNet b1.58, Ma et al. 2024); where all weights that are not zero have one
            magnitude, that, so that weights that are ternary already are packed without loss; and 1 where all are zero.
        per_tensor: one scale for all rows instead, made in the same way.

    Returns:
        packed: (n, ceil(k / 16)) uint32. Trit i of a word is in its bits 2i and 2i + 1: 00 is 0, 01 is +1, 10 is -1.
            What fills up the last word of a row is zero.
        scale: (n,) float32, or (1,).

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


def sample(
    logits: Tensor,
    settings: Tensor,
    state: Tensor,
    keep_ties: bool = False,
    *,
    tokens: Tensor | None = None,
    valid: Tensor | None = None,
    logprobs: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Draw a token from each row of logits: temperature, top-k, top-p and min-p, in this order, and the draw.

    Args:
        logits: (batch, n) float32, bfloat16 or float16; rows may lie apart, their elements are adjacent.
            ``1 <= n < 2**31``; on CUDA at most ``2**25``.
        settings: (batch, 4) float32, or (1, 4) for all rows: temperature, top_k, top_p, min_p. Off are
            ``top_k < 1`` or ``>= n``, ``top_p >= 1``, and ``min_p <= 0``; ``temperature <= 0`` and ``top_p <= 0`` take
            the largest logit. top_k is whole, and exact up to ``2**24``.
        state: (batch, 4) int64: seed, row, position, domain of each row's random number. Its name is all that a draw
            depends on beside the row itself: not its place in the batch, nor what else is in it. row counts modulo
            ``2**48`` and domain modulo ``2**16``.
        keep_ties: whether top_k keeps all logits equal to the k-th, as Hugging Face does, or exactly k, those of lower
            index first.
        tokens: (batch,) int64, written in place.
        valid: (batch,) bool, written in place where given. Only together with ``tokens``, as is ``logprobs``.
        logprobs: (batch,) float32, written in place where given.

    All five on one device.

    Returns:
        ``(tokens, valid, logprobs)``: fresh ones, or those given. With ``tokens``, every position in ``state`` is
        advanced by 1; without, ``state`` is left as it is, and the same call gives the same tokens.

        ``valid`` is False for a row that holds a NaN, or nothing above -inf; its token is that of its largest number,
        or 0. In a row with +inf, the first of these is taken. ``logprobs`` is the logarithm of the probability with
        which the token was drawn: after temperature and limits, 0 for a token that was sure, NaN where not valid.

    The same state gives the same tokens with every instruction set and on CUDA: all compute the weights by the same
    operations, sum them in the same order, and go by the same float64 in (0, 1), of 52 bits. A probability is right to
    1e-6 of itself for any n. What has a probability of 0, or one below ``2**-100`` of the largest, is never drawn.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, or an overlap; nothing has been written.

    Cost: with top_k up to 256, one pass over the row and part of another; without limits, or with min_p, two passes;
    with top_p alone, three where 256 tokens have the mass, and at most 37 otherwise; with a larger top_k, at most 36
    more. Large batches are shared out among torch's intra-op threads. After a thread's first call nothing is allocated
    where ``tokens`` is given, apart from what the dispatcher does. Not differentiable.
    """
    if tokens is None:
        if valid is not None or logprobs is not None:
            raise TypeError("valid and logprobs: expected only together with tokens")
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aegis.sample(logits, settings, state, keep_ties)
        return result
    torch.ops.aegis.sample.out(logits, settings, state, keep_ties, tokens=tokens, valid=valid, logprobs=logprobs)
    return tokens, valid, logprobs


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
        ValueError: a wrong dtype, shape, stride or device; a scale that is not finite, or a code of 11 in ``packed``.
            A GPU raises nothing for the last two: what meets them is NaN.
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


def to_bfloat16_rne(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """float32 to bfloat16, rounded to nearest, ties to even.

    Args:
        x: float32 of any shape and strides.
        out: bfloat16 of the same shape and device and any strides, written in place; its elements may not overlap.

    Returns:
        bfloat16 of the shape of ``x``, contiguous, or ``out``. Not differentiable.

    The bits are those of ``x.to(torch.bfloat16)`` for every number, the infinities and the denormal numbers included,
    on every instruction set and on CUDA, whether or not the processor flushes denormal numbers. A NaN becomes 0x7fff,
    whatever its sign and payload; torch gives another NaN, and on the CPU which one depends on its place in the tensor.

    Raises:
        ValueError: a wrong dtype, shape or device, or memory that overlaps; nothing has been written.

    Cost: one pass, on the calling thread or, above 65,536 elements, on torch's intra-op threads; bound by memory where
    both tensors are dense in the same order.
    """
    if out is None:
        result: Tensor = torch.ops.aegis.to_bfloat16_rne(x)
        return result
    torch.ops.aegis.to_bfloat16_rne.out(x, out=out)
    return out


def unpack_ternary(packed: Tensor, scale: Tensor, k: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights that :func:`pack_ternary` packed.

    Args:
        packed: (n, ceil(k / 16)) uint32, contiguous.
        scale: (n,) or (1,) float32.
        k: weights in a row.
        dtype: of the result; it is rounded from float32.

    Returns:
        (n, k): -scale, 0 or +scale. It has no gradient.

    Raises:
        ValueError: a wrong dtype, shape or device, a code of 11, or a row whose last word is not filled up with zeros.

    Cost: two passes over the packed weights and one over the result. Those on a GPU are unpacked on the CPU, and the
    result moved back.
    """
    weight: Tensor = torch.ops.aegis.unpack_ternary(packed.cpu(), scale.detach().cpu(), k)
    return weight.to(packed.device, dtype)
