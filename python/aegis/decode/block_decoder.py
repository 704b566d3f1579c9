"""A model and its cache, fed with several tokens of each row at a time, where rows differ in length."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from aegis.decode.cache import SlottedStaticCache
from aegis.decode.compiled_pass import CompiledPasses, StaticPass
from aegis.decode.huggingface import cache_argument, forward_arguments
from aegis.decode.paged_cache import PagedKVCache
from aegis.decode.paged_plan import check_number
from aegis.decode.runner import CUDAGraphFastRunner
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler
from aegis.decode.trees import TreePass

__all__ = ["BlockDecoder"]


class BlockDecoder:
    """What speculation asks of a model: a prompt, then blocks, and tokens taken back from each row.

    Args:
        model: as :class:`~aegis.CUDAGraphFastRunner` takes it; the same errors are raised.
        rows, max_cache_len: of the cache, which is made here.
        rollback: the most tokens that are taken back at once.
        sampler: picks the first token.
        paged: whether the cache is a :class:`~aegis.PagedKVCache`.
        chunk: of that one: the most tokens of a row that prefill feeds at a time. Blocks have at most
            ``rollback`` tokens.
        compiled: numbers of tokens for which a pass over all rows is compiled, when it first comes.
    """

    def __init__(
        self,
        model: Any,
        rows: int,
        max_cache_len: int,
        rollback: int,
        sampler: FusedLogitsSampler | ProcessedSampler | None = None,
        *,
        paged: bool = False,
        chunk: int | None = None,
        compiled: Collection[int] = (),
    ) -> None:
        device = getattr(model, "device", None)
        cache: SlottedStaticCache
        if paged:
            if chunk is not None:
                check_number("prefill_chunk", chunk)
                chunk = max(chunk, rollback)
            cache = PagedKVCache(
                model.config, rows, max_cache_len, rollback=rollback, prefill_chunk=chunk, device=device
            )
        elif chunk is not None:
            raise ValueError(f"prefill_chunk: expected none without paged=True, got {chunk!r}")
        else:
            cache = SlottedStaticCache(model.config, rows, max_cache_len, rollback=rollback, device=device)
        # The runner's checks are those of any model, and come first.
        self.runner = CUDAGraphFastRunner(model, cache=cache, sampler=sampler, mode="eager")
        self.model = model
        self.cache = self.runner.cache
        self._cache_argument = cache_argument(model)
        self._arguments = forward_arguments(model)
        self.static_pass = StaticPass(model, self.cache)
        self._compiled = CompiledPasses(self.static_pass, compiled) if compiled else None
        self._padding: Tensor | None = None
        with torch.inference_mode(False):
            self._none = torch.zeros(rows, dtype=torch.int64, device=model.device)

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, chunk: int, history: Tensor | None) -> Tensor:
        """As :meth:`CUDAGraphFastRunner.prefill`; the tokens are a view that the next call overwrites."""
        with nullcontext() if self._compiled is None else self.static_pass.watch.passing():
            tokens = self.runner.prefill(input_ids, attention_mask, chunk=chunk, history=history)
        self.static_pass.forget_if_changed()
        padding = None if attention_mask is None else (attention_mask == 0).sum(1)
        self._padding = padding if padding is not None and bool(padding.any()) else None
        return tokens

    @property
    def padding(self) -> Tensor:
        """(rows,) int64: how many tokens at the beginning of each row are none."""
        return self._none if self._padding is None else self._padding

    def feed(self, tokens: Tensor, first: int, tree: TreePass | None = None, *, eager: bool = False) -> Tensor:
        """Feeds (b, n) tokens to rows first, ..., first + b - 1 and returns logits (b, n, V) for what follows each.
        They follow one another, or are of a tree. ``eager`` compiles nothing for them.

        Raises:
            ValueError: a row has no room; nothing has been written.
        """
        batch, count = tokens.shape
        if tree is None and not eager and self._compiled is not None and self._compiled.takes(first, tokens):
            return self._compiled.feed(tokens, self.padding)
        with self._only(first, batch), nullcontext() if tree is None else self.cache.tree_pass(tree):
            padding = None if self._padding is None else self._padding[first : first + batch]
            if tree is None:
                positions = self.cache.position_ids(count, batch)
                mask = self.cache.attention_mask(count, batch, padding)
            else:
                positions = self.cache.tree_positions(tree, batch)
                mask = self.cache.tree_mask(tree, batch, padding)
            arguments: dict[str, Any] = {
                "input_ids": tokens,
                "attention_mask": mask,
                "position_ids": positions if padding is None else positions - padding[:, None],
                self._cache_argument: self.cache,
                "use_cache": True,
            }
            if "logits_to_keep" in self._arguments:
                arguments["logits_to_keep"] = count
            if "cache_position" in self._arguments:  # transformers 4
                longest = self.cache.get_seq_length()
                arguments["cache_position"] = torch.arange(longest, longest + count, device=tokens.device)
            logits: Tensor = self.model(**arguments).logits[:, -count:]
        return logits.float() if logits.dtype == torch.float64 else logits

    def lengths(self, first: int, batch: int) -> list[int]:
        """Tokens in the cache, of each of these rows."""
        return self.cache.row_lengths[first : first + batch]

    def keep(self, first: int, lengths: Sequence[int]) -> None:
        """Takes back what rows first, first + 1, ... hold beyond these lengths."""
        held = self.lengths(first, len(lengths))
        removed = [min(keep - have, 0) for keep, have in zip(lengths, held, strict=True)]
        if any(removed):
            with self._only(first, len(lengths)):
                self.cache.crop(removed)

    def keep_path(self, first: int, lengths: Sequence[int], entries: Tensor) -> None:
        """Makes a text of a path through what rows first, first + 1, ... hold behind their first ``lengths`` tokens.

        Args:
            entries: (b, n) int64 on a CPU, ascending: which of those tokens comes first, second, ...; -1 for none.
        """
        if not bool((entries > torch.arange(entries.shape[1])).any()):
            return  # they lie there already
        device = self.cache.lengths.device
        places = torch.tensor(lengths)
        sources = torch.where(entries < 0, -1, places[:, None] + entries)
        with self._only(first, len(lengths)):
            self.cache.move_tokens(sources.to(device), places.to(device))

    def retire(self, row: int) -> None:
        """Empties a row, which goes on as one without tokens or padding. Again, it changes nothing."""
        if row in self.cache.rows_in_use:
            self.cache.free_row(row)
        if self._padding is not None:
            self._padding[row] = 0

    def reset(self) -> None:
        self.runner.reset()
        self._padding = None

    def _only(self, first: int, batch: int) -> AbstractContextManager[None]:
        rows = range(first, first + batch)
        everything = first == 0 and self.cache.rows_in_use == list(rows)
        return nullcontext() if everything else self.cache.rows(rows)
