"""PagedKVCache beside SlottedStaticCache: the memory of sequences of unequal length, and what a token costs.

Runs where `transformers` is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

LAYERS, HEADS, KEY_HEADS, SIZE = 4, 16, 4, 64
CAPACITY = 2048


def config() -> Any:
    import transformers

    return transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=HEADS * SIZE,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        attn_implementation="aegis",
    )


def fill(cache: Any, row: int, length: int) -> None:
    keys = torch.randn(1, KEY_HEADS, length, SIZE)
    with cache.rows([row]):
        for layer in range(LAYERS):
            cache.update(keys, keys, layer)


def memory(table: Table, rows: int) -> None:
    """Lengths of CAPACITY and its halves, down to a sixteenth."""
    lengths = [CAPACITY >> row % 5 for row in range(rows)]
    paged = aegis.PagedKVCache(config(), rows, CAPACITY)
    for length in lengths:
        fill(paged, paged.acquire_row(), length)
    slotted = aegis.SlottedStaticCache(config(), rows, CAPACITY, dtype=torch.float32, device="cpu")
    whole = sum(t.nbytes for layer in slotted.layers for t in (layer.keys, layer.values))
    used = paged.pages_in_use * paged.page_bytes
    what = f"{rows} sequences of {min(lengths):,} to {max(lengths):,} tokens, {sum(lengths) // rows:,} on average"
    table.ratio(what, f"a slotted cache of {CAPACITY:,} a row", whole / 2**20, used / 2**20, "MiB", 2)


def prefix(table: Table) -> None:
    cache = aegis.PagedKVCache(config(), 100, CAPACITY, pages=512)
    row = cache.acquire_row(range(1000))
    fill(cache, row, 1000)
    one = cache.pages_in_use
    for _ in range(99):
        cache.fork(row)
    table.limit(
        f"100 sequences with a common prefix of 1,000 tokens, beside {one} pages of one", cache.pages_in_use, "pages",
        one * 1.05,
    )  # fmt: skip


def windows(table: Table) -> None:
    """Long texts in a model of which three layers of four slide, as Gemma's do, and in one of which all do."""
    window, length, chunk = 256, CAPACITY, 128
    for name, kinds in (("three layers of four", "sssf"), ("all layers", "ssss")):
        mixed = config()
        mixed.sliding_window = window
        mixed.layer_types = [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in kinds]
        paged = aegis.PagedKVCache(mixed, 4, CAPACITY, prefill_chunk=chunk)
        for row in range(4):
            for _ in range(length // chunk):
                fill(paged, row, chunk)
        whole = 4 * length // 16 * paged.page_bytes
        what = f"4 texts of {length:,} tokens, windows of {window} in {name}"
        table.ratio(what, "pages for every position", whole / 2**20, paged.bytes_in_use / 2**20, "MiB", 2)


def attention(length: int, dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """One query of each of 4 rows; all give the same."""
    query = torch.randn(4, HEADS, 1, SIZE).to(dtype)
    count = length // 16
    keys, values = torch.randn(2, 4 * count, KEY_HEADS, 16, SIZE).to(dtype)
    blocks = torch.randperm(4 * count).view(4, count)
    spans = torch.tensor([[0, length]] * 4)

    def linear(pool: Tensor) -> Tensor:
        return pool[blocks].transpose(1, 2).reshape(4, KEY_HEADS, length, SIZE)

    flat = linear(keys), linear(values)

    def gathered() -> Tensor:
        return scaled_dot_product_attention(query, linear(keys), linear(values), enable_gqa=True).transpose(1, 2)

    def ours() -> Tensor:
        return aegis.ops.decode_attention(query, keys, values, spans, SIZE**-0.5, blocks=blocks)

    def one_buffer() -> Tensor:
        return aegis.ops.decode_attention(query, *flat, spans, SIZE**-0.5)

    assert torch.equal(ours(), one_buffer())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ours(), gathered(), rtol=tolerance, atol=tolerance)
    return {"gathered": gathered, "one buffer": one_buffer, "aegis": ours}


def update(rows: int) -> dict[str, Callable[[], object]]:
    """A token of each row for all layers, cropped again now and then, so that lengths stay near 512."""
    token = torch.randn(rows, KEY_HEADS, 1, SIZE)

    def run(cache: Any) -> Callable[[], object]:
        for row in range(rows):
            fill(cache, row, 512)

        def step() -> None:
            for layer in range(LAYERS):
                cache.update(token, token, layer)
            if cache.row_lengths[0] > 1000:
                cache.crop(-480)

        return step

    return {
        "slotted": run(aegis.SlottedStaticCache(config(), rows, CAPACITY)),
        "paged": run(aegis.PagedKVCache(config(), rows, CAPACITY)),
    }


def build(quick: bool) -> Table:
    """PagedKVCache beside SlottedStaticCache."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = Table("PagedKVCache: memory, and what a token costs")
    if importlib.util.find_spec("transformers"):
        memory(table, 16 if quick else 64)
        prefix(table)
        windows(table)
        for rows in (1, 16):
            seconds = interleave(update(rows), 20 if quick else 200)
            us = {name: median(times) * 1e6 / LAYERS for name, times in seconds.items()}
            table.compared(f"`update`, a layer, {rows} rows", "slotted", us["slotted"], us["paged"], "µs")
    else:
        table.notes.append("The caches were left out: transformers is not installed.")
    for length in (512, 4096):
        for dtype in (torch.float32, torch.bfloat16):
            with torch.inference_mode():
                seconds = interleave(attention(length, dtype), 5 if quick else 15, burst=3)
            us = {name: median(times) * 1e6 for name, times in seconds.items()}
            what = f"attention of 4 rows to {length:,} positions, {str(dtype).removeprefix('torch.')}"
            table.ratio(what, "SDPA over a linear copy of the pages", us["gathered"], us["aegis"], "µs", 1)
            table.compared(what, "decode_attention over one buffer", us["one buffer"], us["aegis"], "µs")
    table.notes.append(f"{LAYERS} layers of {KEY_HEADS} key heads of {SIZE}, pages of 16 tokens, 1 thread, warm.")
    return table


if __name__ == "__main__":
    main(build)
