"""A round of speculation as two compiled functions: all guesses of a draft, and the target's verdict on them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aegis.decode.accept import Verified, accept_by_ratio, accept_equal
from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.law import Domain, Law, draw

__all__ = ["MOST_GUESSES", "CompiledGuesses", "CompiledVerdicts"]

MOST_GUESSES = 8
"""Of one function: it has the model's layers once for each, and takes as much longer to compile."""


class _Form(NamedTuple):
    """What is compiled in: another form of a law is compiled anew. Numbers are tensors, and may change."""

    greedy: bool
    keep_ties: bool
    rows_of_settings: int
    biased: bool
    drawn: bool
    """Whether guesses come with what they were drawn from."""


class _Round:
    """What both functions have in common.

    Args:
        decoder: the model, whose passes go over all rows of its cache.
        count: K, of guesses.
    """

    def __init__(self, decoder: BlockDecoder, count: int) -> None:
        self.count = count
        self._decoder = decoder
        self._cache = decoder.cache
        self._forward = decoder.static_pass
        self._vocabulary = decoder.model.config.get_text_config(decoder=True).vocab_size

    def takes(self, law: Law, first: int, batch: int) -> bool:
        """Whether it can be asked with this law, for rows first, first + 1, ..."""
        return law.by_tensors and self._forward.goes_over(first, batch)

    def _called(self, law: Law, text: Tensor, drawn: bool, *tensors: Tensor | None) -> Tensor:
        settings, bias = law.tables(len(text), self._vocabulary, text.device)
        form = _Form(law.greedy, law.sampler.keep_ties, len(settings), bias is not None, drawn)
        key, tensors = (type(self), self.count, form), (text, self._decoder.padding, settings, bias, *tensors)
        with self._cache.step(self.count + 1, len(text)):
            return self._forward.run(key, lambda *tensors: self._run(form, *tensors), *tensors)

    def _run(self, form: _Form, *tensors: Tensor) -> Tensor:
        raise NotImplementedError


class CompiledGuesses(_Round):
    """All guesses of a model. It is fed the last two tokens of each row, whether or not its cache had one of them
    before: so one function serves after every round. Then it is fed its own guesses.

    Args:
        decoder, count: as above.
        alone: whether passes beside these, at the end of a text, are too few to be compiled.
    """

    def __init__(self, decoder: BlockDecoder, count: int, *, alone: bool) -> None:
        super().__init__(decoder, count)
        self.alone = alone

    def guess(self, law: Law, text: Tensor, lengths: list[int], state: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """(rows, K) int64 guesses and, where they were drawn, (rows, K, V) float32, from what. They are those of
        :meth:`ModelDraft.propose`, with the same random numbers.

        None where the model has not seen more than a token of a row; nothing has changed.
        """
        behind = [length - 2 for length in lengths]
        if any(have < want for have, want in zip(self._decoder.lengths(0, len(lengths)), behind, strict=True)):
            return None
        self._decoder.keep(0, behind)
        guesses, *probabilities = self._called(law, text, not law.greedy, state)
        return guesses, probabilities[0] if probabilities else None

    def _run(  # type: ignore[override]
        self, form: _Form, text: Tensor, padding: Tensor, settings: Tensor, bias: Tensor | None, state: Tensor
    ) -> tuple[Tensor, ...]:
        span = self._cache.lengths[:, None] + torch.arange(2, device=text.device)
        fed = text.gather(1, span)
        tokens, distributions = [], []
        for step in range(self.count):
            scores = _scores(self._forward(fed, padding, 1), bias)
            here = state.clone()
            here[:, 2] += step
            if form.drawn:
                here[:, 3] = Domain.DRAFT
                q = torch.ops.aegis.token_probabilities(scores, settings, form.keep_ties)
                distributions.append(q)
                token = draw(q, here)
            elif bias is None:
                token = scores.argmax(1)
            else:
                token = torch.ops.aegis.sample(scores, settings, here, form.keep_ties)[0]
            tokens.append(token)
            fed = token[:, None]
        guesses = torch.stack(tokens, 1)
        return (guesses, torch.stack(distributions, 1)) if form.drawn else (guesses,)


class CompiledVerdicts(_Round):
    """A pass of the target over the last token of each row and K guesses, and which of these are kept.

    Args:
        decoder, count: as above.
    """

    def __init__(self, decoder: BlockDecoder, count: int) -> None:
        super().__init__(decoder, count)
        with torch.inference_mode(False):
            self._counts = torch.full((self._cache.batch_size,), count, dtype=torch.int64, device=decoder.model.device)
        self._counted = count

    def verify(
        self, law: Law, text: Tensor, guesses: Tensor, probabilities: Tensor | None, count: int, state: Tensor
    ) -> Verified:
        """Writes the new tokens behind each text.

        Args:
            text: (rows, columns): the target has seen all of each but its last token.
            guesses: (rows, K) int64.
            probabilities: (rows, K, V) float32, what they were drawn from; None where they were not drawn.
            count: the guesses that count, 1 to K, from the left.
            state: (rows, 4), of the random numbers of the first new position.
        """
        if count != self._counted:
            self._counted = -1
            self._counts.fill_(count)
            self._counted = count
        q = None if law.greedy else probabilities
        result = self._called(law, text, q is not None, state, guesses, self._counts, q)
        host = result.tolist()
        proposed = [count] * len(host)
        return Verified(result[:, :-1], [row[:-1] for row in host], [row[-1] for row in host], proposed, proposed)

    def _run(  # type: ignore[override]
        self,
        form: _Form,
        text: Tensor,
        padding: Tensor,
        settings: Tensor,
        bias: Tensor | None,
        state: Tensor,
        guesses: Tensor,
        counts: Tensor,
        q: Tensor | None,
    ) -> Tensor:
        """(rows, K + 2) int64: guesses that were kept, what follows them, what is of no meaning; and, last, how many
        were kept."""
        positions = self.count + 1
        span = self._cache.lengths[:, None] + torch.arange(positions, device=text.device)
        fed = torch.cat([text.gather(1, span[:, :1]), guesses], 1)
        logits = self._forward(fed, padding, positions)
        scores = _scores(logits, bias)
        if len(settings) > 1:
            settings = settings.repeat_interleave(positions, 0)
        if q is not None:
            p = torch.ops.aegis.token_probabilities(scores, settings, form.keep_ties)
            kept, following = accept_by_ratio(p.view(logits.shape), q, guesses, state, counts)
        else:
            states = state[:, None].repeat(1, positions, 1)
            states[:, :, 2] += torch.arange(positions, device=state.device)
            picked = torch.ops.aegis.sample(scores, settings, states.view(-1, 4), form.keep_ties)[0]
            kept, following = accept_equal(picked.view(len(text), positions), guesses, counts)
        fresh = torch.cat([guesses, guesses[:, :1]], 1).scatter(1, kept[:, None], following[:, None])
        text.scatter_(1, span + 1, fresh)
        return torch.cat([fresh, kept[:, None]], 1)


def _scores(logits: Tensor, bias: Tensor | None) -> Tensor:
    """(rows * positions, V)"""
    scores = logits.reshape(-1, logits.shape[-1])
    return scores if bias is None else scores.float() + bias
