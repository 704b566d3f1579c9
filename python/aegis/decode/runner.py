"""One token for every row of a batch, over and over, from memory that stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from aegis.decode.graph import ModelWatch, capture_graph, compiled
from aegis.decode.huggingface import cache_argument, check_model, check_positions, forward_arguments, left_padding
from aegis.decode.model_setup import set_up
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler

if TYPE_CHECKING:
    from aegis.decode.cache import SlottedStaticCache

__all__ = ["CUDAGraphFastRunner"]

Mode = Literal["eager", "compiled", "cuda-graph"]

PREFILL_CHUNK = 1024


class CUDAGraphFastRunner:
    """Decodes with a causal language model of transformers: prefill, then a step per token.

    Everything a step reads or writes stays at one address for the runner's life: the token it feeds, positions, the
    ranges of the cache that are live, the cache itself, the sampler's state. So a step can be captured once and
    replayed. ``mode`` says how it runs:

    * ``"cuda-graph"`` (default on CUDA): captured into a CUDA graph, sampler included unless it needs the tokens so
      far, and replayed;
    * ``"compiled"``: the model's part through ``torch.compile``, so that norms, rotary embedding and activations are
      fused; the first step compiles, which takes tens of seconds, so keep the runner;
    * ``"eager"`` (default on a CPU): the model's modules as they are.

    On a CPU, linear layers run through ``skinny_linear`` and attention through ``decode_attention``. Use it as a
    context manager: inside, the model is set up for that, and once all who share it have left it is as it was before::

        with aegis.CUDAGraphFastRunner(model, batch_size=1, max_cache_len=2048) as runner:
            tokens = runner.prefill(input_ids)          # the first new token of each row
            for _ in range(100):
                tokens = runner.step()                  # the next one

    Args:
        model: a decoder-only model of transformers.
        batch_size: rows. ``prefill`` takes as many, or fewer where the mode is eager.
        max_cache_len: tokens that a row can hold, prompt included. Without: the model's max_position_embeddings. No
            more than that where a model has learned its positions (GPT-2, OPT); rotary ones and ALiBi have no bound.
        cache: a SlottedStaticCache (or PagedKVCache) to decode into, instead of a new one of the sizes above.
        sampler: picks tokens; without, greedy.
        mode: as above; ``"auto"`` takes the default.
        on_change: what to do when the model has changed since a step was captured or compiled (parameters replaced or
            moved, modules, hooks, modes, numbers that modules keep, but those that passes were seen to change):
            ``"recapture"`` or ``"raise"``. That is looked at in ``prefill``; amid a text a model must stay as it is.
        clone: whether tokens are returned as copies. Without, they are a view that the next step overwrites.

    Raises:
        ValueError: what cannot be decoded, captured or fed; names the argument.
        TypeError: sizes that are no ints.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch_size: int = 1,
        max_cache_len: int | None = None,
        cache: SlottedStaticCache | None = None,
        sampler: FusedLogitsSampler | ProcessedSampler | None = None,
        mode: Literal["auto", "eager", "compiled", "cuda-graph"] = "auto",
        on_change: Literal["recapture", "raise"] = "recapture",
        clone: bool = False,
    ) -> None:
        check_model(model)
        from aegis.decode.cache import SlottedStaticCache

        if mode not in ("auto", "eager", "compiled", "cuda-graph"):
            raise ValueError(f"mode: expected 'auto', 'eager', 'compiled' or 'cuda-graph', got {mode!r}")
        if on_change not in ("recapture", "raise"):
            raise ValueError(f"on_change: expected 'recapture' or 'raise', got {on_change!r}")
        if sampler is not None and not isinstance(sampler, (FusedLogitsSampler, ProcessedSampler)):
            raise ValueError(f"sampler: expected a FusedLogitsSampler, alone or after processors, got {sampler!r}")
        device = model.device
        if mode == "cuda-graph" and device.type != "cuda":
            raise ValueError(f"mode: expected 'eager' or 'compiled' for a model on {device}, got 'cuda-graph'")
        config = model.config.get_text_config(decoder=True)
        if cache is None:
            if max_cache_len is None:
                max_cache_len = getattr(config, "max_position_embeddings", None)
            cache = SlottedStaticCache(config, batch_size, max_cache_len, device=device)
        elif not isinstance(cache, SlottedStaticCache):
            raise ValueError(f"cache: expected a SlottedStaticCache, got {type(cache).__name__}")
        elif cache.config is not config:
            raise ValueError("cache: expected one made from model.config itself, got one made from another config")
        check_positions(model, cache.max_cache_len)
        if any(getattr(layer, "kind", None) == "chunked_attention" for layer in cache.layers):
            raise ValueError("model: expected full or sliding attention, got chunked; model.generate still takes it")
        self.model = model
        self.cache = cache
        self.sampler = sampler if sampler is not None else FusedLogitsSampler(do_sample=False)
        self.mode: Mode = ("cuda-graph" if device.type == "cuda" else "eager") if mode == "auto" else mode
        self.clone = clone
        self._raise_on_change = on_change == "raise"
        self._rows = cache.batch_size
        self._cache_argument = cache_argument(model)
        self._arguments = forward_arguments(model)
        self._installed: AbstractContextManager[None] | None = None
        self._captured: Callable[[], Tensor] | None = None
        self._watch = ModelWatch(model)

        rows = self._rows
        with torch.inference_mode(False):  # tensors made in that mode could not be written outside of it
            self._tokens = torch.zeros(rows, 1, dtype=torch.int64, device=device)
            self._fed = torch.zeros_like(self._tokens)  # as they were before a step
            self._positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
            self._spans = torch.zeros(rows, 1, 1, 2, dtype=torch.int64, device=device)
            # Behind a start and an end, a row's pages, where the cache has such (aegis.decode.paged_attention).
            # An eager pass takes pages in its first layer, and its attention finds them without that.
            tables = {} if self.mode == "eager" else cache.block_tables
            self._paged = {
                kind: torch.zeros(rows, 1, 1, 2 + blocks.shape[1], dtype=torch.int64, device=device)
                for kind, blocks in tables.items()
            }
        self._active = 0  # rows of the batch that was filled in
        self._prompt_unknown = False  # to the sampler, until it saw this text's
        self._length = -1  # of the cache, as positions and spans have it; -1 where they may be anything
        self.logits: Tensor | None = None
        """(B, V): what the last token was picked from. Overwritten by the next step, unless the mode is eager."""

    # --- setting up the model ------------------------------------------------------------------------------------

    def __enter__(self) -> CUDAGraphFastRunner:
        if self._installed is not None:
            raise RuntimeError("CUDAGraphFastRunner: expected to be entered once at a time, got entered again")
        installed = set_up(self.model)
        installed.__enter__()
        self._installed = installed
        return self

    def __exit__(self, *error: object) -> None:
        if self._installed is not None:
            self._installed.__exit__(None, None, None)
            self._installed = None

    def _check_entered(self) -> None:
        if self._installed is None:
            raise RuntimeError("CUDAGraphFastRunner: expected to be used inside `with runner:`")

    # --- decoding ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        chunk: int = PREFILL_CHUNK,
        history: Tensor | None = None,
    ) -> Tensor:
        """Feeds a prompt, or more of one, and returns the token that follows it in each row.

        Args:
            input_ids: (B, L) int64 on the model's device, L of at least 1. B is the runner's batch size, or less where
                the mode is eager.
            attention_mask: (B, length of the cache + L), zero where a row is padded, which is on its left; None
                where nothing is.
            chunk: tokens of a row that go through the model at a time; no more than the cache's ``prefill_chunk``.
            history: (B, n) int64, all tokens so far, for a sampler that asks for them; without, ``input_ids``.

        Returns:
            (B,) int64, as :meth:`step` does.

        Raises:
            ValueError: another shape, dtype or device; padding that is not on the left; more tokens than the cache
                has room for, in which case nothing was written.
        """
        self._check_entered()
        if torch.is_autocast_enabled(self.cache.lengths.device.type):
            raise ValueError("autocast: expected none, since a cache holds one dtype; model.to(torch.bfloat16) has one")
        batch, length = self._check_prompt(input_ids)
        past = self.cache.common_length(batch)
        starts = left_padding(attention_mask, batch, past + length)
        if starts is None and past > 0 and bool(self._spans[:batch, 0, 0, 0].any()):
            raise ValueError("attention_mask: expected one, since rows in the cache are padded, got None")
        if not isinstance(chunk, int) or chunk < 1:
            raise ValueError(f"chunk: expected at least 1, got {chunk!r}")
        if past + length > self.cache.max_cache_len:
            raise ValueError(
                f"input_ids: expected room for {length} more tokens, but the cache holds {past} of at most "
                f"{self.cache.max_cache_len}"
            )
        self._check_unchanged()

        chunk = min(chunk, self.cache.prefill_chunk or chunk)
        self._length = -1
        mask = attention_mask if starts is not None and bool(starts.any()) else None
        columns = torch.arange(past, past + length, device=input_ids.device)
        positions = columns.expand(batch, -1) if starts is None else (columns - starts[:, None]).clamp_(min=0)
        with nullcontext() if self.mode == "eager" else self._watch.passing():
            for begin in range(0, length, chunk):
                end = min(begin + chunk, length)
                logits = self._forward(
                    input_ids[:, begin:end],
                    None if mask is None else mask[:, : past + end],
                    positions[:, begin:end],
                    columns[begin:end],
                )
        if self.cache.common_length(batch) != past + length:
            raise ValueError(
                f"model: expected forward to add {length} tokens to the cache, but it did not; where gradients are "
                "checkpointed, call model.eval() before"
            )
        self._active = batch
        self._spans[:batch, 0, 0, 0] = 0 if starts is None else starts
        self._place()
        self._prompt_unknown |= self.sampler.prompt_length is None
        self._draw(logits, input_ids if history is None else history)
        return self._result(logits)

    @torch.no_grad()
    def step(self, tokens: Tensor | None = None, *, history: Tensor | None = None) -> Tensor:
        """Feeds one token to each row and returns the one that follows.

        Args:
            tokens: (B,) or (B, 1) int64: what to feed instead of the tokens returned last.
            history: (B, n) int64, the tokens so far, for a sampler that asks for them.

        Returns:
            (B,) int64, a view of static memory that the next step overwrites; a copy where ``clone`` was asked for.

        Raises:
            ValueError: tokens of another shape, dtype or device than those captured; a full cache, in which case
                nothing was written.

        After an error of the model, a hook, a processor or the sampler, the cache is as it was, and the next call is
        the same step again. (A ``strict`` sampler has drawn before it raises, and goes on with another number.)
        """
        self._check_entered()
        if self._active == 0:
            raise RuntimeError("step: expected prefill to have been called")
        if tokens is not None:
            self._feed(tokens)
        length = self.cache.get_seq_length()
        if length != self._length:  # the last step failed, or tokens were taken back
            self._place()
        self._length = -1
        if self.mode != "eager" and not self._sampler_apart:
            logits = self._replay()
        else:
            self._fed.copy_(self._tokens)
            try:
                logits = self._advance(self._active) if self.mode == "eager" else self._replay()
                self._draw(logits, history)
            except BaseException:  # what was fed is still to be fed
                self._tokens.copy_(self._fed)
                if self.cache.get_seq_length() > length:
                    self.cache.crop(-1)
                raise
        self._length = length + 1
        return self._result(logits)

    def use_sampler(self, sampler: FusedLogitsSampler | ProcessedSampler) -> None:
        """Picks tokens with another sampler from now on. What was captured is dropped if the old one is part of it."""
        if not self._sampler_apart:
            self._captured = None
        self._prompt_unknown &= sampler is self.sampler
        self.sampler = sampler

    def reset(self) -> None:
        """Forgets what was decoded, for a new prompt. What was captured stays."""
        self.cache.reset()
        self._spans.zero_()
        if self._prompt_unknown:
            self.sampler.prompt_length = None
        self._active, self._prompt_unknown = 0, False

    # --- checks --------------------------------------------------------------------------------------------------

    def _check_prompt(self, input_ids: Tensor) -> tuple[int, int]:
        if input_ids.dim() != 2 or input_ids.dtype != torch.int64 or input_ids.device != self._tokens.device:
            raise ValueError(
                f"input_ids: expected int64 of 2 dimensions on {self._tokens.device}, got {input_ids.dtype} of shape "
                f"{tuple(input_ids.shape)} on {input_ids.device}"
            )
        batch, length = input_ids.shape
        if not 1 <= batch <= self._rows or (self.mode != "eager" and batch != self._rows):
            rows = self._rows if self.mode != "eager" else f"1 to {self._rows}"
            raise ValueError(f"input_ids: expected {rows} rows, got {batch}")
        if length == 0:
            raise ValueError("input_ids: expected at least 1 token in a row, got none")
        return batch, length

    def _feed(self, tokens: Tensor) -> None:
        fed = self._tokens[: self._active]
        if (
            tokens.shape not in ((self._active,), (self._active, 1))
            or tokens.dtype != fed.dtype
            or tokens.device != fed.device
        ):
            raise ValueError(
                f"tokens: expected {fed.dtype} of shape ({self._active},) or ({self._active}, 1) on {fed.device}, as "
                f"captured, got {tokens.dtype} of shape {tuple(tokens.shape)} on {tokens.device}"
            )
        if tokens.data_ptr() != fed.data_ptr():
            fed.copy_(tokens.reshape(-1, 1))

    def _check_unchanged(self) -> None:
        """A replay reads the addresses that were captured."""
        if self._captured is None or not self._watch.changed():
            return
        if self._raise_on_change:
            raise ValueError(
                "model: expected the parameters and modules that were captured, got others (replaced, moved, converted "
                "or set otherwise since); on_change='recapture' captures again"
            )
        self._captured = None

    # --- the step ------------------------------------------------------------------------------------------------

    def _forward(
        self, tokens: Tensor, mask: Tensor | dict[str, Tensor] | None, positions: Tensor, columns: Tensor | None
    ) -> Tensor:
        """Logits (B, V) of the last of ``tokens``."""
        arguments: dict[str, Any] = {
            "input_ids": tokens,
            "attention_mask": mask,
            "position_ids": positions,
            self._cache_argument: self.cache,
            "use_cache": True,
        }
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = 1
        if "cache_position" in self._arguments:  # transformers 4
            arguments["cache_position"] = columns
        logits: Tensor = self.model(**arguments).logits[:, -1]
        return logits.float() if logits.dtype == torch.float64 else logits

    def _place(self) -> None:
        """Sets positions and spans to the length of the cache."""
        length = self.cache.common_length(self._active)
        spans = self._spans[: self._active, 0, 0]
        spans[:, 0].clamp_(max=length)
        spans[:, 1] = length
        self._positions[: self._active] = spans[:, 1:2] - spans[:, :1]
        self._length = length  # last, for an exception may come before

    def _advance(self, rows: int) -> Tensor:
        spans, positions = self._spans[:rows], self._positions[:rows]
        spans[:, :, :, 1].add_(1)
        mask: Tensor | dict[str, Tensor] = spans
        for kind, paged in self._paged.items():
            paged[:rows, ..., :2].copy_(spans)
            paged[:rows, 0, 0, 2:].copy_(self.cache.block_tables[kind][:rows])
        if self._paged:
            masks = {kind: paged[:rows] for kind, paged in self._paged.items()}
            mask = masks if len(masks) > 1 else next(iter(masks.values()))
        column = spans[0, 0, 0, 1:2] - 1 if "cache_position" in self._arguments else None
        logits = self._forward(self._tokens[:rows], mask, positions, column)
        positions.add_(1)
        return logits

    def _advance_and_pick(self) -> Tensor:
        logits = self._advance(self._rows)
        self.sampler(logits, out=self._tokens.view(-1))
        return logits

    def _replay(self) -> Tensor:
        with self.cache.step():
            if self._captured is not None:
                return self._captured()
            with self._watch.passing():
                self._captured = self._capture()
                return self._captured()

    def _draw(self, logits: Tensor, history: Tensor | None) -> None:
        self.sampler(logits, history, out=self._tokens.view(-1)[: self._active])

    def _result(self, logits: Tensor) -> Tensor:
        self.logits = logits
        tokens = self._tokens.view(-1)[: self._active]
        return tokens.clone() if self.clone else tokens

    @property
    def _sampler_apart(self) -> bool:
        """Whether the sampler is no part of what is captured: it costs next to nothing apart on a CPU, and another one
        then needs no new compilation; and one that looks at the tokens so far needs ever more of them."""
        return self.mode == "compiled" or self.sampler.needs_history

    def _capture(self) -> Callable[[], Tensor]:
        self._watch.note()
        step = (lambda: self._advance(self._rows)) if self._sampler_apart else self._advance_and_pick
        if self.mode == "compiled":
            return compiled(step)
        state = (self._tokens, self._positions, self._spans, self.cache.lengths, self.sampler.state)
        return capture_graph(step, state)
