"""What the thread of a draft and that of its target tell each other, as entries of two SpscRings.

Each order of the target is a push that ends with GO or HOLD, and has an answer:

* ROLLBACK for each row, then GO: these texts go on, guess so many tokens. Answer: BLOCK, then a GUESS for each; or
  FAILED.
* GO alone: the same where texts were handed over. Only after HOLD.
* HOLD: stop. Answer: HELD, and the draft is the target's thread's until the next GO.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aegis.decode.spsc_ring import SpscRing
from aegis.decode.text_checksum import TextChecksum

__all__ = ["NONE", "Entries", "Kind", "Order", "block", "checked", "order"]

Entries = NDArray[Any]

NONE = 2**32 - 1
"""The parent of a first guess; the slot of a guess that was not drawn."""


class Kind(IntEnum):
    """An entry's flags, and what its other fields then are."""

    GUESS = 0
    """sequence: row; token at position, drawn with draft_probability from what lies in slot; attestation: checksum of
    the row's text up to and including the token; parent: number within its block of the guess that it follows."""
    BLOCK = 1
    """sequence: number of the order; token: how many entries follow; position: guesses of a row, at most."""
    FAILED = 2
    """sequence: number of the order."""
    HELD = 3
    """sequence: number of the order."""
    ROLLBACK = 4
    """sequence: row; its text now ends with this token at this position."""
    GO = 5
    """sequence: number of the order; token: guesses wanted; position: and ahead, if these are kept."""
    HOLD = 6
    """sequence: number of the order."""


class Order(NamedTuple):
    """What the target's thread wants."""

    number: int
    hold: bool
    guesses: int = 0
    ahead: int = 0
    ends: list[tuple[int, int]] | None = None
    """Of each row, the position of its last token and the token; None where texts were handed over."""

    def entries(self) -> Entries:
        ends = self.ends or []
        made = np.zeros(len(ends) + 1, SpscRing.dtype)
        if ends:
            made["flags"][:-1] = Kind.ROLLBACK
            made["sequence"][:-1] = np.arange(len(ends))
            made["position"][:-1], made["token"][:-1] = zip(*ends, strict=True)
        made[-1]["flags"] = Kind.HOLD if self.hold else Kind.GO
        made[-1]["sequence"] = self.number
        made[-1]["token"], made[-1]["position"] = self.guesses, self.ahead
        return made


def order(entries: Sequence[Any]) -> Order:
    """Of the entries up to GO or HOLD."""
    last = entries[-1]
    ends = [(int(entry["position"]), int(entry["token"])) for entry in entries[:-1]]
    hold = bool(last["flags"] == Kind.HOLD)
    return Order(int(last["sequence"]), hold, int(last["token"]), int(last["position"]), ends or None)


def block(
    number: int,
    tokens: NDArray[np.int64],
    counts: Sequence[int],
    lengths: Sequence[int],
    probabilities: NDArray[np.float32] | None,
    checksums: Sequence[TextChecksum],
) -> Entries:
    """The entries of a proposal.

    Args:
        number: of the order.
        tokens: (b, k), of which ``counts`` of each row are guesses.
        lengths: of the rows' texts.
        probabilities: (b, k), of the tokens drawn from slots 0, 1, ...
        checksums: of the rows' texts; guesses are appended.
    """
    total, width = sum(counts), tokens.shape[1]
    made = np.zeros(1 + total, SpscRing.dtype)
    made[0]["flags"], made[0]["sequence"] = Kind.BLOCK, number
    made[0]["token"], made[0]["position"] = total, width
    guesses = made[1:]
    guesses["parent"] = np.arange(total) - 1
    begin = 0
    for row, (count, length, checksum) in enumerate(zip(counts, lengths, checksums, strict=True)):
        mine = guesses[begin : begin + count]
        mine["sequence"] = row
        mine["token"] = tokens[row, :count]
        mine["position"] = np.arange(length, length + count)
        mine["parent"][:1] = NONE
        mine["slot"] = NONE if probabilities is None else np.arange(row * width, row * width + count)
        mine["draft_probability"] = 1 if probabilities is None else probabilities[row, :count]
        checksum.cut(length)
        mine["attestation"] = [checksum.append(token) for token in tokens[row, :count].tolist()]
        begin += count
    return made


def checked(entries: Entries, lengths: Sequence[int], checksums: Sequence[TextChecksum]) -> list[list[int]]:
    """The guesses of each row, whose texts have these lengths and checksums, to which guesses are appended.

    Raises:
        RuntimeError: a guess attests another text than the row's; names both checksums.
    """
    found: list[list[int]] = [[] for _ in lengths]
    for checksum, length in zip(checksums, lengths, strict=True):
        checksum.cut(length)
    for entry in entries:
        row, token, position = int(entry["sequence"]), int(entry["token"]), int(entry["position"])
        if row >= len(found) or position != lengths[row] + len(found[row]):
            raise RuntimeError(f"draft: expected the next guess of one of {len(found)} rows, got row {row}, {position}")
        want, got = checksums[row].append(token), int(entry["attestation"])
        if want != got:
            raise RuntimeError(
                f"draft: expected its guess at position {position} of row {row} to attest the text so far, whose "
                f"checksum is {want:08x}, got {got:08x}"
            )
        found[row].append(token)
    return found
