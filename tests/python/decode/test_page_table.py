"""aegis.PageTable against a model of it in plain Python."""

import aegis
import numpy as np
import pytest
from aegis.decode import PagesExhausted
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

BLOCK = 3
texts = st.lists(st.integers(0, 1), max_size=11)


class PageTableMachine(RuleBasedStateMachine):
    """Every page has contents, as the holders of a cache would write them; whoever reads a sequence by its pages must
    find its tokens, whatever was shared, copied and evicted."""

    @initialize(pages=st.integers(4, 16), eviction=st.sampled_from(["none", "lru", "frequency"]))
    def make(self, pages, eviction):
        self.table = aegis.PageTable(pages, BLOCK, eviction=eviction)
        self.memory = np.full((pages, BLOCK), -1)
        self.texts, self.pins, self.next = {}, {}, 0
        self.apart = []  # pages of allocate()

    def kept(self, sequence):
        """Where the text begins that was not trimmed."""
        return self.table.trimmed(sequence)

    def write(self, sequence, begin, end):
        pages, text = self.table.pages_of(sequence), self.texts[sequence]
        for at in range(begin, end):
            page = pages[at // BLOCK]
            # whoever shares the page expects what is there
            holders = [s for s in self.texts if at // BLOCK < len(own := self.table.pages_of(s)) and page in own]
            assert holders == [sequence], "a page was written that others hold"
            self.memory[page, at % BLOCK] = text[at]

    def needed(self, sequence, more):
        length = len(self.texts[sequence])
        shared = length % BLOCK and self.table.describe(self.table.pages_of(sequence)[-1])["references"] > 1
        return -(-(length + more) // BLOCK) - -(-length // BLOCK) + bool(shared)

    @rule(text=texts)
    def begin(self, text):
        room = self.table.free_pages + self.table.evictable_pages
        try:
            there = self.table.begin(self.next, text)
        except PagesExhausted:
            assert -(-len(text) // BLOCK) > room - self.table.evictable_pages, "pages were free"
            return
        self.texts[self.next] = list(text)
        assert there == len(text) or there % BLOCK == 0
        self.write(self.next, there, len(text))
        self.next += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), text=texts)
    def append(self, data, text):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        needed = self.needed(sequence, len(text)) if text else 0
        room = self.table.free_pages + self.table.evictable_pages
        try:
            copy = self.table.append(sequence, text)
        except PagesExhausted:
            assert needed > room
            return
        assert needed <= room
        if copy is not None:
            self.memory[copy[1]] = self.memory[copy[0]]
        length = len(self.texts[sequence])
        self.texts[sequence] += text
        self.write(sequence, length, length + len(text))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), text=texts)
    def extend_and_tell(self, data, text):
        """Two sequences grow by the same text, of which the table is told a part when it has been written."""
        grown = data.draw(st.lists(st.sampled_from(sorted(self.texts)), max_size=2, unique=True))
        needed = sum(self.needed(sequence, len(text)) for sequence in grown) if text else 0
        try:
            copies = self.table.extend(grown, [len(self.texts[sequence]) + len(text) for sequence in grown])
        except PagesExhausted:
            assert needed > self.table.free_pages
            return
        for source, target in copies:
            self.memory[target] = self.memory[source]
        for sequence in grown:
            length = len(self.texts[sequence])
            self.texts[sequence] += text
            self.write(sequence, length, length + len(text))
        for sequence in grown:
            known = self.table.known(sequence)
            unknown = self.texts[sequence][known:]
            self.table.tell(sequence, unknown[: data.draw(st.integers(0, len(unknown)))])
        for own in list(self.texts.values()):
            there = self.table.lookup(own)
            assert self.table.begin(self.next, own[:there]) == there
            assert self.memory[self.table.pages_of(self.next)].flatten().tolist() == own[:there]
            self.table.free(self.next)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def crop(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        length = data.draw(st.integers(0, len(self.texts[sequence])))
        if length <= self.kept(sequence):
            length = 0
        self.table.crop(sequence, length)
        del self.texts[sequence][length:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def trim(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = data.draw(st.integers(0, len(self.texts[sequence])))
        before = self.kept(sequence)
        assert self.table.trim(sequence, tokens) == (tokens // BLOCK * BLOCK > before)
        assert self.kept(sequence) == max(tokens // BLOCK * BLOCK, before)

    @rule(owner=st.integers(0, 5))
    def allocate(self, owner):
        room = self.table.free_pages + self.table.evictable_pages
        try:
            self.apart.append(self.table.allocate(owner))
        except PagesExhausted:
            assert room == 0

    @precondition(lambda self: self.apart)
    @rule(data=st.data())
    def release(self, data):
        page = data.draw(st.sampled_from(self.apart))
        self.apart.remove(page)
        self.table.release(page)
        with pytest.raises(ValueError, match=f"page {page}: expected one that is held"):
            self.table.release(page)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        self.table.fork(sequence, self.next)
        self.texts[self.next] = list(self.texts[sequence])
        self.next += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        self.table.free(sequence)
        del self.texts[sequence]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def pin(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        handle = self.table.pin(sequence)
        self.pins[handle] = list(self.table.pages_of(sequence)[self.kept(sequence) // BLOCK :])

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        handle = data.draw(st.sampled_from(sorted(self.pins)))
        self.table.unpin(handle)
        del self.pins[handle]

    @invariant()
    def every_sequence_finds_its_tokens(self):
        if not hasattr(self, "table"):
            return
        self.table.check_invariants()
        holders = np.zeros(self.table.pages, int)
        for sequence, text in self.texts.items():
            pages = self.table.pages_of(sequence)
            assert len(pages) == -(-len(text) // BLOCK)
            kept = self.kept(sequence)
            assert (pages[: kept // BLOCK] == aegis.PageTable.NO_PAGE).all()
            pages = pages[kept // BLOCK :]
            assert self.memory[pages].flatten()[: len(text) - kept].tolist() == text[kept:]
            holders[pages] += 1
        assert (holders[self.apart] == 0).all()
        holders[self.apart] += 1
        assert [self.table.describe(page)["references"] for page in range(self.table.pages)] == holders.tolist()
        assert (self.table.mask(used=True) == (holders > 0)).all()
        assert (self.table.mask(shared=True) == (holders > 1)).all()
        pinned = {page for pages in self.pins.values() for page in pages}
        assert set(np.flatnonzero(self.table.mask(pinned=True))) == pinned
        evictable = np.flatnonzero(self.table.mask(evictable=True))
        assert len(evictable) == self.table.evictable_pages
        ages = [self.table.describe(page)["age"] for page in evictable]
        oldest = None if len(evictable) == 0 else evictable[np.argmax(ages)]
        assert self.table.oldest(evictable=True) == oldest


# 100,000 calls.
PageTableMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=100, deadline=None)
TestPageTable = PageTableMachine.TestCase


def test_questions_about_pages():
    """Masks and the oldest page, against what describe() tells of every page."""
    table = aegis.PageTable(150, 2)
    for sequence in range(30):
        table.begin(sequence, [sequence % 7, *range(sequence % 5)])
    for sequence in range(0, 30, 3):
        table.free(sequence)
    table.pin(4)
    pages = [table.describe(page) for page in range(150)]

    def expected(holds):
        return np.array([holds(page) for page in pages])

    for conditions, holds in {
        (): lambda page: True,
        (("used", True), ("pinned", False)): lambda page: page["references"] > 0 and page["pins"] == 0,
        (("owner", 4),): lambda page: page["owner"] == 4,
        (("age", (3, 9)),): lambda page: 3 <= page["age"] <= 9,
        (("age", (None, 5)),): lambda page: page["age"] <= 5,
        (("references", (1, 2)), ("frequency", (1, None))): lambda page: (
            1 <= page["references"] <= 2 and page["frequency"] >= 1
        ),
        (("shareable", True), ("evictable", True)): lambda page: page["shareable"] and page["references"] == 0,
    }.items():
        want = expected(holds)
        assert (table.mask(**dict(conditions)) == want).all(), conditions
        bits = table.bits(**dict(conditions))
        assert [bool(int(bits[p // 64]) >> (p % 64) & 1) for p in range(150)] == want.tolist()
        ages = [page["age"] if yes else -1 for page, yes in zip(pages, want, strict=True)]
        assert table.oldest(**dict(conditions)) == (int(np.argmax(ages)) if want.any() else None)


def test_a_common_prefix_is_kept_once():
    table, prefix = aegis.PageTable(2000), list(range(1000))
    assert table.begin(0, prefix) == 0
    one = table.pages - table.free_pages
    for sequence in range(1, 100):
        assert table.begin(sequence, prefix) == 1000
    assert table.pages - table.free_pages < 1.05 * one
    assert table.stats() == {"shared": 99 * 63, "evicted": 0, "copied": 0}
    assert table.append(5, [1]) is not None
    assert repr(table) == "PageTable(64 of 2000 pages in use, 0 evictable)"


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (PagesExhausted, "pages: expected 5 to be free or evictable, but 2 are", lambda t: t.begin(2, range(100, 117))),
        (PagesExhausted, "pages: expected 3 to be free", lambda t: t.append(1, range(12))),
        (ValueError, "sequence: expected a number that is not in use, got 1", lambda t: t.begin(1, [1])),
        (
            ValueError,
            "sequence: expected a number that is not .*, got 4294967295",
            lambda t: t.begin(2**32 - 1, []),
        ),
        (ValueError, "sequence: expected 0 to 4294967295, got -1", lambda t: t.begin(-1, [1])),
        (TypeError, "sequence: expected an int, got 'a'", lambda t: t.begin("a", [1])),
        (ValueError, "tokens: expected 0 to 4294967295, got -3", lambda t: t.begin(2, [1, -3])),
        (ValueError, "tokens: expected integers of one dimension", lambda t: t.begin(2, [1.5])),
        (ValueError, "tokens: expected integers of one dimension", lambda t: t.begin(2, [[1], [2]])),
        (IndexError, "sequence: expected one that has begun, got 9", lambda t: t.append(9, [1])),
        (IndexError, "sequence: expected one that has begun, got 9", lambda t: t.free(9)),
        (IndexError, "sequence: expected one that has begun, got 9", lambda t: t.fork(9, 10)),
        (ValueError, "sequence: expected a number that is not in use, got 1", lambda t: t.fork(1, 1)),
        (ValueError, "length: expected 0 to 8, what the sequence has, got 9", lambda t: t.crop(1, 9)),
        (ValueError, "handle: expected one of a pin", lambda t: t.unpin(1)),
        (IndexError, "page: expected 0 to 3, got 4", lambda t: t.describe(4)),
        (ValueError, "page 3: expected one that is held", lambda t: t.release(3)),
        (ValueError, "page 0: expected one of allocate, got one of sequences", lambda t: t.release(0)),
        (ValueError, "owner: expected 0 to 4294967294, got 4294967295", lambda t: t.allocate(2**32 - 1)),
        (TypeError, "colour: no such condition", lambda t: t.mask(colour=1)),
        (ValueError, r"age: expected \(least, most\), got 3", lambda t: t.mask(age=3)),
        (
            ValueError,
            "eviction: expected 'none', 'lru' or 'frequency', got 'fifo'",
            lambda t: aegis.PageTable(4, eviction="fifo"),
        ),
        (ValueError, r"pages: expected 1 to 2\^31, got 0", lambda t: aegis.PageTable(0)),
        (ValueError, "block_size: expected 1 to 65536 tokens, got 0", lambda t: aegis.PageTable(4, 0)),
        (TypeError, "pages: expected an int, got 4.0", lambda t: aegis.PageTable(4.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_changes_nothing(error, message, call):
    table = aegis.PageTable(4, 4)
    table.begin(1, range(8))
    with pytest.raises(error, match=message):
        call(table)
    table.check_invariants()
    assert table.free_pages == 2
    assert table.length(1) == 8
    assert 2 not in table


def test_a_page_given_back_twice_is_an_error():
    table = aegis.PageTable(2)
    page = table.allocate(5)
    table.release(page)
    with pytest.raises(ValueError, match="expected one that is held, got one that was given back"):
        table.release(page)
    assert table.free_pages == 2


def test_no_page_is_older_than_the_table():
    table = aegis.PageTable(70)
    table.allocate(1)
    assert not table.mask(age=(2, None)).any()
    assert table.oldest(age=(1000, None)) is None
    assert table.mask(age=(1, None)).sum() == 69
