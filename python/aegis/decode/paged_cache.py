"""A KV cache in pages, so that sequences of unequal length share memory, and equal beginnings lie in it once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from aegis.decode.cache import SlottedStaticCache
from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_plan import LayerPlan, Shape
from aegis.decode.cache_storage import Storage
from aegis.decode.layer_pages import LayerPages, Pairs
from aegis.decode.page_table import PageTable
from aegis.decode.paged_layer import PagedLayer
from aegis.decode.paged_plan import check_number, plan_groups
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
        pages: in the pool, for all rows together; as many as rows of full length need, if not given. Layers that keep
            fewer positions than others have a pool of their own: at most as many as their rows need, or a number for
            each kind of layer, ``{"full_attention": 4096, "sliding_attention": 512}``.
        block_size: tokens in a page.
        rollback: how many tokens can be taken back once a row is longer than a sliding window: such layers keep
            ``window + rollback + 1`` positions, and the rest of the last page that these begin in.
        prefill_chunk: the most tokens that a pass is going to feed to a row, which a sliding layer needs pages for
            beside those of its window. Without it, a row's full length.
        eviction: what becomes of pages that no row holds any more but that may be shared again; see
            :class:`~aegis.PageTable`. With ``"none"`` they are free at once.

    Pages are shared by the token ids in and before them, where the cache knows these: those of
    :meth:`acquire_row`, once they have been fed, and those of :meth:`tell`. Only full blocks are shared. Feed the
    tokens that were named: what is fed is not compared with them. Rows that a pass takes into use by itself, as
    ``generate`` does, share nothing.

    Layers that keep the same positions share a table of pages: there is one where all layers are full, or all sliding.
    Those with a sliding window give back what lies before it after each pass; such pages stay to be shared, like those
    of a row that is freed, until they are needed. A row begins with what all tables have of its tokens.

    With ``attn_implementation="aegis"`` a decoded token reads the pages where they lie, on a CPU and on CUDA. Other
    attention, and passes of several tokens (prompts, verification of guesses), get a linear copy of what their queries
    see: they cost as much memory, for a layer at a time, and its traffic twice. What pages hold behind a row's tokens,
    of requests that had them before or of guesses taken back, is zero in the copies, so that no NaN or infinity gets
    from there to another request. Shared pages are as their first request filled them.

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
        pages: int | Mapping[str, int] | None = None,
        block_size: int = 16,
        eviction: Literal["none", "lru", "frequency"] = "lru",
        rollback: int = 0,
        prefill_chunk: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        for count in pages.values() if isinstance(pages, Mapping) else () if pages is None else (pages,):
            check_number("pages", count)
        check_number("block_size", block_size)
        if prefill_chunk is not None:
            check_number("prefill_chunk", prefill_chunk)
        self._settings: dict[str, Any] = {
            "pages": pages,
            "block_size": block_size,
            "eviction": eviction,
            "prefill_chunk": prefill_chunk,
        }
        super().__init__(config, batch_size, max_cache_len, dtype=dtype, device=device, rollback=rollback)

    def _arrange(
        self, plans: list[LayerPlan], shapes: list[Shape], rows: int, max_cache_len: int, device: torch.device
    ) -> list[int]:
        settings = {name: value for name, value in self._settings.items() if name != "eviction"}
        size = self._settings["block_size"]
        of = {}
        for plan in plan_groups(plans, rows, max_cache_len, self._rollback, **settings):
            table = PageTable(plan.pages, size, eviction=self._settings["eviction"])
            pages = LayerPages(table, rows, max_cache_len, plan.keep, plan.window, device)
            of.update(dict.fromkeys(plan.kinds, pages))
        self._positions = PagedPositions(rows, max_cache_len, device, of, self._copy_pages)
        pools = [LayerPages.pool(of[plan.kind].table.pages, rows) if plan.stored else 0 for plan in plans]
        self._storage = Storage(pools, [size if plan.stored else 0 for plan in plans], shapes)
        return [max_cache_len if plan.stored else 0 for plan in plans]

    def _options(self) -> dict[str, Any]:
        return {**self._settings, **super()._options()}

    def _copy_pages(self, pages: LayerPages, pairs: Pairs) -> None:
        layers = [layer for layer in self._layers() if layer.pages is pages]
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
        size = self.block_size
        moves = {}
        for pages in self._positions.groups:
            blocks = pages.blocks[: len(sources)] if selection is None else pages.blocks.index_select(0, selection)
            # All of them are read before one is written; what a pass wrote lies on pages that nobody else holds.
            moves[pages] = [
                (blocks.gather(1, at // size)[chosen], (at % size)[chosen])
                for at in (sources.clamp(min=0), torch.where(chosen, targets, 0))
            ]
        for layer in self._layers():
            read, written = moves[layer.pages]
            for pool in layer.pool():
                pool[written[0], :, written[1]] = pool[read[0], :, read[1]]

    def _layers(self) -> list[PagedLayer]:
        return [layer for layer in self._stored.values() if isinstance(layer, PagedLayer)]

    # Pages

    @property
    def tables(self) -> dict[str, PageTable]:
        """Who holds which pages, by kind of layer: to be asked, not to be changed. Row r is sequence r."""
        return {kind: pages.table for kind, pages in self._positions.kinds.items()}

    @property
    def table(self) -> PageTable:
        """That of the layers that keep most positions; the only one, unless kinds of layers are mixed."""
        return self._positions.table

    @property
    def block_tables(self) -> dict[str, Tensor]:
        """By kind of layer, (batch_size, blocks) int64 on the cache's device: the pages of each row, in order, as
        :func:`aegis.ops.decode_attention` and :func:`aegis.ops.kv_append_` take them."""
        return {kind: pages.blocks for kind, pages in self._positions.kinds.items()}

    @property
    def blocks(self) -> Tensor:
        """The block table of the layers that keep most positions."""
        return self._positions.groups[0].blocks

    @property
    def prefill_chunk(self) -> int | None:
        """The most tokens that a pass is going to feed to a row, as told; None where it was not."""
        chunk: int | None = self._settings["prefill_chunk"]
        return chunk

    @property
    def block_size(self) -> int:
        """Tokens in a page."""
        return self.table.block_size

    @property
    def pages_in_use(self) -> int:
        """Pages that rows hold, in all tables. Those that are kept for their content alone do not count."""
        return sum(pages.in_use for pages in self._positions.groups)

    @property
    def page_bytes(self) -> int:
        """What a page of each table takes, together; 0 before the first pass, where the buffers are not there yet."""
        return sum(layer.page_bytes() for layer in self._layers())

    @property
    def bytes_in_use(self) -> int:
        """What the pages take that rows hold; 0 before the first pass."""
        return sum(layer.page_bytes() * layer.pages.in_use for layer in self._layers())

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
