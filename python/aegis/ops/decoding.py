"""Operators of a decoded token: attention, the key-value cache, and the choice of a token."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "decode_attention",
    "kv_append_",
    "kv_move_",
    "sample",
    "token_probabilities",
]


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
            share pages. A table of int32 is to be widened, once for all layers. On the CPU the result has the same bits
            as over one buffer that does not wrap.

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
    1e-6 of itself for any n, and to 1.2e-7 more for each unit that its logit / temperature lies below the largest. What
    has a probability of 0, or one below ``2**-100`` of the largest, is never drawn.

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


def token_probabilities(
    scores: Tensor, settings: Tensor, keep_ties: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """What :func:`sample` draws each row's token from, in full: as speculative sampling wants it of draft and target.

    Args:
        scores: (batch, n) float32, bfloat16 or float16; rows may lie apart, their elements are adjacent.
            ``1 <= n < 2**31``; on CUDA at most ``2**25``.
        settings: (batch, 4) float32, or (1, 4) for all rows: temperature, top_k, top_p, min_p, as for :func:`sample`.
        keep_ties: as there.
        out: (batch, n) float32, written in place; rows may lie apart, as those of ``steps[:, i]`` do.

    Returns:
        (batch, n) float32: ``out``, or a fresh contiguous tensor. A token that is never drawn has 0, and so has what
        lies below ``2**-100`` of the largest. A row that draws nothing has 1 for the token that sample takes: where
        temperature or top_p is not above 0, and in a row with a NaN, with +inf, or with nothing above -inf.

    Decisions and weights are those of sample, and as right as they are; the sum of a row is 1 to 1e-6. All instruction
    sets and CUDA write the same bits.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, or an ``out`` that overlaps; nothing has been written.

    Cost: what sample costs, and one pass that writes: zeros and up to 256 numbers where top_k is at most 256 or 256
    tokens have the mass of top_p, else all weights again. Nothing waits for a GPU, so it can be captured in a graph.
    Large batches are shared out among torch's intra-op threads. Not differentiable.
    """
    if out is None:
        result: Tensor = torch.ops.aegis.token_probabilities(scores, settings, keep_ties)
        return result
    torch.ops.aegis.token_probabilities.out(scores, settings, keep_ties, out=out)
    return out
