"""From logits to tokens in one operator call."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aegis.decode.penalties import penalize_
from aegis.decode.sampler_settings import PerRow, bias_vector, checked_bias, column, seed_column, table
from aegis.ops import token_probabilities

_sample = torch.ops.aegis.sample.out

_ROW = 1  # of the columns of the state


class FusedLogitsSampler:
    """Draws the next token of each row of logits: ``sampler(logits) -> tokens``.

    Args:
        temperature: logits are divided by it; 0 or less takes the largest logit.
        top_k: keeps the k largest logits; None or below 1 is off, above the vocabulary is all of it.
        top_p: keeps the shortest prefix, in descending order, whose mass reaches it; None or 1 is off, 0 takes the
            largest logit.
        min_p: 0 to 1: keeps tokens of at least min_p times the largest probability; None is off.
        repetition_penalty: above 0: divides positive scores, and multiplies others, of tokens in ``input_ids``.
        presence_penalty: is taken once from the score of every token that was generated.
        frequency_penalty: is taken as often as the token was generated.
        logit_bias: token to a number that is added to its logit.
        seed: of all rows, or one for each. None: from torch's default generator, at the first call and at
            ``reset()``.
        strict: raise where a row is not valid. On CUDA this waits for the GPU in every call.
        keep_ties: keep all logits equal to the k-th, as Hugging Face does, rather than the first of them.
        do_sample: False takes the largest logit of every row, after bias and penalties.

    Numbers may be one for each row (a sequence or a 1-D tensor). They are applied in the order bias, repetition,
    frequency, presence, temperature, top_k, top_p, min_p: Hugging Face's.

    Each row has a random state of its own, a seed, a row number and a position, which is an int64 tensor on the
    logits' device (``state``, (batch, 4)) and advances by 1 in every call, also when a captured graph is replayed. With
    one seed, or none, rows are numbered, so that equal rows draw independently. With a seed for each row all are row
    0, and a row's tokens depend on its seed and its logits alone: not on the batch nor the place in it.

    What is returned is written again by the next call; pass ``out=`` or clone to keep it. After the first call with a
    shape nothing is allocated by the sampler, except with penalties (see ``penalties.penalize_``), which make
    temporary tensors as large as ``input_ids``.

    Under ``torch.compile`` and before a graph is captured, call once eagerly, or call :meth:`prepare`.

    Raises:
        ValueError: a number that cannot be (NaN, min_p above 1, a penalty of 0, half a token of top_k), or settings for
            different numbers of rows; names the argument.
        TypeError: what is no number.

    Cost: that of :func:`aegis.ops.sample`; with a bias or penalties, a float32 copy of the logits more.
    """

    def __init__(
        self,
        *,
        temperature: PerRow = 1.0,
        top_k: PerRow | None = None,
        top_p: PerRow | None = None,
        min_p: PerRow | None = None,
        repetition_penalty: PerRow = 1.0,
        presence_penalty: PerRow = 0.0,
        frequency_penalty: PerRow = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | Sequence[int] | Tensor | None = None,
        strict: bool = False,
        keep_ties: bool = False,
        do_sample: bool = True,
    ) -> None:
        settings = {
            "temperature": column("temperature", temperature if do_sample else 0.0, off=1),
            "top_k": column("top_k", top_k, off=0, whole=True, expected="a whole number"),
            "top_p": column("top_p", top_p, off=1),
            "min_p": column("min_p", min_p, off=0, low=0, high=1, expected="0 to 1"),
        }
        penalties = {
            "repetition_penalty": column(
                "repetition_penalty", repetition_penalty, off=1, low=sys.float_info.min, expected="a number above 0"
            ),
            "frequency_penalty": column("frequency_penalty", frequency_penalty, off=0),
            "presence_penalty": column("presence_penalty", presence_penalty, off=0),
        }
        self._cpu_settings, self._cpu_penalties = table(settings), table(penalties)
        self._per_row = {name: len(numbers) for name, numbers in (settings | penalties).items() if len(numbers) > 1}
        self._penalised = not torch.equal(self._cpu_penalties[:, 1:], torch.zeros_like(self._cpu_penalties[:, 1:]))
        self._penalised |= bool((self._cpu_penalties[:, 0] != 1).any())
        self._bias = checked_bias(logit_bias)
        self._seeds = seed_column(seed)
        self.strict = strict
        self.keep_ties = keep_ties
        self.prompt_length: int | None = None
        """Tokens of ``input_ids`` that were not generated: the length at the first call after reset(), the sampler's or
        that of a runner that it picks tokens for, unless set."""
        self._batch = -1
        self._vocabulary = -1
        self._device = torch.device("meta")
        self._all_state: Tensor | None = None

    @classmethod
    def from_generation_config(
        cls, config: Any, seed: int | Sequence[int] | Tensor | None = None, **options: Any
    ) -> FusedLogitsSampler:
        """A sampler that does what ``model.generate`` does with this Hugging Face ``GenerationConfig``.

        Reads do_sample, temperature, top_k, top_p, min_p, repetition_penalty, and those entries of sequence_bias that
        are single tokens; None means what it means to ``generate``, so top_k is 50 where it was never set. Ties are
        kept. ``options`` go to the constructor and win.

        Raises ValueError where the configuration asks for a filter that the sampler has not (top_h, typical_p,
        epsilon_cutoff, eta_cutoff), or for beams.
        """
        do_sample = bool(getattr(config, "do_sample", None))
        if (beams := getattr(config, "num_beams", None)) is not None and beams > 1:
            raise ValueError(f"num_beams: expected 1, got {beams}")
        unlike = {"top_h": (), "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,)}
        for name, off in unlike.items():
            value = getattr(config, name, None)
            if do_sample and value is not None and value not in off:
                raise ValueError(f"{name}: this filter is not one of the sampler's, got {value}")
        given: dict[str, Any] = {"do_sample": do_sample, "keep_ties": True}
        for name, default in (("temperature", 1.0), ("top_k", 50), ("top_p", 1.0), ("min_p", None)):
            value = getattr(config, name, None)
            given[name] = default if value is None else value
        if (penalty := getattr(config, "repetition_penalty", None)) is not None:
            given["repetition_penalty"] = penalty
        if bias := getattr(config, "sequence_bias", None):
            pairs = bias.items() if isinstance(bias, Mapping) else bias
            if any(len(tokens) != 1 for tokens, _ in pairs):
                raise ValueError("sequence_bias: expected single tokens, got a longer sequence")
            given["logit_bias"] = {tokens[0]: value for tokens, value in pairs}
        return cls(seed=seed, **(given | options))

    @property
    def state(self) -> Tensor:
        """(batch, 4) int64 on the logits' device: seed, row, position, domain of each row. Its memory may be written:
        ``sampler.state[2, 2] = 0`` begins row 2 anew. Raises RuntimeError before the first call."""
        if self._all_state is None:
            raise RuntimeError("state: expected a call or prepare() before it is asked for")
        return self._state

    @property
    def needs_history(self) -> bool:
        """Whether a call wants ``input_ids``."""
        return self._penalised

    def reset(self, seed: int | Sequence[int] | Tensor | None = None) -> None:
        """Begin anew at position 0: with ``seed`` if given, else with the seeds as they were, or fresh ones where there
        were none. The state's memory stays where it is, so captured graphs go on with it."""
        if seed is not None:
            self._seeds = seed_column(seed)
            if self._batch >= 0:
                self._check_rows(self._batch)
        self.prompt_length = None
        if self._all_state is not None:
            self._all_state.copy_(self._fresh_state(len(self._all_state)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare(self, batch: int, vocabulary: int, device: torch.device | str) -> None:
        """Make the tensors for logits of shape (batch, vocabulary) on ``device``: what a first call does.

        Rows keep their state where there was one. Raises ValueError where settings or seeds are given for another
        number of rows.
        """
        with torch.inference_mode(False):  # tensors made within could not be reset outside of it
            self._make(batch, vocabulary, torch.empty(0, device=device).device)  # with its index

    def __call__(
        self,
        logits: Tensor,
        input_ids: Tensor | None = None,
        *,
        out: Tensor | None = None,
        return_valid: bool = False,
        return_logprobs: bool = False,
    ) -> Any:
        """Draw a token for each row.

        Args:
            logits: (batch, vocabulary) float32, bfloat16 or float16, of any row stride. Left as they are.
            input_ids: (batch, length) int64: prompt and generated tokens, which penalties need. Ids outside of the
                vocabulary are passed over.
            out: (batch,) int64 on the logits' device.
            return_valid: also return which rows are valid, (batch,) bool: not those with a NaN or nothing above -inf.
            return_logprobs: also return the logarithm of each token's probability after all settings, (batch,)
                float32.

        Returns:
            tokens, (batch,) int64: ``out``, or a tensor that the next call writes again. With the flags, a tuple
            (tokens, valid, logprobs) of what was asked for.

        Raises:
            ValueError: a wrong shape or dtype, or penalties without ``input_ids``; ``strict`` and a row that is not
                valid, naming it.
        """
        logits = self._final(logits, input_ids)
        tokens = self._tokens if out is None else out
        valid = self._valid if return_valid or self.strict else None
        logprobs = self._logprobs if return_logprobs else None
        _sample(logits, self._settings, self._state, self.keep_ties, tokens=tokens, valid=valid, logprobs=logprobs)
        if self.strict and not self._valid.all():
            raise ValueError(f"logits: row {int(self._valid.int().argmin())} has a NaN, or nothing above -inf")
        if not (return_valid or return_logprobs):
            return tokens
        return (tokens, *((valid,) if return_valid else ()), *((logprobs,) if return_logprobs else ()))

    def probabilities(self, logits: Tensor, input_ids: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """What a call would draw from: (batch, vocabulary) float32, all settings applied. Draws nothing.

        Takes the arguments of a call and raises what that does, and returns ``out``, (batch, vocabulary) float32 whose
        rows may lie apart, or a fresh tensor. Cost: as :func:`aegis.ops.token_probabilities`.
        """
        logits = self._final(logits, input_ids)
        if self.strict and not (good := logits.amax(1) > -torch.inf).all():  # which NaN is not
            raise ValueError(f"logits: row {int(good.int().argmin())} has a NaN, or nothing above -inf")
        return token_probabilities(logits, self._settings, self.keep_ties, out=out)

    def scores(self, logits: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Logits after bias and penalties, (batch, vocabulary): the sampler's own memory, or the logits where there are
        none. Takes the arguments of a call and raises what that does."""
        self.prepare(*logits.shape, logits.device)
        return self._adjusted(logits, input_ids) if self._penalised or self._bias is not None else logits

    def for_rows(self, rows: Sequence[int]) -> FusedLogitsSampler:
        """A sampler for a batch whose row i has the settings of row ``rows[i]`` here. Its state is its own, and to be
        written before it draws."""
        other = copy.copy(self)
        if len(self._cpu_settings) > 1:
            other._cpu_settings = self._cpu_settings[list(rows)]
        if len(self._cpu_penalties) > 1:
            other._cpu_penalties = self._cpu_penalties[list(rows)]
        other._per_row = dict.fromkeys(self._per_row, len(rows))
        other._seeds = torch.zeros(1, dtype=torch.int64)
        other._batch, other._device, other._all_state = -1, torch.device("meta"), None
        return other

    @property
    def tables(self) -> tuple[Tensor, Tensor | None]:
        """After :meth:`prepare`: temperature, top_k, top_p and min_p, (1 or batch, 4) float32, and what is added to the
        logits, (vocabulary,) float32 or None. To be read."""
        return self._settings, self._bias_vector if self._bias else None

    @property
    def greedy(self) -> bool:
        """Whether every row takes its largest score."""
        return bool((self._cpu_settings[:, 0] <= 0).all())

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed, by a bias or by penalties, before anything else."""
        return self._penalised or self._bias is not None

    def after(self, processors: Sequence[Callable[[Tensor, Tensor], Tensor]]) -> ProcessedSampler:
        """This sampler behind Hugging Face logits processors, such as a ``LogitsProcessorList``."""
        return ProcessedSampler(processors, self)

    def as_processor(self) -> Callable[[Tensor, Tensor], Tensor]:
        """This sampler as a Hugging Face logits processor, the last of a list, for code that takes the largest score
        itself: ``model.generate(..., do_sample=False, logits_processor=[sampler.as_processor()])``. The scores it
        returns are 0 for the token drawn and -inf for all others."""

        def processor(input_ids: Tensor, scores: Tensor) -> Tensor:
            tokens = self(scores, input_ids)
            return torch.full_like(scores, -torch.inf).scatter_(1, tokens.unsqueeze(1), 0)

        return processor

    def _make(self, batch: int, vocabulary: int, device: torch.device) -> None:
        self._check_rows(batch)
        bias = bias_vector(self._bias, vocabulary).to(device) if self._bias else None
        moved = device != self._device
        old = self._all_state
        if old is None or moved or len(old) < batch:
            fresh = self._fresh_state(batch)
            if old is not None:
                kept = min(batch, len(old))
                if self._seeds is None:
                    fresh[:, 0] = old[0, 0].cpu()
                fresh[:kept] = old[:kept].cpu()
            self._all_state = fresh.to(device)
            self._all_tokens = torch.empty(batch, dtype=torch.int64, device=device)
            self._all_valid = torch.empty(batch, dtype=torch.bool, device=device)
            self._all_logprobs = torch.empty(batch, dtype=torch.float32, device=device)
        if moved:
            self._settings = self._cpu_settings.to(device)
            self._penalties = self._cpu_penalties.to(device)
        assert self._all_state is not None
        self._state, self._tokens = self._all_state[:batch], self._all_tokens[:batch]
        self._valid, self._logprobs = self._all_valid[:batch], self._all_logprobs[:batch]
        if self._penalised or self._bias:
            self._scores = torch.empty(batch, vocabulary + 1, device=device)  # one more, as penalize_ wants it
            self._bias_vector = bias
        self._batch, self._vocabulary, self._device = batch, vocabulary, device

    def _final(self, logits: Tensor, input_ids: Tensor | None) -> Tensor:
        """The logits with bias and penalties, as the operators take them."""
        if not isinstance(logits, Tensor):
            raise TypeError(f"logits: expected a tensor (batch, vocabulary), got {type(logits).__name__}")
        if logits.ndim != 2:
            raise ValueError(f"logits: expected a 2-D tensor (batch, vocabulary), got shape {list(logits.shape)}")
        batch, vocabulary = logits.shape
        if batch != self._batch or vocabulary != self._vocabulary or logits.device != self._device:
            self.prepare(batch, vocabulary, logits.device)
        if logits.requires_grad:
            logits = logits.detach()
        return self._adjusted(logits, input_ids) if self._penalised or self._bias is not None else logits

    def _adjusted(self, logits: Tensor, input_ids: Tensor | None) -> Tensor:
        """The logits with bias and penalties, in float32, in the sampler's own memory."""
        scores = self._scores[:, : self._vocabulary]
        scores.copy_(logits)
        if self._bias_vector is not None:
            scores += self._bias_vector
        if self._penalised:
            if not isinstance(input_ids, Tensor) or input_ids.dtype != torch.int64 or input_ids.ndim != 2:
                got = f"{input_ids.dtype} of {input_ids.ndim}" if isinstance(input_ids, Tensor) else repr(input_ids)
                raise ValueError(f"input_ids: penalties need an int64 tensor of 2 dimensions, got {got}")
            if len(input_ids) != self._batch:
                raise ValueError(f"input_ids: expected {self._batch} rows, as the logits have, got {len(input_ids)}")
            if self.prompt_length is None:
                self.prompt_length = input_ids.shape[1]
            penalize_(self._scores, input_ids, self.prompt_length, self._penalties)
        return scores

    def _check_rows(self, batch: int) -> None:
        seeds = {} if self._seeds is None else {"seed": len(self._seeds)}
        for name, rows in (self._per_row | seeds).items():
            if rows not in (1, batch):
                raise ValueError(f"{name}: expected {batch} rows, as the logits have, got {rows}")

    def _fresh_state(self, batch: int) -> Tensor:
        state = torch.zeros(batch, 4, dtype=torch.int64)
        state[:, 0] = torch.randint(2**63 - 1, ()) if self._seeds is None else self._seeds
        if self._seeds is None or len(self._seeds) == 1:
            state[:, _ROW] = torch.arange(batch)
        return state


class ProcessedSampler:
    """A sampler that hands its logits to Hugging Face logits processors first.

    Called like the sampler, with ``input_ids`` (batch, length) int64, the tokens so far. The processors get them and a
    float32 copy of the logits, (batch, vocabulary), which they may write, and return scores of that shape.

    Raises, when called:
        ValueError: no input_ids, a processor that returns no tensor, and what the sampler raises.

    Cost: beside the sampler's and the processors', a copy of the logits.
    """

    needs_history = True

    def __init__(self, processors: Sequence[Callable[[Tensor, Tensor], Tensor]], sampler: FusedLogitsSampler) -> None:
        self.processors = processors
        self.sampler = sampler

    def __call__(self, logits: Tensor, input_ids: Tensor | None = None, **options: Any) -> Any:
        if input_ids is None:
            raise ValueError("input_ids: logits processors need the tokens so far, got None")
        scores = logits.to(torch.float32, copy=True)
        for processor in self.processors:
            scores = processor(input_ids, scores)
            if not isinstance(scores, Tensor):
                raise ValueError(f"processors: expected {processor} to return scores, got {scores!r}")
        return self.sampler(scores.to(torch.float32).contiguous(), input_ids, **options)

    def reset(self, seed: int | Sequence[int] | Tensor | None = None) -> None:
        self.sampler.reset(seed)

    @property
    def state(self) -> Tensor:
        """Of the sampler: see :attr:`FusedLogitsSampler.state`."""
        return self.sampler.state

    @property
    def prompt_length(self) -> int | None:
        """Of the sampler: see :attr:`FusedLogitsSampler.prompt_length`."""
        return self.sampler.prompt_length

    @prompt_length.setter
    def prompt_length(self, length: int | None) -> None:
        self.sampler.prompt_length = length
