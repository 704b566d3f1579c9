"""A KV cache in pages, so that sequences of unequal length share memory, and equal beginnings lie in it once."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from aegis.decode.cache import SlottedStaticCache
from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_plan import LayerPlan, Shape
from aegis.decode.cache_storage import Storage
from aegis.decode.page_table import PageTable
from aegis.decode.paged_layer import PagedLayer
from aegis.decode.paged_positions import PagedPositions, as_tokens

__all__ = ["PagedKVCache"]


class PagedKVCache(SlottedStaticCache):
    """A :class:`~aegis.SlottedStaticCache` whose rows take memory as they grow, in pages of one pool.

    It is used in the same way and in the same places. What it adds::

        cache = aegis.PagedKVCache(model.config, batch_size=64, max_cache_len=8192, pages=4096)
        row = cache.acquire_row(prompt)              # shares the pages there are of the prompt's beginning
        there = cache.row_lengths[row]               # tokens that need not be computed
        with cache.rows([row]):
            model(prompt[None, there:], past_key_values=cache, ...)
        twin = cache.fork(row)                       # the same text in the same pages; who writes gets a copy
        cache.free_row(row)

    Args:
        config, batch_size, max_cache_len, dtype, device: as there. ``max_cache_len`` bounds a row and costs no memory.
        pages: in the pool, for all rows together; as many as rows of full length need, if not given.
        block_size: tokens in a page.
        eviction: what becomes of pages that no row holds any more but that may be shared again; see
            :class:`~aegis.PageTable`. With ``"none"`` they are free at once.

    Pages are shared by the token ids in and before them, where the cache knows these: those of
    :meth:`acquire_row`, once they have been fed, and those of :meth:`tell`. Only full blocks are shared. Feed the
    tokens that were named: what is fed is not compared with them. Rows that a pass takes into use by itself, as
    ``generate`` does, share nothing.

    A page has a place in each layer, so that layers with a sliding window keep what lies before it, too, and ``crop``
    can take back any number of tokens. With ``attn_implementation="aegis"`` a decoded token reads the pages where they
    lie, on a CPU and on CUDA. Other attention, and passes of several tokens (prompts, verification of guesses), get a
    linear copy of what their queries see: they cost as much memory, for a layer at a time, and its traffic twice.

    Raises, beside what a SlottedStaticCache raises:
        PagesExhausted: (a MemoryError) a pass needs more pages than are free or evictable; nothing has changed.
        ValueError: ``free_row`` or ``fork`` of a row that is not in use.

    Cost: :meth:`fork`, ``reorder_cache``, ``batch_select_indices`` and ``batch_repeat_interleave`` copy no keys and
    values, but each row's list of pages; a page is copied when a row writes into one that others hold. Each row has a
    page beside the pool, for steps that carry it along while it is free. Paging follows PagedAttention (Kwon et al.
    2023).
    """

    _layer_type: type[SlottedLayer] = PagedLayer
    _positions: PagedPositions

    def __init__(
        self,
        config: Any,
        batch_size: int = 1,
        max_cache_len: int | None = None,
        *,
        pages: int | None = None,
        block_size: int = 16,
        eviction: Literal["none", "lru", "frequency"] = "lru",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        for name, value in (("pages", pages), ("block_size", block_size)):
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise TypeError(f"{name}: expected an int, got {value!r}")
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        self._settings: dict[str, Any] = {"pages": pages, "block_size": block_size, "eviction": eviction}
        super().__init__(config, batch_size, max_cache_len, dtype=dtype, device=device)

    def _arrange(
        self, plans: list[LayerPlan], shapes: list[Shape], rows: int, max_cache_len: int, device: torch.device
    ) -> list[int]:
        size = self._settings["block_size"]
        pages = self._settings["pages"]
        if pages is None:
            pages = rows * -(-max_cache_len // size)
        table = PageTable(pages, size, eviction=self._settings["eviction"])
        self._positions = PagedPositions(rows, max_cache_len, device, table, self._copy_pages)
        self._storage = Storage(pages + rows, [size if plan.stored else 0 for plan in plans], shapes)
        return [max_cache_len if plan.stored else 0 for plan in plans]

    def _options(self) -> dict[str, Any]:
        return self._settings

    def _copy_pages(self, pairs: list[tuple[int, int]]) -> None:
        layers = [layer for layer in self._stored.values() if isinstance(layer, PagedLayer)]
        try:
            on_device = torch.tensor(pairs, device=self._positions.lengths.device)
            for layer in layers:
                layer.copy_pages(on_device)
        except BaseException:
            # Out of memory, or interrupted. The table has given the pages already: they must have their content, or the
            # next pass over these rows would read what was never written.
            for layer in layers:
                layer.copy_each(pairs)
            raise

    def move_tokens(self, sources: Tensor, positions: Tensor) -> None:
        if not all(layer.is_initialized for layer in self._stored.values()):
            raise RuntimeError("move_tokens: expected a pass before it, but the cache has no buffers yet")
        targets = positions[:, None] + torch.arange(sources.shape[1], device=sources.device)
        chosen = sources >= 0
        selection = self._positions.selection
        blocks = self.blocks[: len(sources)] if selection is None else self.blocks.index_select(0, selection)
        size = self.block_size
        # All of them are read before one is written; what a pass wrote lies on pages that nobody else holds.
        read, written = (
            (blocks.gather(1, at // size)[chosen], (at % size)[chosen])
            for at in (sources.clamp(min=0), torch.where(chosen, targets, 0))
        )
        for layer in self._stored.values():
            for pool in (layer.keys, layer.values):
                assert pool is not None
                pool[written[0], :, written[1]] = pool[read[0], :, read[1]]

    # Pages

    @property
    def table(self) -> PageTable:
        """Who holds which pages: to be asked, not to be changed. Row r is sequence r."""
        return self._positions.table

    @property
    def blocks(self) -> Tensor:
        """(batch_size, blocks) int64 on the cache's device: the pages of each row, in order, as
        :func:`aegis.ops.decode_attention` and :func:`aegis.ops.kv_append_` take them."""
        return self._positions.blocks

    @property
    def block_size(self) -> int:
        return self.table.block_size

    @property
    def rollback(self) -> int:
        """How many tokens can be taken back: all."""
        return self.max_cache_len

    @property
    def pages_in_use(self) -> int:
        """Pages that rows hold. Those that are kept for their content alone do not count."""
        return self.table.pages - self.table.free_pages - self.table.evictable_pages

    @property
    def page_bytes(self) -> int:
        """What a page takes in all layers; 0 before the first pass, where the buffers are not there yet."""
        return sum(layer.page_bytes() for layer in self._stored.values() if isinstance(layer, PagedLayer))

    def acquire_row(self, tokens: Any = None) -> int:
        """Takes the lowest free row into use.

        Args:
            tokens: (n,) integers that are going to be fed to it. It then begins with the full blocks that are there of
                them, up to the last token, which has to be fed: ``row_lengths[row]`` tells how many tokens those are.
                What is fed can be shared as soon as its pass is over.

        Raises:
            RuntimeError: all rows are in use.
            ValueError: no tokens, more than a row can hold, or what is no row of token ids.
        """
        return super().acquire_row() if tokens is None else self._positions.acquire_with(as_tokens(tokens))

    def fork(self, row: int) -> int:
        """Takes a free row into use, of the same tokens in the same pages. No keys or values are copied before one of
        the two writes into a page that is not full.

        Raises:
            IndexError: a row that the cache does not have.
            ValueError: one that is not in use.
            RuntimeError: all rows are in use.
        """
        return self._positions.fork(row)

    def tell(self, row: int, tokens: Any) -> None:
        """What the tokens of a row are, from the first that the cache does not know (``table.known(row)``), so that
        others can share them.

        Raises:
            IndexError: a row that the cache does not have.
            ValueError: more than the row holds.
        """
        self._positions.tell(row, as_tokens(tokens))
