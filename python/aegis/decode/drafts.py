"""Where speculation gets its guesses: a smaller model, the target's first layers, or the text so far."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.compiled_round import CompiledGuesses
from aegis.decode.law import Domain, Law, draw

__all__ = [
    "Draft",
    "EarlyExit",
    "ModelDraft",
    "PromptLookup",
    "PromptLookupDraft",
    "Proposal",
    "first_layers",
    "make_draft",
]


@dataclass(frozen=True)
class EarlyExit:
    """A draft of the target's first ``layers`` layers, followed by its last norm and its head (as in LayerSkip,
    Elhoushi et al. 2024). It shares their weights and has a cache of its own.

    ``layers`` are at least 1 and fewer than the target's, and these lie in one list: the runner raises ValueError where
    not.
    """

    layers: int


@dataclass(frozen=True)
class PromptLookup:
    """A draft without a model: what followed the last time that the newest tokens occurred in the text (prompt lookup
    decoding, Saxena 2023; Yang et al. 2023).

    ``max_ngram`` newest tokens are looked for first, then fewer, down to ``min_ngram``.

    Raises:
        ValueError: not 1 <= min_ngram <= max_ngram.
        TypeError: numbers that are no ints.
    """

    max_ngram: int = 3
    min_ngram: int = 1

    def __post_init__(self) -> None:
        for name, size in (("max_ngram", self.max_ngram), ("min_ngram", self.min_ngram)):
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name}: expected an int, got {size!r}")
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(f"min_ngram: expected 1 to max_ngram ({self.max_ngram}), got {self.min_ngram}")

    def find(self, text: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
        """Up to ``most`` tokens that followed. Cost: a pass over the text for each length of n-gram."""
        return next((text[begin : begin + most] for begin in self.matches(text)), text[:0])

    def matches(self, text: np.ndarray[Any, Any]) -> Iterator[int]:
        """Where what followed begins: longest n-grams first, and of these the newest."""
        length = len(text)
        for size in range(min(self.max_ngram, length - 1), self.min_ngram - 1, -1):
            matches = np.ones(length - size, dtype=bool)  # of n-grams that begin there, the newest itself left out
            for offset in range(size):
                matches &= text[offset : offset + length - size] == text[length - size + offset]
            yield from (np.flatnonzero(matches)[::-1] + size).tolist()


class Proposal(NamedTuple):
    """What a draft guesses for each row of a range."""

    tokens: Tensor
    """(b, k) int64"""
    counts: list[int]
    """Of each row: how many of its k tokens are guesses, from the left."""
    probabilities: Tensor | None
    """(b, k, V) float32, what they were drawn from; None where they were not drawn."""


class Draft(Protocol):
    """Text is (rows, columns) int64, of which row r has ``lengths[r]``; guesses are written behind that."""

    before_pass: Callable[[], object] | None
    """Called before each pass of a model that guesses. What it raises ends that; settle() takes the rest back."""

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, chunk: int) -> None: ...

    def propose(self, count: int, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Proposal:
        """Guesses up to ``count`` tokens for rows first, first + 1, ... whose lengths and random states are given."""

    def follow(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Tensor | None:
        """(b,) int64: what the target may add to each text if it keeps all of it; None where there is no guess."""

    def settle(self, first: int, lengths: list[int]) -> None:
        """The rows' texts are so long now, whatever was guessed."""

    def retire(self, row: int) -> None: ...

    def reset(self) -> None: ...

    def use_law(self, law: Law) -> None:
        """What guesses are drawn from, from the next prompt on."""

    def entered(self) -> AbstractContextManager[Any]: ...


