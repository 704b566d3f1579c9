"""One layer of a SlottedStaticCache, as transformers calls it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from aegis.decode.cache_plan import LayerPlan
from aegis.decode.cache_positions import Leftover, Positions, capturing
from aegis.decode.cache_storage import Storage
from aegis.decode.huggingface import ATTENTION

__all__ = ["SlottedLayer"]

# Called once a layer and token: past the Python method around the operator, which takes a quarter of its time.
_append = getattr(torch.ops.aegis.kv_append_.default, "_op", torch.ops.aegis.kv_append_)


class SlottedLayer(CacheLayerMixin):
    """Keys and values, (rows, heads, slots, size). Position p of a row lies in slot ``p % slots``.

    What only the cache as a whole can do (crop, reset, reorder) is asked of the cache.
    """

    supports_early_init = True

    def __init__(
        self,
        index: int,
        plan: LayerPlan,
        slots: int,
        first_last: tuple[bool, bool],
        shared: tuple[Any, Positions, Storage],
    ) -> None:
        super().__init__()
        self.index = index
        self.kind = plan.kind
        self.window = plan.window
        self.slots = slots
        self.is_sliding = plan.window is not None
        self._first, self._last = first_last
        self._config, self._positions, self._storage = shared
        self.max_cache_len: int = self._positions.host.capacity
        self.batch_size: int = self._positions.host.rows
        self.max_batch_size = self.batch_size

    @property
    def is_compileable(self) -> bool:
        """Whether whole buffers are returned, so that transformers must make a mask even for one token.

        Elsewhere it means to transformers that ``generate`` may compile the forward pass by itself: it would not
        bracket it with begin_step and commit_step, and 4.57 refuses assisted generation. So it is False outside of
        steps.
        """
        return self._by_tensors()

    @property
    def wraps(self) -> bool:
        """Whether the buffer is shorter than rows may get."""
        return self.slots < self.max_cache_len

    @property
    def is_croppable(self) -> bool:
        return not self.wraps or self.window is None or self.slots > self.window + 1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Takes the layer's buffers; makes them, and those of its like, if they are the first."""
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "cache: expected buffers before a compiled forward pass: give dtype and device to the constructor, "
                "call early_initialization, or run the first pass without compilation"
            )
        self.adopt(*self._storage.take(self.index, key_states, key_states if value_states is None else value_states))

    def adopt(self, keys: Tensor, values: Tensor) -> None:
        """These are the layer's buffers, for good."""
        self.keys, self.values = keys, values
        self.device, self.dtype = keys.device, keys.dtype
        self._positions.place(keys.device)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the new tokens and returns all that their queries may see. No gradient flows through the cache."""
        if key_states.requires_grad or value_states.requires_grad:
            key_states, value_states = key_states.detach(), value_states.detach()
        if key_states.stride(3) != 1 or value_states.stride(3) != 1:
            key_states, value_states = key_states.contiguous(), value_states.contiguous()
        if self._by_tensors():
            return self._update_by_tensors(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        positions = self._positions
        batch, _, tokens, _ = key_states.shape
        if self._first or positions.open is None:
            positions.begin(batch, tokens, tokens == 1 and self.reads_spans())
        elif positions.open != (batch, tokens):
            raise ValueError(
                f"layer {self.index}: expected (batch, tokens) {positions.open}, as in the layers before, "
                f"got {(batch, tokens)}"
            )
        seen = self._write_and_read(key_states, value_states, batch, tokens)
        if self._last:
            positions.commit()
        return seen

    def _write_and_read(self, keys: Tensor, values: Tensor, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
        positions = self._positions
        if positions.leftovers:
            self.clear(positions.leftovers)
        if positions.by_spans:
            _append(self.keys, self.values, keys, values, positions.at, positions.selection)
            copied = self.window is None and positions.selected is not None
            return self._read(batch, 0, positions.longest + 1 if copied else self.slots, 0)
        start, count = self.seen(positions.shortest, positions.longest, tokens)
        if count <= self.slots:
            _append(self.keys, self.values, keys, values, positions.at, positions.selection)
            return self._read(batch, start, count, tokens)
        # The new tokens will overwrite some that their first queries still see.
        old_keys, old_values = self._read(batch, start, count - tokens, 0)
        if start is None:  # a short row has none so far back, but what was there before its text
            none = self._positions.where(batch)[:, None] < torch.arange(count - tokens, 0, -1, device=keys.device)
            old_keys, old_values = (old.masked_fill(none[:, None, :, None], 0) for old in (old_keys, old_values))
        seen = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
        _append(self.keys, self.values, keys, values, positions.at, positions.selection)
        return seen

    def clear(self, leftovers: Iterable[Leftover]) -> None:
        """Zeroes them, before the tokens of the pass are written."""
        for row, start, touched, before in leftovers:
            if touched <= self.slots:
                parts = [(start, min(max(touched, before), self.slots))]
            else:
                slot, count = start % self.slots, min(touched - start, self.slots)
                parts = [(slot, min(slot + count, self.slots)), (0, slot + count - self.slots)]
            for begin, end in parts:
                if begin < end:
                    for buffer in (self.keys, self.values):
                        if buffer is not None:
                            buffer[row, :, begin:end].zero_()

    def _by_tensors(self) -> bool:
        """Whether no number of Python's may enter."""
        return self._positions.bracketed or capturing(self._positions.lengths.device)

    def reads_spans(self) -> bool:
        """Whether the attention reads slots itself (aegis.decode.attention)."""
        return getattr(self._config, "_attn_implementation", None) == ATTENTION

    def seen(self, shortest: int, longest: int, tokens: int) -> tuple[int | None, int]:
        """(first position, count) of what is returned for new tokens behind rows of these lengths.

        None, where rows of different lengths have wrapped: then each row's positions end with its newest token.
        """
        total = longest + tokens
        if self.window is None:
            return 0, total
        before = self.window - 1 + self._positions.slack
        if shortest == longest:
            start = max(longest - before, 0)
            return start, total - start
        return (0, total) if total <= self.slots else (None, min(longest, before) + tokens)

    def _read(self, batch: int, start: int | None, count: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Positions start, ..., start + count - 1 of the current rows: views where they lie together. Where start is
        None, the last ``count`` before and among ``tokens`` new ones."""
        assert self.keys is not None
        assert self.values is not None
        if start is None:
            first = self._positions.where(batch) + (tokens - count)
            return self._gather(first, count)
        slot = start % self.slots
        if slot + count <= self.slots:
            return self._rows(self.keys, batch, slot, count), self._rows(self.values, batch, slot, count)
        parts = [(slot, self.slots - slot), (0, slot + count - self.slots)]
        return (
            torch.cat([self._rows(self.keys, batch, *part) for part in parts], 2),
            torch.cat([self._rows(self.values, batch, *part) for part in parts], 2),
        )

    def _rows(self, buffer: Tensor, batch: int, slot: int, count: int) -> Tensor:
        if count != self.slots:
            buffer = buffer[:, :, slot : slot + count]
        selected = self._positions.selected
        if selected is None:
            return buffer if batch == self.batch_size else buffer[:batch]
        if selected == list(range(selected[0], selected[0] + batch)):
            return buffer.narrow(0, selected[0], batch)
        assert self._positions.selection is not None
        return buffer.index_select(0, self._positions.selection)

    def _gather(self, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Positions first[b], ..., first[b] + count - 1 of each batch row, copied. Those below 0 are of no meaning."""
        assert self.keys is not None
        assert self.values is not None
        device = first.device
        slots = (first[:, None] + torch.arange(count, device=device)) % self.slots
        rows = self._positions.selection
        if rows is None:
            rows = torch.arange(len(first), device=device)
        rows = rows[:, None]
        return self.keys[rows, :, slots].transpose(1, 2), self.values[rows, :, slots].transpose(1, 2)

    def _update_by_tensors(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Without a number of Python's that changes from step to step: for compiled and captured passes, whose caller
        brackets them with begin_step and commit_step. Returns whole buffers, or the window."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        batch, _, tokens, _ = keys.shape
        positions = self._positions
        positions.batch_rows(batch)
        torch.ops.aegis.kv_append_(self.keys, self.values, keys, values, positions.where(batch), positions.selection)
        start, count = self._static_window(tokens)
        if start is None:
            seen = self._read(batch, 0, self.slots, 0)
        else:
            seen = self._gather((positions.where(batch) - start).clamp(min=0), count)
        if self._last:
            positions.advance(batch, tokens)
        return seen

    def _static_window(self, tokens: int) -> tuple[int | None, int]:
        """(how far before the row's end the window starts, or None for whole buffers; count)."""
        if self.window is None or not self.wraps or (tokens == 1 and self.reads_spans()):
            return None, self.slots
        count = self.window - 1 + tokens
        if count > self.slots:
            raise ValueError(
                f"layer {self.index}: expected at most {self.slots - self.window + 1} tokens in a compiled pass over a "
                f"sliding window of {self.window} in {self.slots} slots, got {tokens}"
            )
        return self.window - 1, count

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, Any]:
        """(count, first position) of what :meth:`update` will return. Takes the query's positions too (4.57).

        Raises:
            ValueError: the current rows have different lengths, which two numbers cannot tell.
        """
        tokens = query_length if isinstance(query_length, int) else len(query_length)
        positions = self._positions
        spans = tokens == 1 and self.reads_spans()
        if self._by_tensors():
            if spans:
                return self.max_cache_len, 0
            start, count = self._static_window(tokens)
            return count, 0 if start is None else (self._positions.device_length() - start).clamp(min=0)
        shortest, longest = positions.length_range()
        if shortest != longest:
            raise ValueError(
                f"cache: expected rows of one length, got {shortest} to {longest}: give the forward pass "
                "attention_mask=cache.attention_mask(tokens) and position_ids=cache.position_ids(tokens), or select "
                "rows of one length with cache.rows"
            )
        if spans:
            return longest + 1, 0
        first, count = self.seen(shortest, longest, tokens)
        return count, first

    def key_positions(self, batch: int, tokens: int) -> Tensor:
        """(batch, count) int64: positions of the keys that :meth:`update` will return. Of no meaning below 0."""
        where = self._positions.where(batch)[:, None]
        if self._by_tensors():
            before, count = self._static_window(tokens)
            first = torch.zeros_like(where) if before is None else (where - before).clamp(min=0)
        else:
            rows = self._positions.batch_rows(batch)
            start, count = self.seen(*self._positions.host.length_range(rows), tokens)
            first = where + (tokens - count) if start is None else torch.full_like(where, start)
        return first + torch.arange(count, device=where.device)

    def gather_rows(self, sources: list[int], longest: int) -> None:
        """Row i gets what row sources[i] holds, in place; no row is longer than ``longest``."""
        live = min(longest, self.slots)
        for buffer in (self.keys, self.values):
            if buffer is not None and live > 0:
                rows = torch.tensor(sources, device=buffer.device)
                buffer[: len(sources), :, :live].copy_(buffer[:, :, :live].index_select(0, rows))

    def get_seq_length(self) -> Any:
        """Tokens in the longest current row: an int, or, while a pass is compiled or captured, a 0-d tensor."""
        if capturing(self._positions.lengths.device):
            return self._positions.device_length()
        return self._positions.length_range()[1]

    def get_max_length(self) -> int:
        """The most tokens that a row can hold."""
        return self.max_cache_len

    get_max_cache_shape = get_max_length

    def crop(self, *_: Any) -> None:
        raise RuntimeError("crop: expected to be called on the cache, whose layers share their lengths")

    def reset(self) -> None:
        raise RuntimeError("reset: expected to be called on the cache, whose layers share their lengths")

    def reorder_cache(self, *_: Any) -> None:
        raise RuntimeError("reorder_cache: expected to be called on the cache, whose layers share their rows")
