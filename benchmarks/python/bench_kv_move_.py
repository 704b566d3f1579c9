"""The operator kv_move_ against torch's way of moving tokens of a cache to the places before them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import Table, interleave, main, median
from torch import Tensor

HEADS, SLOTS, SIZE = 8, 512, 128


def contenders(batch: int, path: list[int], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    keys, values = torch.randn(2, batch, HEADS, SLOTS, SIZE).to(dtype)
    start = SLOTS // 2
    chosen = torch.tensor([start + node for node in path])
    sources, positions = chosen.repeat(batch, 1), torch.full((batch,), start)
    move = torch.ops.aegis.kv_move_.default

    def indexed() -> None:
        for buffer in (keys, values):
            buffer[:, :, start : start + len(path)] = buffer.index_select(2, chosen)

    want: list[Tensor] = [buffer.index_select(2, chosen) for buffer in (keys, values)]
    move(keys, values, sources, positions)
    for buffer, kept in zip((keys, values), want, strict=True):
        assert torch.equal(buffer[:, :, start : start + len(path)], kept)
    return {
        "index_select": indexed,
        "aegis": lambda: move(keys, values, sources, positions),
    }


def build(quick: bool) -> Table:
    """kv_move_ against index_select and a slice copy."""
    torch.set_num_threads(1)
    rounds = 20 if quick else 400
    table = Table(f"kv_move_ from Python: {HEADS} heads of size {SIZE}, keys and values of one layer (isolated)")
    for what, batch, path, dtype, target in (
        ("a path of 3 tokens, float32", 1, [1, 6, 13], torch.float32, 1.0),
        ("a path of 3 tokens, bfloat16", 1, [1, 6, 13], torch.bfloat16, 1.0),
        ("a path of 3 tokens, 8 rows, float32", 8, [1, 6, 13], torch.float32, 1.0),
    ):
        seconds = interleave(contenders(batch, path, dtype), rounds)
        us = {name: median(times) * 1e6 for name, times in seconds.items()}
        table.ratio(what, "index_select, slice copy", us["index_select"], us["aegis"], "µs", target)
    return table


if __name__ == "__main__":
    main(build)
