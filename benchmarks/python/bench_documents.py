"""Batches of token rows that know of documents, against the plain extraction of the same tokens."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import torch
from harness import Table, interleave, main, median

BATCH, BLOCK = 32, 1024
PLAIN = "plain windows"
# These write more bytes than inputs and targets have.
UNBOUND = ("packed, document_ids", "packed, every field")


def endless(loader: Any) -> Callable[[], Any]:
    batches = (batch for _ in itertools.count() for batch in loader)
    return lambda: next(batches)


def token_file(folder: Path, tokens: int) -> tuple[Path, Any]:
    """uint16 tokens, and documents of 20 to several thousand tokens, half of them shorter than 400."""
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(6, 1, tokens // 200)).astype(np.int64) + 20
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    bounds = np.append(bounds[bounds < tokens], tokens)
    path = folder / "tokens.bin"
    random.integers(0, 50_257, tokens, dtype=np.uint16).tofile(path)
    return path, bounds


def build(quick: bool) -> Table:
    """Documents and packing."""
    torch.set_num_threads(1)
    tokens = 4_000_000 if quick else 40_000_000
    table = Table(f"Documents: shuffled batches of {BATCH} × {BLOCK} tokens out of {tokens:,}, in the calling thread")
    with tempfile.TemporaryDirectory() as folder:
        path, bounds = token_file(Path(folder), tokens)

        def contender(**arguments: Any) -> Callable[[], Any]:
            dataset = aegis.TokenDataset(path, BLOCK, dtype="uint16", **arguments)
            return endless(aegis.FlatArenaDataLoader(dataset, BATCH, shuffle=True, seed=1, drop_last=True))

        given = {"documents": [bounds]}
        everything = ("document_ids", "position_ids", "cu_seqlens")
        contenders = {
            PLAIN: contender(),
            "windows, no loss across documents": contender(**given),
            "windows, cu_seqlens": contender(**given, fields=("cu_seqlens",)),
            "aligned, cu_seqlens": contender(**given, layout="aligned", fields=("cu_seqlens",)),
            "packed, cu_seqlens": contender(**given, layout="packed", fields=("cu_seqlens",)),
            "packed, document_ids": contender(**given, layout="packed", fields=("document_ids",)),
            "packed, every field": contender(**given, layout="packed", fields=everything),
        }
        for next_batch in contenders.values():  # packs every group once
            for _ in range(tokens // BLOCK // BATCH):
                next_batch()
        seconds = interleave(contenders, rounds=4 if quick else 30)
    us = {name: median(times) * 1e6 for name, times in seconds.items()}
    for name in list(us)[1:]:
        if name in UNBOUND:
            table.compared(name, PLAIN, us[PLAIN], us[name], "µs")
        else:
            table.ratio(name, PLAIN, us[PLAIN], us[name], "µs", 1 / 1.2)
    return table


if __name__ == "__main__":
    main(build)
