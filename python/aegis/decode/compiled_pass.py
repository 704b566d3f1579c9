"""A pass of a few tokens of every row, through torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, Literal

import torch
from torch import Tensor

from aegis.decode.cache import SlottedStaticCache
from aegis.decode.graph import ModelWatch, compiled
from aegis.decode.huggingface import cache_argument, forward_arguments

__all__ = ["CompiledPasses", "StaticPass", "checked_mode"]


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


class StaticPass:
    """A forward pass over all rows of a cache in which every number that changes is a tensor's: to be compiled.

    Positions and ranges of the cache are computed from its lengths, so that one compilation serves everywhere in a
    text. The caller brackets it with ``cache.step``.

    What is compiled of it is kept here, for as long as the model is as it was.
    """

    def __init__(self, model: Any, cache: SlottedStaticCache) -> None:
        self.model = model
        self.cache = cache
        self._cache_argument = cache_argument(model)
        self._arguments = forward_arguments(model)
        self._compiled: dict[Hashable, Callable[..., Tensor]] = {}
        self.watch = ModelWatch(model)

    def run(self, key: Hashable, function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        """``function(*tensors)``, which calls this, compiled: the same one whenever the key is the same."""
        if key in self._compiled:
            return self._compiled[key](*tensors)
        if not self._compiled:
            self.watch.note()
        with self.watch.passing():
            self._compiled[key] = compiled(function)
            return self._compiled[key](*tensors)

    def forget_if_changed(self) -> None:
        """Drops what was compiled if the model has changed since; for the beginning of a text."""
        if self._compiled and self.watch.changed():
            self._compiled.clear()

    def __call__(self, tokens: Tensor, padding: Tensor, keep: int) -> Tensor:
        """Logits (rows, keep, V) behind the last ``keep`` of (rows, n) tokens; padding is (rows,) int64, how many
        tokens at the beginning of each row are none."""
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
            arguments["logits_to_keep"] = keep
        if "cache_position" in self._arguments:  # transformers 4
            arguments["cache_position"] = positions[0]
        logits: Tensor = self.model(**arguments).logits[:, -keep:]
        return logits.float() if logits.dtype == torch.float64 else logits

    def goes_over(self, first: int, batch: int) -> bool:
        """Whether rows first, first + 1, ... of a batch are all that the cache has, and in use."""
        every = list(range(self.cache.batch_size))
        return first == 0 and batch == len(every) and self.cache.rows_in_use == every


class CompiledPasses:
    """Passes over all rows of a cache, compiled once for each number of tokens asked for.

    What Python does around the kernels is gone: for small models that is most of a pass.

    Args:
        sizes: numbers of tokens in a pass, each of which takes seconds to compile, when it first comes.
    """

    def __init__(self, forward: StaticPass, sizes: Collection[int]) -> None:
        self.sizes = frozenset(sizes)
        self._forward = forward

    def takes(self, first: int, tokens: Tensor) -> bool:
        """Whether such a pass is one of these: of a size asked for, over all rows."""
        batch, count = tokens.shape
        return count in self.sizes and self._forward.goes_over(first, batch)

    def feed(self, tokens: Tensor, padding: Tensor) -> Tensor:
        """Feeds (rows, n) tokens and returns logits (rows, n, V), fresh.

        Args:
            padding: (rows,) int64, how many tokens at the beginning of each row are none.

        Raises:
            ValueError: a row has no room; nothing has been written.
        """
        batch, count = tokens.shape
        with self._forward.cache.step(count, batch):
            return self._forward.run(
                count, lambda tokens, padding: self._forward(tokens, padding, count), tokens, padding
            )
