"""A pass of a few tokens of every row, through torch.compile."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from aegis.decode.cache import SlottedStaticCache
from aegis.decode.graph import compiled
from aegis.decode.huggingface import cache_argument, forward_arguments

__all__ = ["CompiledPasses", "checked_mode"]


def checked_mode(mode: str, *, eager: bool) -> Literal["eager", "compiled"]:
    """What ``mode`` of a SpeculativeFastRunner means; ``eager`` where nothing can be compiled.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("auto", "eager", "compiled"):
        raise ValueError(f"mode: expected 'auto', 'eager' or 'compiled', got {mode!r}")
    if mode == "compiled" and eager:
        raise ValueError(f"mode: expected 'eager' with a tree, overlap or pages, got {mode!r}")
    return "compiled" if mode == "compiled" else "eager"


class CompiledPasses:
    """Passes over all rows of a cache, compiled once for each number of tokens asked for.

    What Python does around the kernels is gone: for small models that is most of a pass. Positions and ranges of the
    cache are computed from its lengths inside what is compiled, so that one compilation serves everywhere in a text.

    Args:
        sizes: numbers of tokens in a pass, each of which takes seconds to compile, when it first comes.
    """

    def __init__(self, model: Any, cache: SlottedStaticCache, sizes: Collection[int]) -> None:
        self.model = model
        self.cache = cache
        self.sizes = frozenset(sizes)
        self._cache_argument = cache_argument(model)
        self._arguments = forward_arguments(model)
        self._compiled: dict[int, Any] = {}
        with torch.inference_mode(False):
            self._none = torch.zeros(cache.batch_size, dtype=torch.int64, device=model.device)

    def takes(self, tokens: Tensor) -> bool:
        """Whether such a pass is one of these: of a size asked for, over all rows."""
        batch, count = tokens.shape
        every = list(range(self.cache.batch_size))
        return count in self.sizes and batch == len(every) and self.cache.rows_in_use == every

    def feed(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        """Feeds (rows, n) tokens and returns logits (rows, n, V), fresh.

        Args:
            padding: (rows,) int64, how many tokens at the beginning of each row are none; None where all are.

        Raises:
            ValueError: a row has no room; nothing has been written.
        """
        count = tokens.shape[1]
        if count not in self._compiled:
            self._compiled[count] = compiled(self._forward)
        with self.cache.step(count, len(tokens)):
            logits: Tensor = self._compiled[count](tokens, self._none if padding is None else padding)
        return logits

    def _forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        batch, count = tokens.shape
        positions = self.cache.position_ids(count, batch)
        arguments: dict[str, Any] = {
            "input_ids": tokens,
            "attention_mask": self.cache.attention_mask(count, batch, padding),
            "position_ids": positions - padding[:, None],
            self._cache_argument: self.cache,
            "use_cache": True,
        }
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = count
        if "cache_position" in self._arguments:  # transformers 4
            arguments["cache_position"] = positions[0]
        logits: Tensor = self.model(**arguments).logits[:, -count:]
        return logits.float() if logits.dtype == torch.float64 else logits
