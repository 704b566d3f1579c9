"""The thread in which a draft guesses while its target verifies."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from threading import Thread, current_thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aegis.arena import Arena
from aegis.decode.drafts import Draft, Proposal
from aegis.decode.overlap_entries import Kind, Order, block, order
from aegis.decode.spsc_ring import SpscRing
from aegis.decode.text_checksum import TextChecksum

__all__ = ["DraftThread", "Tally", "Texts"]


class _Overtaken(Exception):
    """What is being drafted is not wanted any more."""


@dataclass
class Tally:
    """Written by the thread alone."""

    seconds: float = 0.0
    """That the draft was at work."""
    ahead: int = 0
    """Blocks that were drafted, or begun, before they were asked for, and were what was asked for."""


@dataclass
class Texts:
    """The rows that are being decoded, as one of both threads knows them; each has its own."""

    first: int
    text: Tensor
    lengths: list[int]
    """Of each row of the range; 1 for one that has ended, and does not grow."""
    state: Tensor
    """(b, 4), of the random numbers of each row's next position."""

    def __post_init__(self) -> None:
        with torch.inference_mode(False):  # tensors made in that mode could not be written outside of it
            self.state = self.state.clone()
        rows = self.text[self.first : self.first + len(self.lengths)].numpy()
        self.checksums = [TextChecksum(row[:length]) for row, length in zip(rows, self.lengths, strict=True)]

    @property
    def own(self) -> Tensor:
        return self.text[self.first : self.first + len(self.lengths)]

    def grow(self, ends: list[tuple[int, int]]) -> None:
        """Each row now ends with a token at a position: with a guess that was kept, or what follows them."""
        for row, ((position, token), old) in enumerate(zip(ends, self.lengths, strict=True)):
            self.checksums[row].grow(old, position + 1, token)
            self.state[row, 2] += position + 1 - old
            self.lengths[row] = position + 1


