"""Any sequence of appends, crops, moves and resets, against lists."""

from __future__ import annotations

import aegis
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ROWS, CAPACITY = 3, 24
Token = tuple[float, float]


class Machine(RuleBasedStateMachine):
    """Two layers, one of which slides. The model of a row is the list of its tokens, or None where it is free."""

    @initialize(window=st.integers(1, 6), rollback=st.integers(0, 4), attention=st.sampled_from(["sdpa", "aegis"]))
    def start(self, window: int, rollback: int, attention: str) -> None:
        config = transformers.MistralConfig(
            num_hidden_layers=2,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=1,
            sliding_window=window,
        )
        config.layer_types = ["sliding_attention", "full_attention"]
        config._attn_implementation = attention
        self.reads_spans = attention == "aegis"
        self.window, self.rollback = window, rollback
        self.cache = aegis.SlottedStaticCache(
            config, ROWS, CAPACITY, rollback=rollback, dtype=torch.float32, device="cpu"
        )
        self.rows: list[list[float] | None] = [None] * ROWS
        self.written = [0] * ROWS
        self.counter = 1.0
        self.addresses = self.pointers()

    def pointers(self) -> list[int]:
        return [t.data_ptr() for layer in self.cache.layers for t in (layer.keys, layer.values)]

    def in_use(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if row is not None]

    def fresh(self, batch: int, tokens: int) -> torch.Tensor:
        self.counter += batch * tokens
        return torch.arange(self.counter - batch * tokens, self.counter).view(batch, 1, tokens, 1)

    @rule(data=st.data(), tokens=st.integers(1, 12), dies=st.booleans())
    def append(self, data: st.DataObject, tokens: int, dies: bool) -> None:
        rows = data.draw(st.permutations(range(ROWS)))[: data.draw(st.integers(1, ROWS))]
        lengths = [len(self.rows[row] or []) for row in rows]
        new = self.fresh(len(rows), tokens)
        with self.cache.rows(rows):
            if max(lengths) + tokens > CAPACITY:
                before = [t.clone() for layer in self.cache.layers for t in (layer.keys, layer.values)]
                with pytest.raises(ValueError, match=f"expected at most {CAPACITY} tokens"):
                    self.cache.update(new, -new, 0)
                after = [t for layer in self.cache.layers for t in (layer.keys, layer.values)]
                assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
                return
            slots = self.cache.layers[0].slots
            if dies and all(length + tokens <= slots for length in lengths):  # where nothing can be lost
                self.cache.update(new, -new, 0)
                for row in rows:
                    self.rows[row] = self.rows[row] or []
                    self.written[row] = max(self.written[row], len(self.rows[row]) + tokens)
                return
            positions = [self.cache.layers[i].key_positions(len(rows), tokens) for i in range(2)]
            seen = [self.cache.update(new, -new, layer) for layer in range(2)]
        for b, row in enumerate(rows):
            self.rows[row] = (self.rows[row] or []) + new[b, 0, :, 0].tolist()
            self.written[row] = max(self.written[row], len(self.rows[row]))
        for layer in range(2):
            self.check(layer, rows, lengths, positions[layer], *seen[layer])

    @rule(data=st.data(), tokens=st.integers(1, 3), completed=st.booleans())
    def step(self, data: st.DataObject, tokens: int, completed: bool) -> None:
        """A pass in brackets goes over free rows, too, and gives whole buffers, or the window."""
        used, slots = self.in_use(), self.cache.layers[0].slots
        longest = max((len(self.rows[row]) for row in used), default=0)
        if (
            longest + tokens > CAPACITY
            or self.window - 1 + tokens > slots
            or (not completed and longest + tokens > slots)
        ):
            return
        new = self.fresh(ROWS, tokens)
        self.cache.begin_step(tokens)
        rows = used or list(range(ROWS))
        lengths = [len(row or []) for row in self.rows]
        positions = [self.cache.layers[i].key_positions(ROWS, tokens) for i in range(2)]
        seen = [[t.clone() for t in self.cache.update(new, -new, layer)] for layer in range(2)]
        for row in rows:
            self.rows[row] = self.rows[row] or []
            self.written[row] = max(self.written[row], len(self.rows[row]) + tokens)
        if not completed:
            self.cache.abort_step()
            return
        self.cache.commit_step(tokens)
        for row in rows:
            self.rows[row] = self.rows[row] + new[row, 0, :, 0].tolist()
        for layer in range(2):
            picked = [t[rows] for t in seen[layer]]
            self.check(layer, rows, [lengths[row] for row in rows], positions[layer][rows], *picked)

    def check(self, layer, rows, lengths, positions, keys, values) -> None:
        """Each row gets every token that its queries may see, where key_positions says, and beside those nothing but
        its own and zeros: nobody else's, and none that was taken back."""
        assert torch.equal(keys, -values)
        whole = self.reads_spans and len(self.rows[rows[0]]) == lengths[0] + 1
        slots = self.cache.layers[layer].slots
        read = max(lengths) + 1 if whole and slots == CAPACITY else keys.shape[2]
        for b, row in enumerate(rows):
            first = 0 if layer == 1 else max(lengths[b] - self.window + 1, 0)
            tokens, row_keys = self.rows[row], keys[b, 0, :, 0].tolist()
            held = dict(zip(positions[b].tolist(), row_keys, strict=False))
            if whole:
                held = {p: row_keys[p % slots] for p in range(first, len(tokens))}
            assert [held[p] for p in range(first, len(tokens))] == tokens[first:]
            assert set(row_keys[:read]) <= {0.0, *tokens}

    def croppable(self, row: int, count: int) -> bool:
        length = len(self.rows[row]) - count
        slots = self.cache.layers[0].slots
        first = max(length - self.window + 1, 0)
        return length <= 0 or first == length or first >= self.written[row] - slots

    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        rows = self.in_use()
        counts = [data.draw(st.integers(0, 8)) for _ in rows]
        if data.draw(st.booleans()):
            counts = counts[:1] * len(rows)
        even = len(set(counts)) == 1 and counts[0] > 0 and data.draw(st.booleans())
        argument = -counts[0] if even else [-count for count in counts]
        if not all(count == 0 or self.croppable(row, count) for row, count in zip(rows, counts, strict=True)):
            with pytest.raises(ValueError, match="expected to lose at most"):
                self.cache.crop(argument)
            return
        self.cache.crop(argument)
        for row, count in zip(rows, counts, strict=True):
            self.rows[row] = self.rows[row][: max(len(self.rows[row]) - count, 0)]
            self.written[row] = self.written[row] if self.rows[row] else 0

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        rows = self.in_use()
        if rows:
            sources = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=ROWS))
            self.cache.reorder_cache(torch.tensor(sources))
            rest = ROWS - len(sources)
            self.rows = [list(self.rows[s]) for s in sources] + [None] * rest
            self.written = [self.written[s] for s in sources] + [0] * rest

    @rule()
    def acquire(self) -> None:
        if None in self.rows:
            row = self.cache.acquire_row()
            assert row == self.rows.index(None)
            self.rows[row], self.written[row] = [], 0
        else:
            with pytest.raises(RuntimeError, match="expected a free row"):
                self.cache.acquire_row()

    @rule(row=st.integers(0, ROWS - 1))
    def free(self, row: int) -> None:
        self.cache.free_row(row)
        self.rows[row], self.written[row] = None, 0

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.rows, self.written = [None] * ROWS, [0] * ROWS

    @invariant()
    def lengths_agree(self) -> None:
        if hasattr(self, "cache"):
            lengths = [len(row or []) for row in self.rows]
            assert self.cache.row_lengths == self.cache.lengths.tolist() == lengths
            assert self.cache.rows_in_use == self.in_use()
            assert self.cache.get_seq_length() == max(lengths)
            assert self.pointers() == self.addresses


TestMachine = Machine.TestCase
TestMachine.settings = settings(deadline=None, max_examples=80, stateful_step_count=30)
