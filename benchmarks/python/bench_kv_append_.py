"""The operator kv_append_ against torch's ways of writing into a static cache, and a cache's update of one layer.

The caches are Hugging Face's and aegis.SlottedStaticCache, and run where `transformers` is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor

HEADS, SIZE = 8, 128


def new_tokens(batch: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As a model makes them: transposed views."""
    keys, values = torch.randn(2, batch, tokens, HEADS, SIZE).to(dtype).transpose(2, 3)
    return keys, values


def contenders(batch: int, tokens: int, slots: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    keys, values = torch.zeros(2, batch, HEADS, slots, SIZE, dtype=dtype)
    new_keys, new_values = new_tokens(batch, tokens, dtype)
    start = slots // 2
    positions, places = torch.full((batch,), start), torch.arange(start, start + tokens)
    append = torch.ops.aegis.kv_append_.default

    def index_copy() -> None:
        keys.index_copy_(2, places, new_keys)
        values.index_copy_(2, places, new_values)

    def slices() -> None:
        keys[:, :, start : start + tokens] = new_keys
        values[:, :, start : start + tokens] = new_values

    index_copy()
    want = keys.clone(), values.clone()
    keys.zero_()
    values.zero_()
    append(keys, values, new_keys, new_values, positions)
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])
    return {
        "index_copy_": index_copy,
        "slices": slices,
        "aegis": lambda: append(keys, values, new_keys, new_values, positions),
    }


def caches(length: int) -> dict[str, Callable[[], object]]:
    """A token for all layers of a Llama of six, cropped again, so that the length stays."""
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=6, hidden_size=HEADS * SIZE, num_attention_heads=HEADS, num_key_value_heads=HEADS
    )
    prompt, token = new_tokens(1, length, torch.float32), new_tokens(1, 1, torch.float32)

    def update(cache: Any) -> Callable[[], object]:
        for layer in range(6):
            cache.update(*prompt, layer)

        def run() -> None:
            for layer in range(6):
                cache.update(*token, layer)
            cache.crop(-1)

        return run

    return {
        "DynamicCache": update(transformers.DynamicCache(config=config)),
        "StaticCache": update(transformers.StaticCache(config=config, max_cache_len=4096)),
        "aegis": update(aegis.SlottedStaticCache(config, 1, 4096)),
    }


def build(quick: bool) -> Table:
    """kv_append_ against index_copy_ and slices; SlottedStaticCache against Hugging Face's caches."""
    torch.set_num_threads(1)
    rounds = 20 if quick else 400
    table = Table(f"kv_append_ from Python: {HEADS} heads of size {SIZE}, keys and values of one layer (isolated)")
    for what, batch, tokens, dtype, target in (
        ("1 token, float32", 1, 1, torch.float32, 1.0),
        ("1 token, bfloat16", 1, 1, torch.bfloat16, 1.0),
        ("1 token, 8 rows, float32", 8, 1, torch.float32, 1.0),
        ("512 tokens, float32", 1, 512, torch.float32, 1.0),
    ):
        seconds = interleave(contenders(batch, tokens, 4096, dtype), rounds)
        us = {name: median(times) * 1e6 for name, times in seconds.items()}
        table.ratio(what, "two index_copy_", us["index_copy_"], us["aegis"], "µs", target)
        table.compared(what, "two slice copies", us["slices"], us["aegis"], "µs")
        if what == "1 token, float32":
            table.limit(what, us["aegis"], "µs", 2.5)
    if importlib.util.find_spec("transformers"):
        for length in (64, 2048):
            seconds = interleave(caches(length), rounds // 4)
            us = {name: median(times) * 1e6 / 6 for name, times in seconds.items()}
            for name in ("DynamicCache", "StaticCache"):
                what = f"a cache's `update`, a layer, {length:,} tokens held"
                table.compared(what, name, us[name], us["aegis"], "µs")
    else:
        table.notes.append("Caches were left out: transformers is not installed.")
    return table


if __name__ == "__main__":
    main(build)
