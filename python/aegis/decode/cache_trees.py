"""Passes of a cache over trees of tokens: what each sees, and which of them stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_masks import additive, first_seen
from aegis.decode.cache_positions import Positions
from aegis.decode.trees import TreePass

__all__ = ["HoldsTrees"]


class HoldsTrees:
    """What a cache of slots does for trees. Nodes get places like other tokens, one behind the other, though they stand
    next to each other in the text: so a pass runs within ``tree_pass``, with ``tree_positions`` and ``tree_mask``; then
    :meth:`move_tokens` makes a text of one of its paths, and ``crop`` takes the rest off."""

    if TYPE_CHECKING:
        _config: Any
        _positions: Positions
        _stored: dict[int, SlottedLayer]

    @contextmanager
    def tree_pass(self, tree: TreePass) -> Iterator[None]:
        """Around the mask and the pass: windows then reach over what a tree has side by side."""
        self._positions.slack = tree.seen.shape[2] - tree.seen.shape[1]
        try:
            yield
        finally:
            self._positions.slack = 0

    def tree_positions(self, tree: TreePass, batch_size: int) -> Tensor:
        """(batch, tokens) int64: the positions in the text of the next tokens of the current rows."""
        return _roots(self._positions, tree, batch_size)[:, None] + tree.depths[:, -tree.seen.shape[1] :]

    def tree_mask(self, tree: TreePass, batch_size: int, padding: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """What those tokens see: (batch, 1, tokens, keys) for the keys that ``update`` will return, bool or, with eager
        attention, additive; a dict with a mask for each kind of layer where there are several.

        Args:
            padding: as of :meth:`SlottedStaticCache.attention_mask`.
        """
        roots = _roots(self._positions, tree, batch_size)
        queries = self.tree_positions(tree, batch_size)
        if padding is None:
            padding = torch.zeros_like(roots)
        masks: dict[str, Tensor] = {}
        for layer in self._stored.values():
            if layer.kind not in masks:
                seen = _seen(layer, self._positions, tree, roots, queries, padding)
                masks[layer.kind] = additive(layer, seen) if self._config._attn_implementation == "eager" else seen
        return next(iter(masks.values())) if len(masks) == 1 else masks

    def move_tokens(self, sources: Tensor, positions: Tensor) -> None:
        """Moves tokens of the current rows forward, in every layer: the one at ``positions[b] + t`` becomes what is at
        ``sources[b, t]``. Lengths stay as they are.

        Args and errors are those of :func:`aegis.ops.kv_move_`. Nothing has changed after an error, on a CPU.

        Raises:
            RuntimeError: the cache has no buffers yet.
        """
        if not all(layer.is_initialized for layer in self._stored.values()):
            raise RuntimeError("move_tokens: expected a pass before it, but the cache has no buffers yet")
        # The shortest buffer first: what it takes, all take.
        for layer in sorted(self._stored.values(), key=lambda layer: layer.slots):
            torch.ops.aegis.kv_move_(layer.keys, layer.values, sources, positions, self._positions.selection)


def _roots(positions: Positions, tree: TreePass, batch: int) -> Tensor:
    """(batch,): where the roots lie."""
    positions.batch_rows(batch)
    _, tokens, entries = tree.seen.shape
    return positions.where(batch) - (entries - tokens)


def _seen(
    layer: SlottedLayer, positions: Positions, tree: TreePass, roots: Tensor, queries: Tensor, padding: Tensor
) -> Tensor:
    keys = _places(layer, positions, *queries.shape)
    entries = keys - roots[:, None]
    inside = entries.clamp(0, tree.seen.shape[2] - 1)
    batch, tokens = queries.shape
    seen: Tensor = tree.seen.expand(batch, -1, -1).gather(2, inside[:, None].expand(-1, tokens, -1))
    seen = torch.where(entries[:, None] > 0, seen & (entries[:, None] < tree.seen.shape[2]), keys[:, None] >= 0)
    # A window reaches as far back in the text, whatever lies between.
    where = torch.where(entries > 0, roots[:, None] + tree.depths.expand(batch, -1).gather(1, inside), keys)
    return (seen & (where[:, None] >= first_seen(layer, queries, padding)[:, :, None]))[:, None]


def _places(layer: SlottedLayer, positions: Positions, batch: int, tokens: int) -> Tensor:
    """(batch, keys) int64: where what ``update`` returns lies, counted from the row's start; of no meaning below 0."""
    if tokens > 1 or not layer.reads_spans():
        return layer.key_positions(batch, tokens)
    # Then it returns buffers, of which each slot holds the newest token that fell on it.
    newest = positions.where(batch)[:, None]
    _, longest = positions.host.length_range(positions.batch_rows(batch))
    slots = torch.arange(min(longest + 1, layer.slots), device=newest.device)
    return newest - (newest - slots) % layer.slots
