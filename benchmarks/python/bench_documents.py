"""Batches of token rows that know of documents, against the plain extraction of the same tokens; mixtures; starts."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from aegis import _C
from harness import Table, interleave, main, median

BATCH, BLOCK = 32, 2048
PLAIN = "plain windows"
# What writes more bytes than inputs and targets have is shown beside them, without a target.
MORE_BYTES = ("packed, document_ids", "packed, every field")


def endless(loader: Any) -> Callable[[], Any]:
    batches = (batch for _ in itertools.count() for batch in loader)
    return lambda: next(batches)


def token_file(folder: Path, tokens: int) -> tuple[Path, Any]:
    """uint16 tokens, and documents of 20 to several thousand tokens, half of them shorter than 420."""
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(6, 1, tokens // 200)).astype(np.int64) + 20
    bounds = np.cumsum([0, *lengths])
    path = folder / "tokens.bin"
    random.integers(0, 50_257, tokens, dtype=np.uint16).tofile(path)
    return path, np.append(bounds[bounds < tokens], tokens)


def rows(path: Path, bounds: Any, quick: bool) -> dict[str, float]:
    """Microseconds of a batch of each kind."""
    given = {"documents": [bounds]}
    kinds: dict[str, dict[str, Any]] = {
        PLAIN: {},
        "plain windows, 2049 apart": {"stride": BLOCK + 1},
        "windows, no loss across documents": given,
        "windows, cu_seqlens": {**given, "fields": ("cu_seqlens",)},
        "aligned, cu_seqlens": {**given, "layout": "aligned", "fields": ("cu_seqlens",)},
        "packed": {**given, "layout": "packed"},
        "packed, cu_seqlens": {**given, "layout": "packed", "fields": ("cu_seqlens",)},
        MORE_BYTES[0]: {**given, "layout": "packed", "fields": ("document_ids",)},
        MORE_BYTES[1]: {**given, "layout": "packed", "fields": ("document_ids", "position_ids", "cu_seqlens")},
    }
    contenders = {}
    for seed, (name, arguments) in enumerate(kinds.items()):  # nobody reads what another has just brought to the caches
        dataset = aegis.TokenDataset(path, BLOCK, dtype="uint16", **arguments)
        loader = aegis.FlatArenaDataLoader(dataset, BATCH, shuffle=True, seed=seed, drop_last=True)
        for _ in loader:  # reads all, and packs every group
            pass
        contenders[name] = endless(loader)
    seconds = interleave(contenders, rounds=6 if quick else 40)
    return {name: median(times) * 1e6 for name, times in seconds.items()}


def choice_ns(sources: int) -> float:
    """Of one position's sample in a shuffled mixture, called from Python less the same call of a plain order."""
    round_ = _C.MixtureRound([1 + at % 7 for at in range(sources)])
    order = _C.MixtureOrder(round_, [(10**9, 0, 0)] * sources, phase=0, seed=1, shuffle=True)
    positions = 100_000
    mixed = _C.Schedule(positions, positions, order=order)
    plain = _C.Schedule(positions, positions)
    times = interleave({"mixed": lambda: mixed.batch(0), "plain": lambda: plain.batch(0)}, rounds=5, burst=3)
    return (median(times["mixed"]) - median(times["plain"])) / positions * 1e9


def first_batch(folder: Path, state: dict[str, Any] | None) -> tuple[float, dict[str, Any]]:
    """Milliseconds from nothing to a batch of 10^9 samples of sparse files, a shuffled mixture of three; and its state
    at step 10^7."""
    start = time.perf_counter()
    sources = [aegis.TokenDataset(folder / f"sparse{at}.bin", 16, dtype="uint16", stride=1) for at in range(3)]
    mixture = aegis.TokenMixture(sources, [0.5, 0.3, 0.2])
    with aegis.FlatArenaDataLoader(mixture, 64, shuffle=True, seed=1) as loader:
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        elapsed = time.perf_counter() - start
        return elapsed * 1e3, {**loader.state_dict(), "position": 64 * 10**7}


def build(quick: bool) -> Table:
    """Documents, mixtures, starts."""
    torch.set_num_threads(1)
    tokens = 4_000_000 if quick else 40_000_000
    table = Table(f"Documents and mixtures: shuffled batches of {BATCH} × {BLOCK} tokens, in the calling thread")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        us = rows(*token_file(folder, tokens), quick)
        for kind in list(us)[1:]:
            if kind in MORE_BYTES:
                table.compared(kind, PLAIN, us[PLAIN], us[kind], "µs")
            else:
                table.ratio(kind, PLAIN, us[PLAIN], us[kind], "µs", 0.83)
        for sources in (2, 10, 1000):
            table.limit(f"choice and shuffle of one sample, {sources} sources", choice_ns(sources), "ns", 1000)
        for at in range(3):
            with (folder / f"sparse{at}.bin").open("wb") as file:
                file.truncate(2 * (10**9 // 3 + 16))
        ms, state = first_batch(folder, None)
        table.limit("first batch of a mixture of 10⁹ samples", ms, "ms", 50)
        table.limit("first batch of it, resumed at step 10⁷", first_batch(folder, state)[0], "ms", 50)
    table.notes.append(
        "Plain windows are those of a data set without documents. Half of the documents have fewer than 420 tokens. "
        "Every group of packed rows was packed before, and no contender reads the rows of another. document_ids and "
        "position_ids add 4 bytes each to the 16 that a token has in inputs and targets."
    )
    return table


if __name__ == "__main__":
    main(build)
