"""A draft that works in a thread of its own, ahead of its target."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aegis.decode.draft_length import DraftLength
from aegis.decode.drafts import Draft, Proposal
from aegis.decode.law import Law
from aegis.decode.overlap_entries import NONE, Entries, Kind, Order, checked
from aegis.decode.overlap_thread import DraftThread, Tally, Texts
from aegis.decode.spsc_ring import SpscRing

__all__ = ["OverlappedDraft"]

WAIT_SECONDS = 300.0
"""The longest that the target waits for its draft."""
_LOOK_SECONDS = 0.1
"""How often a waiting target makes sure that the draft's thread lives."""
_NOTHING = np.empty(0, SpscRing.dtype)


class OverlappedDraft:
    """Another draft, with its guesses, which are drafted in a thread while the target verifies those before them.

    Whatever the caller does beside propose() and settle() happens with the thread at rest, on the draft as it would be
    had it not worked ahead. The thread begins with the first guesses and ends with the context of entered().

    Args:
        draft: what guesses. The thread's while it is at work.
        length: tells how many guesses the next block will have.
        rows: of a batch, at most.
        guesses: of a row in a block, at most.
        max_cache_len: as the runner's.
    """

    def __init__(self, draft: Draft, length: DraftLength, rows: int, guesses: int, max_cache_len: int) -> None:
        self.draft = draft
        self.before_pass: Callable[[], object] | None = None  # the thread looks at its orders there
        self.tally = Tally()
        self._length = length
        self._rows, self._guesses, self._max_cache_len = rows, guesses, max_cache_len
        self._thread: DraftThread | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._held = True  # the draft is this thread's
        self._number = 0  # of the last order
        self._texts: Texts | None = None  # as of the last block that was received; None after an error
        self._counts: list[int] = []  # of its guesses

    # --- what a draft does ---------------------------------------------------------------------------------------

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, chunk: int) -> None:
        self._hold()
        self.draft.prefill(input_ids, attention_mask, chunk)

    def propose(self, count: int, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Proposal:
        """As the draft's, or an earlier call's if this is what came of it.

        Raises:
            RuntimeError: the draft's thread has ended; what it says is not about this text; a process has forked.
            TimeoutError: it did not answer.
            What the draft itself raises.
        """
        live = sum(length > 1 for length in lengths)
        room = self._max_cache_len - (max(lengths) + count + 1)
        ahead = min(self._length.foreseen([(count, count)] * live), room) if count > 0 else 0
        ends = None
        texts, self._texts = self._texts, None
        if texts is not None and self._goes_on(texts, first, lengths, state):
            last = text[first : first + len(lengths)].gather(1, torch.tensor(lengths)[:, None] - 1)[:, 0].tolist()
            ends = [(length - 1, token) for length, token in zip(lengths, last, strict=True)]
            texts.grow(ends)
        else:
            texts = self._hand_over(first, text, lengths, state)
        self._number += 1
        self._push(Order(self._number, hold=False, guesses=count, ahead=max(ahead, 0), ends=ends))
        proposal = self._received(texts)
        self._texts, self._counts = texts, proposal.counts
        return proposal

    def follow(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Tensor | None:
        self._hold()
        return self.draft.follow(first, text, lengths, state)

    def settle(self, first: int, lengths: list[int]) -> None:
        """The thread hears of it with the next order, which names the lengths of all rows."""
        if self._held:
            self.draft.settle(first, lengths)

    def retire(self, row: int) -> None:
        self._hold()
        self.draft.retire(row)

    def reset(self) -> None:
        self._hold()
        self.draft.reset()

    def use_law(self, law: Law) -> None:
        self._hold()
        self.draft.use_law(law)

    def entered(self) -> AbstractContextManager[Any]:
        return self._entered()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self.draft.entered():
            try:
                yield
            finally:
                self._close()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _goes_on(self, texts: Texts, first: int, lengths: list[int], state: Tensor) -> bool:
        """Whether these are the texts of the last block, each with guesses that were kept and a token more."""
        if self._held or self._thread is None or self._thread.process != os.getpid():
            return False
        if first != texts.first or len(lengths) != len(texts.lengths):
            return False
        for old, new, count in zip(texts.lengths, lengths, self._counts, strict=True):
            if not (old < new <= old + count + 1 if old > 1 else new == 1):
                return False
        expected = texts.state.clone()
        expected[:, 2] += torch.tensor(lengths) - torch.tensor(texts.lengths)
        return torch.equal(expected, state)

    def _hand_over(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Texts:
        """Gives the draft to the thread, with texts of its own; returns the caller's."""
        self._hold()
        if self._thread is None or self._thread.process != os.getpid():
            self._thread = DraftThread(self.draft, self._rows, self._guesses, self.tally)
            self._end = weakref.finalize(self, DraftThread.end, self._thread, 10.0)
        with torch.inference_mode(False):
            copied = text.clone()
        self._thread.texts = Texts(first, copied, list(lengths), state)
        self._held = False
        return Texts(first, text, list(lengths), state)

    def _push(self, wanted: Order) -> None:
        assert self._thread is not None
        entries = wanted.entries()
        if self._thread.orders.push(entries, timeout=WAIT_SECONDS) < len(entries):
            raise TimeoutError(f"draft: expected its thread to take an order within {WAIT_SECONDS} seconds")

    def _hold(self) -> None:
        """Returns with the thread at rest, and the draft this one's."""
        thread = self._thread
        if self._held or thread is None:
            return
        if thread.process != os.getpid():
            raise RuntimeError(
                "draft: expected the process that began this text, since the draft's thread does not run in a fork of "
                "it; fork before prefill, or make another runner"
            )
        self._texts = None
        try:
            # Anew each time: an exception may have come after the answer to an order before was taken out of the ring.
            self._number += 1
            self._push(Order(self._number, hold=True))
            answer = self._pop(1)
            while len(answer) and (answer["flags"][0], answer["sequence"][0]) != (Kind.HELD, self._number):
                answer = self._pop(1)
        except BrokenPipeError:
            answer = _NOTHING
        if not len(answer):  # the thread has ended, or is about to
            self._close()
        self._held = True

    def _pop(self, most: int) -> Entries:
        """Entries of the thread, at least one; none where it has ended."""
        assert self._thread is not None
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return self._thread.guesses.pop(most, timeout=_LOOK_SECONDS)
            except TimeoutError:
                if self._thread.process != os.getpid() or not self._thread.thread.is_alive():
                    return self._thread.guesses.pop(most, timeout=0) if len(self._thread.guesses) else _NOTHING
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"draft: expected an answer of its thread within {WAIT_SECONDS} seconds, got none"
                    ) from None

    def _some(self, count: int) -> Entries:
        """So many entries of the thread."""
        assert self._thread is not None
        parts: list[Entries] = []
        while count > 0:
            parts.append(self._pop(count))
            if not len(parts[-1]):
                raise RuntimeError(
                    f"draft: expected guesses of its thread, which has ended: {self._thread.error!r}"
                ) from self._thread.error
            count -= len(parts[-1])
        return np.concatenate(parts) if parts else _NOTHING

    def _received(self, texts: Texts) -> Proposal:
        thread = self._thread
        assert thread is not None
        head = self._some(1)[0]
        if head["flags"] == Kind.FAILED and thread.error is not None:
            error, thread.error = thread.error, None
            raise error
        if head["flags"] != Kind.BLOCK or head["sequence"] != self._number:
            raise RuntimeError(f"draft: expected the answer to order {self._number}, got {head}")
        entries, width = self._some(int(head["token"])), int(head["position"])
        found = checked(entries, texts.lengths, texts.checksums)
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in found], dtype=torch.int64)
        drawn = len(entries) > 0 and entries["slot"][0] != NONE
        q = thread.slots(int(entries["slot"][0]), len(found), width) if drawn else None
        return Proposal(tokens.view(len(found), width), [len(row) for row in found], q)

    def _close(self) -> None:
        """Ends the thread. Raises RuntimeError where it does not end."""
        self._texts = None
        if self._thread is not None and not self._thread.end(WAIT_SECONDS):
            raise RuntimeError(f"draft: expected its thread to end within {WAIT_SECONDS} seconds, but it is at work")
        if self._end is not None:
            self._end.detach()
        self._thread, self._end = None, None
        self._held = True
