"""A KV cache of fixed size whose buffers never move: for eager, compiled and captured decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_masks import attention_masks, next_positions
from aegis.decode.cache_plan import LayerPlan, Shape, check_sizes, plan_layers, planned_shapes
from aegis.decode.cache_positions import Positions
from aegis.decode.cache_steps import TakesSteps
from aegis.decode.cache_storage import Storage
from aegis.decode.cache_trees import HoldsTrees

__all__ = ["SlottedStaticCache"]

# transformers 4 crops to a length where version 5 takes tokens off; the two disagree about crop(0).
_CROPS_TO_LENGTH = not hasattr(cache_utils.Cache, "get_max_length")


class SlottedStaticCache(TakesSteps, HoldsTrees, cache_utils.Cache):
    """Keys and values of a decoder, for ``past_key_values=`` (``cache=`` in transformers 5.24).

    Args:
        config: of the model: ``model.config``, the object itself, since ``model.set_attn_implementation`` changes it.
            Full, sliding and chunked attention; layers that share the keys and values of others keep none.
        batch_size: rows. A forward pass may have fewer: it then goes over the first.
        max_cache_len: the most tokens a row can hold, padding included.
        dtype, device: with both, the buffers are made at once, in the shapes that ``config`` tells. Otherwise the first
            forward pass makes them, like its keys and values.
        rollback: how many tokens can be taken back after a sliding window has wrapped around. Such a layer keeps
            ``window + rollback + 1`` positions, or max_cache_len if that is less.

    Raises:
        ValueError: a config with an encoder or with layers that keep another kind of state; sizes below 1; a dtype that
            is not floating-point.
        TypeError: sizes that are no ints, or none; a config that is none.

    **Rows.** Each row has a length of its own. By itself a pass goes over rows 0, 1, ..., as many as its batch has.
    To decode requests that come and go, take rows with :meth:`acquire_row`, run a pass over some of them within
    ``with cache.rows([2, 0]):`` and give them back with :meth:`free_row`; the others stay as they are. While
    lengths differ, a pass needs ``position_ids=cache.position_ids(n)`` and
    ``attention_mask=cache.attention_mask(n)``.

    **Steps.** An eager pass checks the capacity of every row in its first layer, before anything is written, and lets
    the rows grow in its last: one that dies in between leaves the lengths as they were. A compiled or captured pass
    does not come back to Python; bracket it with :meth:`begin_step` and :meth:`commit_step`, or :meth:`step`.

    **What rows leave behind.** Rows are emptied and cropped in O(1), and their keys and values stay in the buffers.
    Attention is handed more than it sees where rows differ in length, where buffers wrap, in compiled and captured
    passes, and on CUDA; and what is masked, but NaN, comes through, since 0 times NaN is NaN. So before a pass of that
    kind each layer zeroes what lies in its rows behind their tokens: each place once after it was written, and nothing
    in the others. A request therefore gets no NaN or infinity from another, nor from guesses that were taken back.

    **Addresses.** Buffers and ``lengths`` never move once made. No gradient flows through the cache. One thread at a
    time; all layers on one device.

    ``is_compileable`` is False outside of steps, so that ``generate`` does not compile passes by itself, unbracketed.

    Cost: after the first pass no keys or values are allocated, except where a sliding window wraps inside what is
    returned (a copy of the window), where selected rows do not lie side by side, and in reorder_cache.
    """

    _layer_type: type[SlottedLayer] = SlottedLayer

    def __init__(
        self,
        config: Any,
        batch_size: int = 1,
        max_cache_len: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        rollback: int = 0,
    ) -> None:
        max_cache_len = check_sizes(config, batch_size, max_cache_len, rollback)
        self._config = config.get_text_config(decoder=True)
        self._rollback = rollback
        plans = plan_layers(self._config)
        if not hasattr(cache_utils, "DummyLayer"):  # older releases have no layers for those that keep nothing
            while not plans[-1].stored:
                plans.pop()
        shapes = planned_shapes(self._config)
        slots = self._arrange(plans, shapes, batch_size, max_cache_len, torch.device(device or "cpu"))
        stored = [index for index, plan in enumerate(plans) if plan.stored]
        shared = (self._config, self._positions, self._storage)
        self._step = 0
        self._stored = {
            index: self._layer_type(
                index, plans[index], slots[index], (index == stored[0], index == stored[-1]), shared
            )
            for index in stored
        }
        super().__init__(
            layers=[self._stored[i] if plan.stored else cache_utils.DummyLayer() for i, plan in enumerate(plans)]
        )
        if dtype is not None and device is not None:
            self._make(shapes, dtype, torch.device(device))

    def _arrange(
        self, plans: list[LayerPlan], shapes: list[Shape], rows: int, max_cache_len: int, device: torch.device
    ) -> list[int]:
        """Decides where tokens go and what memory they go to. Returns the positions that each layer keeps."""
        slots = [plan.slots(max_cache_len, self._rollback) for plan in plans]
        windows = {
            (count, plan.window)
            for count, plan in zip(slots, plans, strict=True)
            if plan.window is not None and count < max_cache_len
        }
        self._positions = Positions(rows, max_cache_len, sorted(windows), device)
        self._storage = Storage(rows, slots, shapes)
        return slots

    @classmethod
    def from_config(
        cls, config: Any, batch_size: int = 1, max_cache_len: int | None = None, **options: Any
    ) -> SlottedStaticCache:
        """The same as the constructor."""
        return cls(config, batch_size, max_cache_len, **options)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the (batch, heads, tokens, size) of new tokens into a layer, and returns what their queries may see.

        Views of the buffers, as long as that lies together in them: to be read before the next pass.

        Raises:
            ValueError: a batch of more rows than there are or are selected, a row without room (in the first layer,
                before anything is written), another shape than in the layers before, or another dtype or device.
        """
        return self._stored[layer_idx].update(key_states, value_states)

    # Sizes and lengths

    @property
    def config(self) -> Any:
        """The decoder's configuration: the model's own object."""
        return self._config

    @property
    def lengths(self) -> Tensor:
        """(batch_size,) int64 on the cache's device: tokens in each row, 0 in free ones. Advanced in place by each
        pass; to be read, not written. It moves at most once, to the device of the first pass."""
        return self._positions.rejoined()

    @property
    def row_lengths(self) -> list[int]:
        """The same numbers on the host, without a wait for the device."""
        return self._positions.host.lengths

    @property
    def block_tables(self) -> dict[str, Tensor]:
        """Where a row's pages are, by kind of layer; none, since a row is one buffer."""
        return {}

    @property
    def rows_in_use(self) -> list[int]:
        """Ascending."""
        return self._positions.host.rows_in_use

    @property
    def batch_size(self) -> int:
        """Rows, free ones included."""
        return self._positions.host.rows

    @property
    def max_cache_len(self) -> int:
        """Tokens that a row can hold."""
        return self._positions.host.capacity

    @property
    def rollback(self) -> int:
        """How many tokens can surely be taken back once a sliding window has wrapped around."""
        return self._rollback

    @property
    def prefill_chunk(self) -> int | None:
        """The most tokens that a pass may feed to a row; None where there is no limit but its length."""
        return None

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens in the longest of the current rows (the selected ones, or all in use): an int, except while a pass is
        compiled or captured, when it is a 0-d int64 tensor of the device."""
        return next(iter(self._stored.values())).get_seq_length()

    def common_length(self, batch_size: int) -> int:
        """Tokens in each of the rows that a batch goes over.

        Raises:
            ValueError: a batch that does not fit; rows of different lengths among those and the current ones.
        """
        rows = {*self._positions.batch_rows(batch_size), *self._positions.current_rows()}
        shortest, longest = self._positions.host.length_range(sorted(rows))
        if shortest != longest:
            raise ValueError(
                f"cache: expected rows of one length, got {shortest} to {longest}; select such rows with cache.rows"
            )
        return longest

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, Any]:
        """(count, first position) of the keys that ``update`` will return for new tokens."""
        layer = self._stored.get(layer_idx) or next(iter(self._stored.values()))
        return layer.get_mask_sizes(query_length)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """The most tokens that a row can hold (transformers 5)."""
        return self.max_cache_len

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """The same (transformers 4)."""
        return self.max_cache_len

    # Buffers

    def early_initialization(
        self,
        batch_size: int,
        num_heads: int | list[int],
        head_dim: int | list[int],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Makes the buffers, of one shape or of one for each layer, before the first pass.

        Raises:
            ValueError: a batch larger than the cache, or lists of another length than there are layers.
            RuntimeError: the buffers are there already.
        """
        self._positions.batch_rows(batch_size)
        heads = [num_heads] * len(self) if isinstance(num_heads, int) else num_heads
        sizes = [head_dim] * len(self) if isinstance(head_dim, int) else head_dim
        for name, values in (("num_heads", heads), ("head_dim", sizes)):
            if len(values) != len(self):
                raise ValueError(f"{name}: expected {len(self)} numbers, one for each layer, got {len(values)}")
        self._make([(h, d, d) for h, d in zip(heads, sizes, strict=True)], dtype, torch.device(device))

    def _make(self, shapes: list[Shape], dtype: torch.dtype, device: torch.device) -> None:
        if self._storage.made:
            raise RuntimeError("cache: expected no buffers yet, but they are made once and stay")
        self._storage.reserve(shapes, dtype, device)
        for index, layer in self._stored.items():
            layer.adopt(*self._storage.get(index))

    def reset(self) -> None:
        """Empties and frees every row. O(1): what the buffers hold is left there until a pass might be handed it."""
        self._positions.reset()

    def _options(self) -> dict[str, Any]:
        return {"rollback": self._rollback}

    def __deepcopy__(self, memo: dict[int, Any]) -> SlottedStaticCache:
        """A cache of the same content in memory of its own; ``config`` stays the model's."""
        copy = type(self)(self._config, self.batch_size, self.max_cache_len, **self._options())
        copy._positions.adopt(self._positions)
        copy._storage.adopt(self._storage)
        for index, layer in copy._stored.items():
            if self._stored[index].is_initialized:
                layer.adopt(*copy._storage.get(index))
        return copy

    # Rows

    def acquire_row(self) -> int:
        """Takes the lowest free row into use, empty. Raises RuntimeError where there is none."""
        return self._positions.acquire()

    def free_row(self, row: int) -> None:
        """Empties a row and gives it back; the others stay as they are. Raises IndexError for a row it has not."""
        self._positions.release([row])

    @contextmanager
    def rows(self, rows: Sequence[int]) -> Iterator[None]:
        """Within: passes, questions, crop and masks are about these rows, in this order.

        Raises:
            IndexError: a row that the cache does not have.
            ValueError: none, or one twice.
        """
        chosen = [int(row) for row in rows]
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"rows: expected different rows, at least one, got {chosen}")
        self._positions.host.length_range(chosen)
        before = self._positions.selected
        try:
            self._positions.select(chosen)
            yield
        finally:
            self._positions.select(before)

    def position_ids(self, tokens: int = 1, batch_size: int | None = None) -> Tensor:
        """(batch, tokens) int64: positions of the next tokens of the current rows, or of rows 0 to batch_size - 1."""
        return next_positions(self._positions, tokens, batch_size)

    def attention_mask(
        self, tokens: int = 1, batch_size: int | None = None, padding: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """What those tokens see: needed where rows have different lengths.

        (batch, 1, tokens, keys) for the keys that ``update`` will return: bool, or, with eager attention, 0 and the
        dtype's least number. With ``attn_implementation="aegis"``, up to 8 tokens have spans instead, int64
        (batch, 1, tokens, 2): from where to where each sees. Models that mix kinds of layers get a dict with a mask for
        each kind.

        Args:
            padding: (batch,) int64, how many tokens at the beginning of each row are none; without, 0.

        Raises:
            ValueError: padding of another shape, dtype or device.
        """
        return attention_masks(self._config, self._stored.values(), self._positions, tokens, batch_size, padding)

    # Taking back, and moving rows

    def crop(self, tokens_to_remove: int | Sequence[int]) -> None:
        """Takes tokens off the end of the current rows: ``-n`` takes n of each, or all that it has, in O(1).

        A positive number is a length that rows are cut to (and so is 0 in transformers 4, where ``crop`` means that).
        A sequence has a number for each current row: at most 0, how many to take off.

        Raises:
            ValueError: a sliding layer has wrapped and no longer holds the window before; see ``rollback``. Nothing has
                changed.
        """
        positions = self._positions
        rows = positions.current_rows()
        if not isinstance(tokens_to_remove, int):
            removed = [-int(count) for count in tokens_to_remove]
        elif tokens_to_remove > 0 or (tokens_to_remove == 0 and _CROPS_TO_LENGTH):
            removed = [max(self.row_lengths[row] - tokens_to_remove, 0) for row in rows]
        else:
            removed = [-tokens_to_remove] * len(rows)
        positions.crop(removed)

    def activate_past_recording(self) -> None:
        """Nothing: what can be taken back was set by ``rollback``."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes a copy of row ``beam_idx[i]``, in place. Copies the live part of every layer.

        Raises:
            ValueError: rows that are not in use, more than the cache has, or within ``rows``; nothing has changed.
        """
        self._gather(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps these rows, as rows 0, 1, ..., and frees the others. Numbers, or one bool for each row in use."""
        self._gather((indices.nonzero().flatten() if indices.dtype == torch.bool else indices).tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row in use ``repeats`` times, as rows 0, 1, ...; ValueError, nothing changed, if that is too many."""
        self._gather([row for row in self.rows_in_use for _ in range(repeats)])

    def _gather(self, sources: list[int]) -> None:
        positions = self._positions
        if positions.selected is not None:
            raise ValueError("rows: expected none to be selected while rows are moved")
        if not self.rows_in_use:
            return
        _, longest = positions.length_range()
        positions.gather(sources)
        if sources != list(range(len(sources))):
            for layer in self._stored.values():
                layer.gather_rows(sources, longest)
