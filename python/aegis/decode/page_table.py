"""Which pages of a paged KV cache belong to which sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aegis import _C

__all__ = ["PageTable", "PagesExhausted", "token_array"]

PagesExhausted = _C.PagesExhausted
"""A MemoryError: fewer pages were free or evictable than a call needed; nothing was changed."""

_FLAGS = {"used": 1, "evictable": 2, "pinned": 4, "shared": 8, "shareable": 16}
_MOST = 2**32 - 1


class PageTable:
    """Hands out pages of ``block_size`` tokens to sequences, which share what they have in common.

    It holds no keys and no values: ``pages_of(sequence)`` says where those of tokens 0 to block_size - 1 lie, then
    those of the next block, and so on. ::

        table = aegis.PageTable(4096)
        there = table.begin(7, prompt)          # tokens whose pages are filled already
        copy = table.append(7, [token])         # (from, to): copy that page first; None: nothing to copy
        table.free(7)

    Args:
        pages: how many there are, 1 to 2**31.
        block_size: tokens in a page.
        eviction: what becomes of pages that nobody holds but that another sequence may want: ``"lru"`` gives the one
            given back longest ago to whoever needs a page; ``"frequency"`` passes over those that were shared since, a
            few times, so that a burst of new text does not push out what all use; ``"none"`` keeps none.

    Blocks are shared by content (vLLM's automatic prefix caching): the tokens of a block and all before it. They are
    compared, not only hashed. Blocks that fill up, and those of a prompt, can be shared from then on; fill them before
    another sequence is read. Sequences are numbers of the caller's, 0 to 2**32 - 2. One thread at a time.

    Raises, in all calls, with nothing changed:
        PagesExhausted: (a MemoryError) out of pages.
        IndexError: no such sequence or page.
        ValueError: a sequence that has begun before; tokens or numbers that cannot be.
        TypeError: numbers that are no ints.

    Cost: O(1) for each page taken or given back; begin reads its tokens twice.
    """

    NO_PAGE = 2**32 - 1
    """What :meth:`pages_of` tells of blocks that were given back by :meth:`trim`."""

    def __init__(
        self, pages: int, block_size: int = 16, *, eviction: Literal["none", "lru", "frequency"] = "lru"
    ) -> None:
        if eviction not in ("none", "lru", "frequency"):
            raise ValueError(f"eviction: expected 'none', 'lru' or 'frequency', got {eviction!r}")
        for name, value in (("pages", pages), ("block_size", block_size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: expected an int, got {value!r}")
        self._table = _C.PageTable(pages, block_size, getattr(_C.PageTable.Eviction, eviction))
        self._pins: dict[int, NDArray[Any]] = {}
        self._next_pin = 0

    def copy(self) -> PageTable:
        """Another table, of the same sequences in the same pages."""
        twin = object.__new__(PageTable)
        twin._table = self._table.copy()
        twin._pins = dict(self._pins)
        twin._next_pin = self._next_pin
        return twin

    # --- sequences

    def begin(self, sequence: int, tokens: Any) -> int:
        """A new sequence of these tokens (a sequence or array of integers, 0 to 2**32 - 1).

        Returns:
            How many of them, from the first on, lie in pages that were there before.
        """
        return self._table.begin(_number("sequence", sequence), token_array(tokens))

    def lookup(self, tokens: Any) -> int:
        """How many of these tokens, from the first on and in full blocks, :meth:`begin` would find there."""
        return self._table.lookup(token_array(tokens))

    def append(self, sequence: int, tokens: Any) -> tuple[int, int] | None:
        """More tokens.

        Returns:
            (from, to) where the last page was shared: copy its keys and values before the tokens' are written. None
            where there is nothing to copy.
        """
        return self._table.append(_number("sequence", sequence), token_array(tokens))

    def extend(self, sequences: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
        """More tokens for several sequences, until each has its length; all of them or none. Which tokens they are is
        not known yet, so that nobody shares their blocks before :meth:`tell`.

        Returns:
            Pairs (from, to), as :meth:`append` does: copy all of them before anything is written.
        """
        return self._table.extend([_number("sequence", sequence) for sequence in sequences], list(lengths))

    def expect_room(self, sequences: Sequence[int], lengths: Sequence[int]) -> None:
        """Raises PagesExhausted where :meth:`extend` would, for who has several tables to extend."""
        self._table.expect_room([_number("sequence", sequence) for sequence in sequences], list(lengths))

    def tell(self, sequence: int, tokens: Any) -> None:
        """What the first tokens are that are not :meth:`known`: no more than have been written. Their blocks can be
        shared from then on."""
        self._table.tell(_number("sequence", sequence), token_array(tokens))

    def known(self, sequence: int) -> int:
        """Tokens of a sequence, from the first on, that are known."""
        return self._table.known(_number("sequence", sequence))

    def crop(self, sequence: int, length: int) -> None:
        """Takes tokens off the end, down to ``length``: 0, or more than were trimmed."""
        self._table.crop(_number("sequence", sequence), length)

    def trim(self, sequence: int, tokens: int) -> bool:
        """The first ``tokens`` tokens are not needed any more, as before a sliding window: gives back the pages that
        hold none of the others. The sequence is as long as before, and :meth:`pages_of` has NO_PAGE there. Others find
        those pages as long as they are not evicted; what is told of them later is not found.

        Returns:
            Whether there were such pages.
        """
        return self._table.trim(_number("sequence", sequence), tokens)

    def trimmed(self, sequence: int) -> int:
        """Tokens of a sequence whose pages were given back by :meth:`trim`."""
        return self._table.trimmed(_number("sequence", sequence))

    def fork(self, sequence: int, twin: int) -> None:
        """A new sequence, ``twin``, of the same tokens in the same pages; the first to write gets a copy."""
        self._table.fork(_number("sequence", sequence), _number("twin", twin))

    def free(self, sequence: int) -> None:
        """Ends a sequence, which gives its pages back."""
        self._table.free(_number("sequence", sequence))

    def pages_of(self, sequence: int) -> NDArray[np.uint32]:
        """The pages of a sequence, in the order of its text: a new array."""
        return self._table.pages_of(_number("sequence", sequence))

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._table.length(_number("sequence", sequence))

    def __contains__(self, sequence: int) -> bool:
        return self._table.has(_number("sequence", sequence))

    def pin(self, sequence: int) -> int:
        """Keeps the pages that a sequence holds now from eviction, also once it is gone. Returns a handle."""
        self._table.pin(_number("sequence", sequence))
        self._next_pin += 1
        pages = self._table.pages_of(sequence)
        self._pins[self._next_pin] = pages[pages != self.NO_PAGE]
        return self._next_pin

    def unpin(self, handle: int) -> None:
        """Undoes a :meth:`pin`. Raises ValueError for a handle that is none, or no more."""
        if handle not in self._pins:
            raise ValueError(f"handle: expected one of a pin that holds, got {handle!r}")
        self._table.unpin(self._pins.pop(handle))

    # --- single pages

    def allocate(self, owner: int) -> int:
        """A page of no sequence: what goes into it is the caller's affair."""
        return self._table.allocate(_number("owner", owner))

    def release(self, page: int) -> None:
        """Gives back a page of :meth:`allocate`. Raises ValueError where nobody holds it, or a sequence does."""
        self._table.release(_number("page", page))

    # --- questions

    @property
    def pages(self) -> int:
        """All of them."""
        return self._table.pages

    @property
    def block_size(self) -> int:
        """Tokens in a page."""
        return self._table.block_size

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds and whose content is not kept."""
        return self._table.free_pages

    @property
    def evictable_pages(self) -> int:
        """Pages that nobody holds but that may be shared again."""
        return self._table.evictable_pages

    def describe(self, page: int) -> Mapping[str, Any]:
        """owner, block (of its sequence, or None), references, pins, age (calls since it was last taken, shared or
        given back), frequency (how often it was shared, halved when eviction passed it over), shareable."""
        return MappingProxyType(self._table.describe(_number("page", page)))

    def mask(self, **conditions: Any) -> NDArray[np.bool_]:
        """(pages,) bool: which pages meet all conditions.

        Args:
            used, evictable, pinned, shared, shareable: whether they are.
            owner: the sequence that took them.
            age, references, frequency: (least, most), inclusive; None leaves an end open. Frequencies count up to 255.

        Cost: 5 µs for flags of a million pages with AVX-512, and some 60 for each array of 4-byte numbers asked for.
        """
        bits: NDArray[np.uint64] = self._table.mask(*_query(conditions))
        return np.unpackbits(bits.view(np.uint8), count=self.pages, bitorder="little").view(np.bool_)

    def bits(self, **conditions: Any) -> NDArray[np.uint64]:
        """The same with 64 pages to a number, page p in bit ``p % 64`` of number ``p // 64``."""
        return self._table.mask(*_query(conditions))

    def oldest(self, **conditions: Any) -> int | None:
        """Of the pages that :meth:`mask` tells, the one of the greatest age, the first of several; None where there is
        none."""
        page = self._table.oldest(*_query(conditions))
        return None if page < 0 else page

    def stats(self) -> dict[str, int]:
        """Since the beginning: blocks that ``begin`` found (``shared``), pages ``evicted``, pages ``copied``."""
        shared, evicted, copied = self._table.counts()
        return {"shared": shared, "evicted": evicted, "copied": copied}

    def check_invariants(self) -> None:
        """For tests: raises RuntimeError where the table contradicts itself. O(pages)."""
        self._table.check_invariants()

    def __repr__(self) -> str:
        used = self.pages - self.free_pages - self.evictable_pages
        return f"PageTable({used} of {self.pages} pages in use, {self.evictable_pages} evictable)"


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an int, got {value!r}")
    if not 0 <= value <= _MOST:
        raise ValueError(f"{name}: expected 0 to {_MOST}, got {value}")
    return int(value)


def token_array(tokens: Sequence[int] | Any) -> NDArray[np.uint32]:
    """Token ids as the core takes them; the caller's own array where it is one already."""
    given = np.asarray(tokens)
    if given.size == 0:
        return np.empty(0, np.uint32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"tokens: expected integers of one dimension, got {given.dtype} of shape {given.shape}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high > _MOST:
        raise ValueError(f"tokens: expected 0 to {_MOST}, got {low if low < 0 else high}")
    return np.ascontiguousarray(given, np.uint32)


def _query(conditions: dict[str, Any]) -> tuple[Any, ...]:
    mask = value = 0
    for name, bit in _FLAGS.items():
        wanted = conditions.pop(name, None)
        if wanted is not None:
            mask |= bit
            value |= bit if wanted else 0
    owner = conditions.pop("owner", None)
    ages, references, frequencies = (
        _limits(name, conditions.pop(name, None), most)
        for name, most in (("age", _MOST), ("references", _MOST), ("frequency", 255))
    )
    if conditions:
        raise TypeError(f"{', '.join(conditions)}: no such condition")
    return mask, value, None if owner is None else _number("owner", owner), ages, references, frequencies


def _limits(name: str, limits: Any, most: int) -> tuple[int, int]:
    if limits is None:
        return 0, most
    try:
        low, high = limits
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected (least, most), got {limits!r}") from None
    low, high = 0 if low is None else low, most if high is None else high
    return min(_number(name, low), most), min(_number(name, high), most)
