"""Several tokens for one pass of a large model: a draft guesses, the target verifies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from aegis.decode.accept import Verified, accept_by_ratio, accept_equal
from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.compiled_pass import checked_mode
from aegis.decode.compiled_round import MOST_GUESSES, CompiledVerdicts
from aegis.decode.draft_length import DraftLength
from aegis.decode.drafts import ModelDraft, PromptLookup, make_draft
from aegis.decode.huggingface import check_model, longest_text
from aegis.decode.law import Law
from aegis.decode.overlap import OverlappedDraft
from aegis.decode.runner import PREFILL_CHUNK
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler
from aegis.decode.speculative_stats import SpeculativeStats
from aegis.decode.stopping import end_tokens, until_end
from aegis.decode.tree_verify import TreeVerifier
from aegis.decode.trees import TokenTree, as_tree

__all__ = ["SpeculativeFastRunner", "Step"]


class Step(NamedTuple):
    """What a step of a :class:`SpeculativeFastRunner` brought."""

    tokens: Tensor
    """(B, k + 1) int64: the new tokens of each row; what lies beyond its count is of no meaning."""
    counts: list[int]
    """New tokens of each row, 1 to k + 1; 0 for a row that had ended."""


class SpeculativeFastRunner:
    """Decodes with a target model that verifies, in one pass, what a cheaper draft has guessed.

    Greedy tokens are those that the target alone would give, and sampled ones follow the target's distribution,
    whatever the draft: guesses are kept with the chance min(1, p/q) and replaced from max(p - q, 0) (Leviathan et al.
    2023; Chen et al. 2023). Where the target or the draft is greedy, or the draft draws nothing, guesses are kept as
    long as they are what the target's own sampler picks there: then tokens are those of ``aegis.generate`` with the
    same seed. "The same" is up to the rounding of sums, which depends on how many tokens a pass has. ::

        with aegis.SpeculativeFastRunner(target, draft, num_speculative_tokens=4) as runner:
            first = runner.prefill(input_ids)
            tokens, counts = runner.step()              # 1 to 5 tokens for each row

    Args:
        target: a decoder-only model of transformers, as :class:`~aegis.CUDAGraphFastRunner` takes it.
        draft: another, of the same vocabulary; a :class:`PromptLookup` (default), which needs no model; or
            :class:`EarlyExit`, the target's first layers.
        num_speculative_tokens: guesses for one pass, at most; fewer where there is no room for them, or ``adaptive``.
            Up to 7 for one row are cheapest on a CPU.
        batch_size: rows; ``prefill`` may bring fewer. Each keeps what it accepts, so that lengths differ.
        max_cache_len: tokens that a row can hold. Without: the target's max_position_embeddings.
        sampler: of the target; without, greedy. Amid a text, positions in its state follow from the rows' lengths.
        draft_sampler: of the draft, whose random numbers are named by the target's sampler. Without: greedy if the
            target is, else as the target's. No effect on what comes out but the speed.
        eos_token_id: tokens that end a row; what was accepted behind one is taken back.
        adaptive: chooses the number of guesses before each pass by how many were kept so far, out of 1 to
            num_speculative_tokens. It is the same for all rows, so that a row's sampled tokens may then depend on its
            batch mates (their distribution does not).
        tree: guesses in a tree instead of one after another, all verified in one pass: a :class:`TokenTree`, or the
            widths of its levels, as ``(4, 2, 1)``. Its depth takes the place of num_speculative_tokens. A draft model
            guesses its likeliest tokens if its sampler is greedy, and else draws them without replacement: those are
            kept by multi-round rejection (Miao et al. 2023), the others if the target's sampler picks them. A
            PromptLookup fills as many nodes with what followed several matches. The cache has room for as many tokens
            as before; near its end trees are smaller. A pass over n nodes costs what n + 1 tokens cost: see the guide.
        overlap: drafts in a thread, ahead, while the target verifies: the block that follows if all guesses of this one
            are kept and the draft knows what the target adds, in every row; else that was in vain. Tokens are the same.
            Logits processors that both sample with are called by both threads. Only on a CPU; it gains where the
            target leaves cores and memory bandwidth unused, and loses where it does not.
        paged: whether the caches, of the target and of a draft model, are :class:`~aegis.PagedKVCache`.
        prefill_chunk: of those: the most tokens of a row that prefill feeds at a time; bounds pools of sliding layers.
        mode: ``"eager"`` (default), or ``"compiled"``: all guesses of a pass, and the target's verdict on them, are one
            function each, through ``torch.compile``. First calls compile, for tens of seconds; keep the runner. See the
            guide for what stays eager or needs another compilation. Not with a tree, overlap or pages.

    Raises:
        ValueError: models that cannot be decoded, or whose vocabularies or devices differ; fewer than 1 guess; a tree
            that is none, or wider than the vocabulary; overlap on another device than a CPU, or with a tree; a
            prefill_chunk without pages.
        TypeError: numbers that are no ints.

    On CUDA, no pass is captured in a graph. One thread at a time. With ``overlap``, a step also raises RuntimeError
    where the draft's thread has ended, or what it says is about another text (each guess comes with a checksum of the
    text), and TimeoutError where it does not answer for minutes; a process that forks amid a text cannot go on in the
    child.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        num_speculative_tokens: int = 4,
        *,
        batch_size: int = 1,
        max_cache_len: int | None = None,
        sampler: FusedLogitsSampler | ProcessedSampler | None = None,
        draft_sampler: FusedLogitsSampler | ProcessedSampler | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        adaptive: bool = False,
        tree: TokenTree | Sequence[int] | None = None,
        overlap: bool = False,
        paged: bool = False,
        prefill_chunk: int | None = None,
        mode: Literal["auto", "eager", "compiled"] = "auto",
    ) -> None:
        check_model(target)
        if isinstance(num_speculative_tokens, bool) or not isinstance(num_speculative_tokens, int):
            raise TypeError(f"num_speculative_tokens: expected an int, got {num_speculative_tokens!r}")
        if num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens: expected at least 1, got {num_speculative_tokens}")
        for name, given in (("sampler", sampler), ("draft_sampler", draft_sampler)):
            if given is not None and not isinstance(given, (FusedLogitsSampler, ProcessedSampler)):
                raise ValueError(f"{name}: expected a FusedLogitsSampler, alone or after processors, got {given!r}")
        self.mode = checked_mode(mode, eager=overlap or paged or tree is not None)
        config = target.config.get_text_config(decoder=True)
        max_cache_len = longest_text(config) if max_cache_len is None else max_cache_len
        shape = None if tree is None else as_tree(tree)
        if shape is not None:
            num_speculative_tokens = shape.max_depth
            if (widest := max(len(shape.children(node)) for node in shape.inner)) > config.vocab_size:
                raise ValueError(f"tree: expected at most {config.vocab_size} tokens side by side, got {widest}")
        if overlap and target.device.type != "cpu":
            raise ValueError(f"overlap: expected models on a CPU, got some on {target.device}")
        if overlap and shape is not None:
            raise ValueError(f"overlap: expected False with a tree, whose guesses are made in one go, got {overlap!r}")
        nodes = num_speculative_tokens if shape is None else len(shape)
        self.model = target
        self.num_speculative_tokens = num_speculative_tokens
        varies = adaptive or draft is None or isinstance(draft, PromptLookup)
        sizes = range(1 if varies else nodes + 1, nodes + 2) if self.mode == "compiled" else ()
        decoder = partial(BlockDecoder, rows=batch_size, max_cache_len=max_cache_len, paged=paged, chunk=prefill_chunk)
        self._decoder = decoder(target, rollback=nodes + 2, sampler=sampler, compiled=sizes)
        self._law = Law(self._decoder.runner.sampler)
        self._verdicts = CompiledVerdicts(self._decoder, nodes) if self.mode == "compiled" else None
        self._draft_sampler = draft_sampler
        at_once = num_speculative_tokens if self.mode == "compiled" and num_speculative_tokens <= MOST_GUESSES else 0
        # A draft that works ahead takes back up to two blocks.
        decoder = partial(decoder, rollback=2 * nodes + 2, compiled=(1, 2) if self.mode == "compiled" else ())
        self._draft, cost = make_draft(draft, target, decoder, self._draft_law(), at_once, alone=not adaptive)
        self._tree = None if shape is None else TreeVerifier(shape, self._decoder, self._draft)
        self._length = DraftLength(num_speculative_tokens, cost, adaptive=adaptive)
        self._overlapped: OverlappedDraft | None = None
        if overlap:
            self._overlapped = OverlappedDraft(
                self._draft, self._length, batch_size, num_speculative_tokens, max_cache_len
            )
            self._draft = self._overlapped
        self._ends = frozenset(end_tokens(eos_token_id).tolist())
        self._stats = SpeculativeStats()
        self._stack: ExitStack | None = None
        size = batch_size, max_cache_len + num_speculative_tokens + 2
        with torch.inference_mode(False):
            self._text_memory = torch.zeros(size, dtype=torch.int64, device=target.device)
        self._text = self._text_memory  # of the rows of the batch
        self._lengths: list[int] = []  # of each row's text; its last token has not been fed
        self._origins = torch.zeros(0)  # of each row: what its length is counted from in the sampler's state
        self._ended: list[bool] = []
        self._retired: dict[int, Tensor] = {}  # texts of rows whose place in the cache serves as filling

    def _draft_law(self) -> Law:
        if self._draft_sampler is not None:
            return Law(self._draft_sampler)
        return Law(FusedLogitsSampler(do_sample=False) if self._law.greedy else self._decoder.runner.sampler)

    def __enter__(self) -> SpeculativeFastRunner:
        if self._stack is not None:
            raise RuntimeError("SpeculativeFastRunner: expected to be entered once at a time, got entered again")
        with ExitStack() as stack:
            stack.enter_context(self._decoder.runner)
            stack.enter_context(self._draft.entered())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    # --- decoding ------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> Any:
        """The target's: it holds the text of each row but its last token."""
        return self._decoder.cache

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row so far, prompt and padding included."""
        return list(self._lengths)

    @property
    def ended(self) -> list[bool]:
        """Which rows met an end token, or were ended by :meth:`end`."""
        return list(self._ended)

    def text(self, row: int) -> Tensor:
        """(n,) int64: all tokens of a row so far, padding included. Raises IndexError where there is no such row."""
        self._check_row(row)
        return self._retired.get(row, self._text[row])[: self._lengths[row]].clone()

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, *, chunk: int = PREFILL_CHUNK) -> Tensor:
        """Feeds the prompts, to both models, and returns the token that follows each, (B,) int64.

        Args and errors are those of :meth:`CUDAGraphFastRunner.prefill`; RuntimeError where there is a text already.
        """
        if self._stack is None:
            raise RuntimeError("SpeculativeFastRunner: expected to be used inside `with runner:`")
        if self._lengths:
            raise RuntimeError("prefill: expected reset() before another prompt")
        try:
            self._draft.prefill(input_ids, attention_mask, chunk)
            tokens = self._decoder.prefill(input_ids, attention_mask, chunk, None)  # last, since it draws
            rows, length = input_ids.shape
            self._law.begin(length)
            self._text = self._text_memory[:rows]
            self._text[:, :length] = input_ids
            self._text[:, length] = tokens
            self._origins = self._law.sampler.state[:, 2] - (length + 1)
            self._ended = [token in self._ends for token in tokens.tolist()]
            self._lengths = [length + 1] * rows
            return tokens.clone()
        except BaseException:
            self.reset()
            raise

    @torch.no_grad()
    def step(self, *, max_tokens: int | None = None) -> Step:
        """One pass of the target over every row that has not ended: 1 to k + 1 new tokens each.

        Args:
            max_tokens: no row gets more.

        Raises:
            ValueError: a row has no room for another token; nothing has changed.
            RuntimeError: there is no text, or every row has ended.
        """
        if self._stack is None or not self._lengths:
            raise RuntimeError("step: expected prefill to have been called, inside `with runner:`")
        live = [row for row, ended in enumerate(self._ended) if not ended]
        if not live:
            raise RuntimeError("step: expected a row that has not ended")
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise ValueError(f"max_tokens: expected at least 1, got {max_tokens}")
        longest = max(self._lengths[row] for row in live)
        room = self.cache.max_cache_len - longest
        if room < 0:
            raise ValueError(f"cache: expected room for another token, but a row holds {self.cache.max_cache_len}")
        if max_tokens is not None:
            room = min(room, max_tokens - 1)
        first, last = live[0], live[-1]
        for row in range(first, last):
            if self._ended[row] and row not in self._retired:
                self._draft.retire(row)
                self._decoder.retire(row)
                self._retired[row] = self.text(row)
        tokens, counts = self._pass(min(self._length.now, room), first, last + 1)
        before = [0] * first
        after = [0] * (len(self._lengths) - last - 1)
        return Step(tokens, before + counts + after)

    def _pass(self, guesses: int, first: int, stop: int) -> tuple[Tensor, list[int]]:
        rows = range(first, stop)
        # A row that has ended amid the others is carried along without tokens, so that they stay side by side.
        ended = [self._ended[row] for row in rows]
        lengths = [1 if gone else self._lengths[row] for row, gone in zip(rows, ended, strict=True)]
        state = self._law.sampler.state[first:stop]
        # Where the last pass failed, models may hold more than the texts, and the random numbers be ahead of them.
        self._settle(first, lengths)
        state[:, 2] = self._origins[first:stop] + torch.tensor(self._lengths[first:stop], device=state.device)
        clock = [time.perf_counter()]
        verified = None
        if self._tree is not None and guesses > 0:
            verified = self._tree.run(self._law, guesses, first, self._text, lengths, state, clock)
        if verified is None:
            verified = self._in_line(guesses, first, lengths, state, clock)
        fresh, tokens, kept, proposed, nodes = verified
        counts, met = until_end(tokens, kept, self._ends)
        counts = [0 if gone else n for n, gone in zip(counts, ended, strict=True)]
        self._settle(first, [length + n for length, n in zip(lengths, counts, strict=True)])
        state[:, 2] += torch.tensor(counts, device=state.device)
        grown = [length + n for length, n in zip(self._lengths[first:stop], counts, strict=True)]
        over = [gone or now for gone, now in zip(ended, met, strict=True)]
        # The pass counts for all rows or for none: there is no call between, where an exception could come.
        self._lengths[first:stop], self._ended[first:stop] = grown, over
        clock.append(time.perf_counter())

        noted = [row for row in zip(proposed, kept, nodes, ended, strict=True) if not row[3]]
        self._length.note([row[:2] for row in noted])
        self._stats.note([row[:2] for row in noted], sum(row[2] for row in noted), sum(counts), clock)
        if len(rows) < len(self._lengths):
            fresh = torch.nn.functional.pad(fresh, (0, 0, first, len(self._lengths) - stop))
        return fresh, counts

    def _in_line(self, guesses: int, first: int, lengths: list[int], state: Tensor, clock: list[float]) -> Verified:
        """A pass over guesses that follow one another."""
        verdicts, whole = self._verdicts, guesses
        if guesses == 0 or (verdicts is not None and not verdicts.takes(self._law, first, len(lengths))):
            verdicts = None
        if verdicts is not None and isinstance(self._draft, ModelDraft) and self._length.now == verdicts.count:
            # Where fewer may be kept than there is room for, what is compiled guesses and verifies as many as ever.
            whole = verdicts.count if max(lengths) + verdicts.count <= self.cache.max_cache_len else guesses
        proposal = self._draft.propose(whole, first, self._text, lengths, state)
        clock.append(time.perf_counter())

        if verdicts is not None and min(proposal.counts) == verdicts.count:
            guessed = proposal.tokens, proposal.probabilities
            verified = verdicts.verify(self._law, self._text, *guessed, guesses, state)
            clock.append(time.perf_counter())
            return verified

        count = proposal.tokens.shape[1]
        ends = torch.tensor(lengths, device=state.device)
        span = ends[:, None] + torch.arange(-1, count, device=state.device)
        own = self._text[first : first + len(lengths)]
        own.scatter_(1, span[:, 1:], proposal.tokens)
        logits = self._decoder.feed(own.gather(1, span), first)
        clock.append(time.perf_counter())

        if proposal.probabilities is not None and not self._law.greedy:
            p = self._law.probabilities(logits, first, self._text, ends)
            kept, following = accept_by_ratio(p, proposal.probabilities, proposal.tokens, state)
        else:
            picked = self._law.pick(logits, first, state, self._text, ends)
            kept, following = accept_equal(picked, proposal.tokens, torch.tensor(proposal.counts, device=state.device))
        own.scatter_(1, ends[:, None] + kept[:, None], following[:, None])
        fresh = own.gather(1, span + 1)
        return Verified(fresh, fresh.tolist(), kept.tolist(), proposal.counts, proposal.counts)

    def _settle(self, first: int, lengths: list[int]) -> None:
        """Takes back what the models hold of texts beyond these lengths; the last token of each has not been fed."""
        self._decoder.keep(first, [length - 1 for length in lengths])
        self._draft.settle(first, lengths)

    def end(self, row: int, length: int | None = None) -> None:
        """No more tokens for this row; those beyond ``length`` are taken back.

        Raises:
            IndexError: no such row.
            ValueError: more than the row has, or less than a token.
        """
        self._check_row(row)
        if length is not None and not 1 <= length <= self._lengths[row]:
            raise ValueError(f"length: expected 1 to {self._lengths[row]}, the row's, got {length}")
        self._ended[row] = True
        if length is None or length == self._lengths[row]:
            return
        self._lengths[row] = length
        if row not in self._retired:
            self._settle(row, [length])

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self._lengths):
            raise IndexError(f"row: expected one of {len(self._lengths)}, got {row}")

    def reset(self) -> None:
        """Forgets the text, for a new prompt. The samplers' states stay as they are, and so does what was counted."""
        self._draft.reset()  # which may fail, where it waits for a thread
        self._decoder.reset()
        self._length.reset()
        self._lengths, self._ended = [], []
        self._retired.clear()

    def use_sampler(self, sampler: FusedLogitsSampler | ProcessedSampler) -> None:
        """Draws with another sampler from the next prompt on; so does the draft, unless it was given its own.

        Raises:
            RuntimeError: amid a text: reset() comes first.
            ValueError: processors that keep a state. Nothing has changed.
        """
        if self._lengths:
            raise RuntimeError("use_sampler: expected reset() before, since a text goes on with its sampler")
        self._law = Law(sampler)
        self._decoder.runner.use_sampler(sampler)
        self._draft.use_law(self._draft_law())

    def stats(self) -> dict[str, float]:
        """What was decoded since the runner was made: ``passes`` of the target, ``tokens`` that came of them,
        ``proposed`` and ``accepted`` guesses, ``acceptance_rate``, ``tokens_per_pass`` and ``nodes_per_pass`` (of a
        row), and the seconds spent: ``draft_seconds``, ``wait_seconds`` (of the target for guesses: the same, unless
        they overlap), ``verify_seconds`` and ``accept_seconds``. On CUDA the latter are of the host. Of a tree, as many
        guesses count as proposed as its longest path has; all are nodes. ``passes_ahead`` are those whose guesses were
        begun before they were asked for."""
        stats = self._stats.as_dict()
        if self._overlapped is not None:
            tally = self._overlapped.tally
            stats |= {"draft_seconds": tally.seconds, "passes_ahead": tally.ahead}
        return stats