class ModelDraft:
    """A language model that guesses. It is fed what it has not seen, one or two tokens, and then its own guesses; or
    ``compiled`` does that where it can."""

    def __init__(self, decoder: BlockDecoder, law: Law, compiled: CompiledGuesses | None = None) -> None:
        self.decoder = decoder
        self.law = law
        self.compiled = compiled
        self.before_pass: Callable[[], object] | None = None

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, chunk: int) -> None:
        self.law.begin(input_ids.shape[1])
        self.decoder.prefill(input_ids, attention_mask, chunk, None)

    def catch_up(self, first: int, text: Tensor, lengths: list[int]) -> Tensor:
        """Feeds what the cache lacks of each row, as many tokens of all; logits (b, 1, V) for what follows."""
        batch = len(lengths)
        seen = self.decoder.lengths(first, batch)
        unseen = max(length - have for length, have in zip(lengths, seen, strict=True))
        self.decoder.keep(first, [max(length - unseen, 0) for length in lengths])
        ends = torch.tensor(lengths, device=text.device)
        columns = (ends[:, None] + torch.arange(-unseen, 0, device=text.device)).clamp(min=0)
        return self._feed(text[first : first + batch].gather(1, columns), first)[:, -1:]

    def propose(self, count: int, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Proposal:
        batch = len(lengths)
        if self.compiled is not None and count == self.compiled.count and self.compiled.takes(self.law, first, batch):
            guesses = self.compiled.guess(self.law, text, lengths, state)
            if guesses is not None:
                return Proposal(guesses[0], [count] * batch, guesses[1])
        logits = self.catch_up(first, text, lengths)
        ends = torch.tensor(lengths, device=text.device)
        own = text[first : first + batch]
        distributions = []
        for step in range(count):
            if step > 0:
                logits = self._feed(own.gather(1, ends[:, None] + (step - 1)), first)
            tokens, distribution = self._pick(logits, first, state, text, ends, step)
            distributions.append(distribution)
            own.scatter_(1, ends[:, None] + step, tokens[:, None])
        tokens = own.gather(1, ends[:, None] + torch.arange(count, device=text.device))
        q = torch.stack(distributions, 1) if count > 0 and not self.law.greedy else None  # type: ignore[arg-type]
        return Proposal(tokens, [count] * batch, q)

    def follow(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Tensor:
        """Draws with the number that the target will: near distributions then give the same token more often."""
        logits = self.catch_up(first, text, lengths)
        ends = torch.tensor(lengths, device=text.device)
        return self._pick(logits, first, state, text, ends, 0, Domain.BONUS)[0]

    def _feed(self, tokens: Tensor, first: int) -> Tensor:
        if self.before_pass is not None:
            self.before_pass()
        if self.compiled is not None and self.compiled.alone and self.law.by_tensors:
            return self.decoder.feed(tokens, first, eager=True)
        return self.decoder.feed(tokens, first)

    def _pick(
        self,
        logits: Tensor,
        first: int,
        state: Tensor,
        text: Tensor,
        ends: Tensor,
        step: int,
        domain: Domain = Domain.DRAFT,
    ) -> tuple[Tensor, Tensor | None]:
        if self.law.greedy:
            if self.law.plain:  # the sampler would take a tenth as long as a small draft's pass
                return logits[:, 0].argmax(1), None
            return self.law.pick(logits, first, state, text, ends + step)[:, 0], None
        distribution = self.law.probabilities(logits, first, text, ends + step)[:, 0]
        here = state.clone()
        here[:, 2] += step
        here[:, 3] = domain
        return draw(distribution, here), distribution

    def settle(self, first: int, lengths: list[int]) -> None:
        self.decoder.keep(first, [length - 1 for length in lengths])

    def retire(self, row: int) -> None:
        self.decoder.retire(row)

    def reset(self) -> None:
        self.decoder.reset()

    def use_law(self, law: Law) -> None:
        self.law = law

    def entered(self) -> AbstractContextManager[Any]:
        return self.decoder.runner


class PromptLookupDraft:
    """A :class:`PromptLookup` at work."""

    def __init__(self, lookup: PromptLookup) -> None:
        self.lookup = lookup
        self.before_pass: Callable[[], object] | None = None  # there are no passes

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, chunk: int) -> None:
        pass

    def propose(self, count: int, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Proposal:
        host = text[first : first + len(lengths), : max(lengths)].cpu().numpy()
        found = [self.lookup.find(row[:length], count) for row, length in zip(host, lengths, strict=True)]
        counts = [len(tokens) for tokens in found]
        guesses = np.zeros((len(found), max(counts)), dtype=np.int64)
        for row, tokens in enumerate(found):
            guesses[row, : len(tokens)] = tokens
        return Proposal(torch.from_numpy(guesses).to(text.device), counts, None)

    def follow(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Tensor | None:
        guess = self.propose(1, first, text, lengths, state)
        return guess.tokens[:, 0] if min(guess.counts) > 0 else None

    def settle(self, first: int, lengths: list[int]) -> None:
        pass

    def retire(self, row: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def use_law(self, law: Law) -> None:
        pass

    def entered(self) -> AbstractContextManager[Any]:
        return nullcontext()


def make_draft(
    given: Any, target: Any, decoder: Callable[[Any], BlockDecoder], law: Law, at_once: int, *, alone: bool
) -> tuple[Draft, float]:
    """What the argument ``draft`` of a runner means, and what one of its guesses costs beside a pass of the target.

    Args:
        decoder: makes that of a model.
        law: what a model guesses by.
        at_once: guesses that are compiled as one function; 0 where none are.
        alone: as of :class:`CompiledGuesses`.

    Raises:
        ValueError: what is no draft, or a model that does not go with the target.
    """
    if given is None or isinstance(given, PromptLookup):
        return PromptLookupDraft(given or PromptLookup()), 0.0
    model = first_layers(target, given.layers) if isinstance(given, EarlyExit) else given
    if not hasattr(model, "config"):
        raise ValueError(f"draft: expected a model, PromptLookup or EarlyExit, got {type(given).__name__}")
    try:
        made = decoder(model)
    except ValueError as error:
        raise ValueError(f"draft: {error}") from error
    mine, theirs = (m.config.get_text_config(decoder=True).vocab_size for m in (target, model))
    if mine != theirs:
        raise ValueError(f"draft: expected the target's vocabulary of {mine} tokens, got {theirs}")
    if model.device != target.device:
        raise ValueError(f"draft: expected a model on {target.device}, as the target, got {model.device}")
    size, whole = (sum(p.numel() for p in m.parameters()) for m in (model, target))
    compiled = CompiledGuesses(made, at_once, alone=alone) if at_once else None
    return ModelDraft(made, law, compiled), size / max(whole, 1)


def first_layers(model: Any, layers: int) -> Any:
    """A model of the first layers of another, its norm and its head: the same modules, in a list of their own.

    Raises:
        ValueError: not at least one layer and fewer than there are; a model whose layers are not in one list.
    """
    config = model.config.get_text_config(decoder=True)
    total = config.num_hidden_layers
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers < total:
        raise ValueError(f"layers: expected 1 to {total - 1}, fewer than the target's {total}, got {layers!r}")
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(found) != 1 or config is not model.config:
        raise ValueError(f"draft: expected a target whose layers are one list, got {type(model).__name__}")
    shorter = copy.copy(config)
    shorter.num_hidden_layers = layers
    if getattr(config, "layer_types", None) is not None:
        shorter.layer_types = list(config.layer_types)[:layers]
    return _rebuilt(model, found[0], layers, shorter)


def _rebuilt(module: Any, target: tuple[Any, str], layers: int, config: Any) -> Any:
    """A copy of the modules on the way to the list, with the short list in it; everything beside it is shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    if getattr(module, "config", None) is not None:
        twin.config = config
    if module is target[0]:
        twin._modules[target[1]] = nn.ModuleList(list(module._modules[target[1]])[:layers])
        return twin
    for name, child in module._modules.items():
        if child is not None and any(inner is target[0] for inner in child.modules()):
            twin._modules[name] = _rebuilt(child, target, layers, config)
    return twin
