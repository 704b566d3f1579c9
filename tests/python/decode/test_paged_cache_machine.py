"""A PagedKVCache over any sequence of passes, crops, forks, moves and resets, against lists."""

from __future__ import annotations

import copy

import aegis
import pytest
import torch
from aegis.decode import PagesExhausted
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ROWS, CAPACITY, BLOCK = 4, 20, 3
texts = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def content(text):
    """What a model would keep of each token: it depends on the tokens before."""
    kept, state = [], 7
    for token in text:
        state = (state * 31 + token + 1) % 1_000_003
        kept.append(float(state))
    return kept


class Machine(RuleBasedStateMachine):
    """The model of a row is the list of its tokens, or None where it is free. Those to come are what a row was acquired
    with and has not been fed. ``reached`` is how long a row ever was: what lies that far before may be gone."""

    @initialize(
        pages=st.integers(6, 24),
        eviction=st.sampled_from(["none", "lru", "frequency"]),
        kinds=st.sampled_from(["ff", "ss", "sf", "fs"]),
        window=st.integers(1, 6),
        rollback=st.integers(0, 3),
    )
    def start(self, pages, eviction, kinds="ff", window=1, rollback=0):
        config = transformers.MistralConfig(
            num_hidden_layers=2,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=1,
            hidden_size=1,
            sliding_window=window,
        )
        config.layer_types = [{"f": "full_attention", "s": "sliding_attention"}[kind] for kind in kinds]
        self.cache = aegis.PagedKVCache(
            config,
            ROWS,
            CAPACITY,
            pages=pages,
            block_size=BLOCK,
            eviction=eviction,
            rollback=rollback,
            dtype=torch.float32,
            device="cpu",
        )
        self.rows, self.reached = [None] * ROWS, [0] * ROWS
        self.to_come = {}
        self.window, self.rollback, self.slides = window, rollback, "s" in kinds

    def given_back(self, row):
        """Tokens of a row that a sliding layer no longer has."""
        before = self.reached[row] - (self.window + self.rollback + 1)
        return max(before, 0) // BLOCK * BLOCK if self.slides else 0

    def set_row(self, row, text, reached=0):
        self.rows[row] = text
        self.reached[row] = max(reached, len(text)) if text else 0

    def in_use(self):
        return [row for row, text in enumerate(self.rows) if text is not None]

    @rule(data=st.data(), text=texts, dies=st.booleans())
    def feed(self, data, text, dies):
        self.feed_rows(data.draw(st.permutations(range(ROWS)))[: data.draw(st.integers(1, ROWS))], text, dies)

    def feed_rows(self, rows, text, dies=False):
        feeds = {row: (self.to_come.get(row, []) + text)[: len(text)] for row in rows}
        longer = {row: (self.rows[row] or []) + feeds[row] for row in rows}
        new = torch.tensor([content(longer[row])[-len(text) :] for row in rows]).view(len(rows), 1, len(text), 1)
        before = self.cache.row_lengths, self.cache.rows_in_use, self.cache.pages_in_use
        shortest = min(before[0][row] for row in rows)
        with self.cache.rows(rows):
            try:
                self.cache.update(new, -new, 0)
            except (PagesExhausted, ValueError) as error:
                failed = type(error)
            else:
                failed = None
            full = max(map(len, longer.values())) > CAPACITY
            assert full == (failed is ValueError)
            if failed:
                assert before == (self.cache.row_lengths, self.cache.rows_in_use, self.cache.pages_in_use)
                return
            if dies:
                for row in rows:
                    self.rows[row] = self.rows[row] or []  # taken into use
                return
            keys, values = self.cache.update(new, -new, 1)
        assert torch.equal(keys, -values)
        slides = self.cache.layers[1].is_sliding
        start = max(shortest - self.window + 1, 0) if slides else 0
        for b, row in enumerate(rows):
            seen = max(before[0][row] - self.window + 1, 0) if slides else 0
            assert keys[b, 0, seen - start : len(longer[row]) - start, 0].tolist() == content(longer[row])[seen:]
            self.set_row(row, longer[row], self.reached[row])
            self.to_come[row] = self.to_come.get(row, [])[len(text) :]

    @rule(text=texts, named=st.booleans())
    def acquire(self, text, named):
        if None not in self.rows:
            with pytest.raises(RuntimeError, match="expected a free row"):
                self.cache.acquire_row(text if named else None)
            return
        row = self.cache.acquire_row(text) if named else self.cache.acquire_row()
        assert row == self.rows.index(None)
        there = self.cache.row_lengths[row]
        assert there % BLOCK == 0
        assert there < len(text)
        self.set_row(row, text[:there])
        self.to_come[row] = text[there:] if named else []

    @precondition(lambda self: self.in_use())
    @rule(data=st.data())
    def fork(self, data):
        row = data.draw(st.sampled_from(self.in_use()))
        if None not in self.rows:
            with pytest.raises(RuntimeError, match="expected a free row"):
                self.cache.fork(row)
            return
        self.fork_row(row)

    def fork_row(self, row):
        twin = self.cache.fork(row)
        assert twin == self.rows.index(None)
        self.set_row(twin, list(self.rows[row]), self.reached[row])
        self.to_come[twin] = list(self.to_come.get(row, []))

    @precondition(lambda self: None in self.rows and any(len(row or []) % BLOCK for row in self.rows))
    @rule(data=st.data(), text=texts, together=st.booleans())
    def fork_within_a_page_and_go_on(self, data, text, together):
        row = data.draw(st.sampled_from([row for row in self.in_use() if len(self.rows[row]) % BLOCK]))
        self.fork_and_go_on(row, text, together)

    def fork_and_go_on(self, row, text, together):
        both = [self.rows.index(None), row]
        self.fork_row(row)
        for rows in [both] if together else [both[:1], both[1:]]:
            self.feed_rows(rows, text)

    @precondition(lambda self: self.in_use())
    @rule(data=st.data())
    def tell(self, data):
        row = data.draw(st.sampled_from(self.in_use()))
        if not self.to_come.get(row):
            self.cache.tell(row, self.rows[row][self.cache.table.known(row) :])

    @rule(data=st.data())
    def crop(self, data):
        rows = self.in_use()
        counts = [data.draw(st.integers(0, 8)) for _ in rows]
        for row, count in zip(rows, counts, strict=True):
            length, gone = len(self.rows[row]), self.given_back(row)
            if length - count < gone + max(self.window - 1, 1) and gone and 0 < count < length:
                assert count > self.rollback - (self.reached[row] - length), "that much was promised"
                with pytest.raises(ValueError, match=f"row {row}: expected to lose at most"):
                    self.cache.crop([-count for count in counts])
                return
        self.cache.crop([-count for count in counts])
        for row, count in zip(rows, counts, strict=True):
            self.set_row(row, self.rows[row][: max(len(self.rows[row]) - count, 0)], self.reached[row])
            if count:
                self.to_come.pop(row, None)

    @rule(data=st.data())
    def reorder(self, data):
        rows = self.in_use()
        if rows:
            sources = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=ROWS))
            self.cache.reorder_cache(torch.tensor(sources))
            gathered = [(list(self.rows[source]), self.reached[source]) for source in sources]
            self.rows, self.reached = [None] * ROWS, [0] * ROWS
            for row, (text, reached) in enumerate(gathered):
                self.set_row(row, text, reached)
            self.to_come = {row: list(self.to_come.get(source, [])) for row, source in enumerate(sources)}

    @rule(row=st.integers(0, ROWS - 1))
    def free(self, row):
        if self.rows[row] is None:
            with pytest.raises(ValueError, match=f"row: expected one in use, got {row}"):
                self.cache.free_row(row)
            return
        self.cache.free_row(row)
        self.rows[row], self.reached[row] = None, 0
        self.to_come.pop(row, None)

    @rule()
    def copy(self):
        self.cache = copy.deepcopy(self.cache)

    @rule()
    def reset(self):
        self.cache.reset()
        self.rows, self.reached, self.to_come = [None] * ROWS, [0] * ROWS, {}

    @invariant()
    def every_row_finds_its_tokens(self):
        if not hasattr(self, "cache"):
            return
        lengths = [len(row or []) for row in self.rows]
        assert self.cache.row_lengths == self.cache.lengths.tolist() == lengths
        assert self.cache.rows_in_use == self.in_use()
        for layer in self.cache.layers:
            self.every_row_finds_its_tokens_in(layer)

    def every_row_finds_its_tokens_in(self, layer):
        table = self.cache.tables[layer.kind]
        table.check_invariants()
        nothing = table.pages + ROWS
        for row, text in enumerate(self.rows):
            gone = self.given_back(row) if layer.is_sliding else 0
            pages = [nothing] * (gone // BLOCK) + table.pages_of(row)[gone // BLOCK :].tolist()
            count = -(-len(text or []) // BLOCK)
            blocks = self.cache.block_tables[layer.kind][row].tolist()
            assert blocks[: len(pages)] == pages
            assert set(blocks[len(pages) :]) <= {table.pages + row}
            kept = layer.keys[blocks[:count]].flatten()[gone : len(text or [])]
            assert kept.tolist() == content(text or [])[gone:]
        assert not layer.keys[nothing].any()
        # A page that was to be copied, and was not, then holds nothing that looks like its content.
        free = torch.from_numpy(table.mask(used=False, evictable=False)).nonzero().flatten()
        layer.keys[free], layer.values[free] = -1, 1


TestMachine = Machine.TestCase
TestMachine.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("length", range(1, 2 * BLOCK))
def test_forks_within_a_page(length, together):
    """What the random tests need not come to."""
    machine = Machine()
    machine.start(pages=12, eviction="lru")
    machine.feed_rows([1], [1] * length)
    machine.every_row_finds_its_tokens()
    for text in ([0], [1, 0]):
        machine.fork_and_go_on(1, text, together)
        machine.every_row_finds_its_tokens()