class DraftThread:
    """Owns a draft, its texts and its caches from each GO on until it answers HELD, when they are the caller's.

    After each block it goes on as if all of it were kept, with its own guess of what the target adds (as PEARL's
    post-verify does; Liu et al. 2024), until an order says otherwise. The draft is asked exactly what it would be asked
    without a thread, and what it has fed ahead in vain is taken back before: so its guesses are the same.

    Args:
        rows, width: of a block, at most.
    """

    def __init__(self, draft: Draft, rows: int, width: int, tally: Tally) -> None:
        self.texts: Texts
        self.error: BaseException | None = None
        """What FAILED, or the end of the thread, is about."""
        self.guesses = SpscRing(rows * width + 4)
        self.orders = SpscRing(rows + 4)
        self.process = os.getpid()
        self._draft = draft
        self._tally = tally
        self._size = rows * width
        self._slots: Tensor | None = None
        self._pending: Order | None = None
        self._base: list[int] | None = None  # lengths to settle to, so that the draft is as without working ahead
        self._looking = False  # ahead
        self._assumed: tuple[int, list[tuple[int, int]]] | None = None  # by what is drafted ahead: guesses, ends
        self._ahead: Proposal | None = None
        self.thread = Thread(target=self._run, name="aegis-draft", daemon=True)
        self.thread.start()

    def slots(self, first: int, rows: int, width: int) -> Tensor:
        """(rows, width, V) float32: distributions from a slot on. They stay as they are until the next GO."""
        assert self._slots is not None
        return self._slots[first : first + rows * width].view(rows, width, -1)

    def end(self, seconds: float) -> bool:
        """Tells the thread to end, and returns whether it has."""
        self.orders.close()
        if self.process == os.getpid() and current_thread() is not self.thread:
            self.thread.join(seconds)
        return not self.thread.is_alive()

    # --- the rest runs in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._draft.before_pass = self._look
            with torch.no_grad():
                while (wanted := self._next()) is not None:
                    if wanted.hold:
                        self._take_back()
                        self._answer(Kind.HELD, wanted.number)
                    else:
                        self._serve(wanted)
        except BaseException as error:
            self.error = error
        finally:
            self._draft.before_pass = None
            self.guesses.close()

    def _next(self) -> Order | None:
        """The next order; None where there will be none."""
        while self._pending is None:
            self._pending = self._read(60.0)
            if self._pending is None and self.orders.closed and not len(self.orders):
                return None
        wanted, self._pending = self._pending, None
        return wanted

    def _read(self, timeout: float) -> Order | None:
        entries: list[Any] = []
        while not entries or entries[-1]["flags"] not in (Kind.GO, Kind.HOLD):
            try:
                entries.extend(self.orders.pop(1, timeout=timeout))
            except TimeoutError:
                if not entries:
                    return None
            if not entries or (self.orders.closed and not len(self.orders)):
                break
        return order(entries) if entries and entries[-1]["flags"] in (Kind.GO, Kind.HOLD) else None

    def _look(self) -> None:
        """Before each pass of a model: is what it is for still wanted?"""
        if self._pending is None and len(self.orders):
            self._pending = self._read(0)
        wanted = self._pending
        if self.orders.closed or (wanted is not None and (wanted.hold or (self._looking and not self._met(wanted)))):
            raise _Overtaken

    def _met(self, wanted: Order) -> bool:
        """Whether what is drafted ahead is what an order wants."""
        if self._assumed is None:
            return False
        guesses, ends = self._assumed
        return wanted.ends == ends and wanted.guesses <= guesses

    def _serve(self, wanted: Order) -> None:
        start = time.perf_counter()
        try:
            proposal = self._proposal(wanted)
            self._base = [length + max(wanted.guesses, 1) for length in self.texts.lengths]
            self._send(wanted.number, proposal)
        except _Overtaken:
            return
        except BaseException as error:
            self.error = error
            self._answer(Kind.FAILED, wanted.number)
            return
        finally:
            self._tally.seconds += time.perf_counter() - start
        if wanted.ahead > 0:
            self._look_ahead(wanted.ahead, proposal.counts)

    def _proposal(self, wanted: Order) -> Proposal:
        texts = self.texts
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._met(wanted):
            assert wanted.ends is not None
            texts.grow(wanted.ends)
            self._tally.ahead += 1
            return _shortened(ahead, wanted.guesses)
        self._take_back()
        if wanted.ends is not None:
            for row, (position, token) in enumerate(wanted.ends):
                texts.own[row, position] = token
            texts.grow(wanted.ends)
        self._draft.settle(texts.first, texts.lengths)
        return self._draft.propose(wanted.guesses, texts.first, texts.text, texts.lengths, texts.state)

    def _take_back(self) -> None:
        self._ahead = self._assumed = None
        if self._base is not None:
            self._draft.settle(self.texts.first, self._base)
            self._base = None

    def _send(self, number: int, proposal: Proposal) -> None:
        tokens, texts, q = proposal.tokens, self.texts, proposal.probabilities
        batch, width = tokens.shape
        columns = torch.tensor(texts.lengths)[:, None] + torch.arange(width)
        texts.own.scatter_(1, columns, tokens)
        chances = None
        if q is not None:
            if self._slots is None or self._slots.shape[1] != q.shape[2]:
                shape = (self._size, q.shape[2])
                self._slots = Arena(4 * shape[0] * shape[1]).empty(shape, torch.float32)
            self.slots(0, batch, width).copy_(q)
            chances = q.gather(2, tokens[:, :, None])[:, :, 0].numpy()
        made = block(number, tokens.numpy(), proposal.counts, texts.lengths, chances, texts.checksums)
        self.guesses.push(made)

    def _answer(self, kind: Kind, number: int) -> None:
        made = np.zeros(1, SpscRing.dtype)
        made["flags"], made["sequence"] = kind, number
        self.guesses.push(made)

    def _look_ahead(self, guesses: int, counts: list[int]) -> None:
        """Drafts what comes if all of a block is kept. What fails here is tried again when it is asked for."""
        start = time.perf_counter()
        texts, first = self.texts, self.texts.first
        self._looking = True
        try:
            assert self._base is not None
            self._draft.settle(first, self._base)
            grown = [length if length == 1 else length + n for length, n in zip(texts.lengths, counts, strict=True)]
            state = texts.state.clone()
            state[:, 2] += torch.tensor(grown) - torch.tensor(texts.lengths)
            following = self._draft.follow(first, texts.text, grown, state)
            if following is None:
                return
            self._draft.settle(first, self._base)
            for row, token in enumerate(following.tolist()):
                if texts.lengths[row] > 1:
                    texts.own[row, grown[row]] = token
                    grown[row] += 1
            last = texts.own.gather(1, torch.tensor(grown)[:, None] - 1)[:, 0].tolist()
            self._assumed = guesses, [(length - 1, token) for length, token in zip(grown, last, strict=True)]
            state = texts.state.clone()
            state[:, 2] += torch.tensor(grown) - torch.tensor(texts.lengths)
            self._draft.settle(first, grown)
            self._ahead = self._draft.propose(guesses, first, texts.text, grown, state)
        except Exception:
            self._assumed = None
        finally:
            self._looking = False
            self._tally.seconds += time.perf_counter() - start


def _shortened(proposal: Proposal, guesses: int) -> Proposal:
    """Its first guesses: what would have been proposed, had no more been asked for."""
    counts = [min(count, guesses) for count in proposal.counts]
    width = max(counts)
    q = proposal.probabilities
    return Proposal(proposal.tokens[:, :width], counts, q[:, :width] if q is not None and width > 0 else None)
