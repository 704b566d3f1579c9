"""PagedKVCache where Ctrl-C comes in the middle of a change of rows: the next call finds everything in order."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from aegis.decode import PageTable
from test_paged_cache_machine import BLOCK, ROWS, Machine, content

CALLS = ("begin", "free", "fork", "crop", "trim", "tell", "extend", "pages_of")
TEXT = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0]


def interrupt(patch, call, after):
    """The call-th call of a table ends as Ctrl-C would end it: before anything was done, or when all was."""
    count = 0

    def interrupted(method):
        def run(*arguments):
            nonlocal count
            count += 1
            if count == call and not after:
                raise KeyboardInterrupt
            result = method(*arguments)
            if count == call:
                raise KeyboardInterrupt
            return result

        return run

    for name in CALLS:
        patch.setattr(PageTable, name, interrupted(getattr(PageTable, name)))


def machine_with_rows():
    """Three rows of different lengths, of which two share their beginning; one is free."""
    machine = Machine()
    machine.start(pages=30, eviction="lru", kinds="sf", window=3, rollback=2)
    machine.acquire(TEXT, True)
    machine.feed_rows([0], TEXT)
    machine.acquire([*TEXT[:7], 1], True)
    machine.feed_rows([1], [0, 0])
    machine.feed_rows([2], [1, 1, 0, 1])
    return machine


def feed(machine):
    """A pass over two rows."""
    texts = [[*(machine.rows[row]), 1, 0] for row in (0, 2)]
    new = torch.tensor([content(text)[-2:] for text in texts]).view(2, 1, 2, 1)
    with machine.cache.rows([0, 2]):
        machine.cache.update(new, -new, 0)
        machine.cache.update(new, -new, 1)


def gathered(rows):
    return [rows[2], rows[0], rows[0], None]


# What is done to the cache, and what its rows are then.
CHANGES = {
    "free_row": (lambda m: m.cache.free_row(0), lambda rows: [None, *rows[1:]]),
    "reset": (lambda m: m.cache.reset(), lambda rows: [None] * ROWS),
    "reorder": (lambda m: m.cache.reorder_cache(torch.tensor([2, 0, 0])), gathered),
    "crop": (lambda m: m.cache.crop([-1, -2, -3]), lambda rows: [rows[0][:-1], rows[1][:-2], rows[2][:-3], None]),
    "fork": (lambda m: m.cache.fork(0), lambda rows: [*rows[:3], rows[0]]),
    "acquire": (lambda m: m.cache.acquire_row(TEXT), lambda rows: [*rows[:3], TEXT[:9]]),
    "feed": (feed, lambda rows: [[*rows[0], 1, 0], rows[1], [*rows[2], 1, 0], None]),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_interrupted_is_done_or_not(change, after, monkeypatch):
    run, then = CHANGES[change]
    for call in range(1, 200):
        machine = machine_with_rows()
        rows, reached = list(machine.rows), list(machine.reached)
        with monkeypatch.context() as patch:
            interrupt(patch, call, after)
            try:
                run(machine)
            except KeyboardInterrupt:
                done = False
            else:
                done = True
        assert machine.cache.lengths is not None  # a question: from now on all is in order
        lengths = machine.cache.row_lengths
        for row, text in enumerate(then(rows)):
            # As it was, as it was to be, or taken into use and still empty.
            states = [text] if done else [rows[row], text, []]
            machine.rows[row] = next(s for s in states if lengths[row] == len(s or []))
            if row not in machine.cache.rows_in_use:
                machine.rows[row] = None
            elif machine.rows[row] is None:
                machine.rows[row] = []
        sources = [2, 0, 0, 3] if change == "reorder" and lengths[0] == len(rows[2]) else range(ROWS)
        known = [reached[source] for source in sources]
        if change == "fork":
            known[3] = reached[0]
        machine.reached = [max(known[row], len(text)) if text else 0 for row, text in enumerate(machine.rows)]
        machine.to_come = {row: tokens.tolist() for row, tokens in machine.cache._positions._untold.items()}
        check(machine)
        for row in machine.in_use():
            if len(machine.rows[row]) < 16:
                machine.feed_rows([row], [0, 1, 1])
                check(machine)
        machine.acquire(TEXT, True)
        check(machine)
        if done:
            break
    assert call > 2


def check(machine):
    """All but what a sliding layer may have kept longer, where the pass that was interrupted did not come to it."""
    for layer in machine.cache.layers:
        table = machine.cache.tables[layer.kind]
        table.check_invariants()
        for row, text in enumerate(machine.rows):
            gone = machine.given_back(row) if layer.is_sliding else 0
            assert table.trimmed(row) <= gone
            count = -(-len(text or []) // BLOCK)
            blocks = machine.cache.block_tables[layer.kind][row].tolist()
            kept = layer.keys[blocks[:count]].flatten()[gone : len(text or [])]
            assert kept.tolist() == content(text or [])[gone:]
        for there in machine.rows:  # what can be shared is what it is called
            found = table.lookup(there or [])
            if found:
                table.begin(99, there[:found])
                pages = table.pages_of(99).tolist()
                assert layer.keys[pages].flatten().tolist() == content(there)[:found]
                table.free(99)
