"""The operator decode_attention against scaled_dot_product_attention, over whole buffers and over their live parts."""

from __future__ import annotations

from collections.abc import Callable

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SLOTS = 4096


def contenders(
    heads: int, key_heads: int, size: int, length: int, dtype: torch.dtype
) -> dict[str, Callable[[], Tensor]]:
    """One query and `length` live positions of a cache; all give the same."""
    query = torch.randn(1, heads, 1, size).to(dtype)
    keys, values = (torch.randn(1, key_heads, SLOTS, size).to(dtype) for _ in range(2))
    live_keys, live_values = keys[:, :, :length], values[:, :, :length]
    mask = (torch.arange(SLOTS) < length).view(1, 1, 1, SLOTS)
    spans = torch.tensor([[0, length]])
    grouped = heads != key_heads
    scale = size**-0.5

    def whole() -> Tensor:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)

    def live() -> Tensor:
        return scaled_dot_product_attention(query, live_keys, live_values, enable_gqa=grouped)

    def ours() -> Tensor:
        return aegis.ops.decode_attention(query, keys, values, spans, scale)

    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for theirs in (whole(), live()):
        torch.testing.assert_close(ours(), theirs.transpose(1, 2), rtol=tolerance, atol=tolerance)
    return {"whole": whole, "live": live, "aegis": ours}


def build(quick: bool) -> Table:
    """decode_attention against torch."""
    torch.manual_seed(0)
    table = Table("decode_attention from Python (isolated)")
    float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16
    torch.set_num_threads(1)
    for heads, key_heads, size, length, dtype in (
        (6, 6, 64, 512, float32),
        (32, 8, 128, 512, float32),
        (6, 6, 64, 512, bfloat16),
        (32, 8, 128, 512, bfloat16),
        (32, 8, 128, 512, float16),
        (6, 6, 64, 64, float32),
        (32, 8, 128, 4096, float32),
        (32, 8, 128, 4096, bfloat16),
    ):
        if quick and length == SLOTS:
            continue
        with torch.inference_mode():
            seconds = interleave(contenders(heads, key_heads, size, length, dtype), 2 if quick else 15, burst=3)
        whole, live, ours = (median(seconds[name]) * 1e6 for name in ("whole", "live", "aegis"))
        shape = f"{heads} heads of {size}" + (f", {key_heads} of keys" if heads != key_heads else "")
        what = f"{shape}, {length:,} of {SLOTS:,} positions, {str(dtype).removeprefix('torch.')}"
        if length == 512:
            table.ratio(what, "SDPA over the whole buffer, with a mask", whole, ours, "µs", 4)
        table.compared(what, "SDPA over the live positions", live, ours, "µs")
    table.notes.append(
        "One row, 1 thread, warm: 512 positions fit the caches. SDPA over the live positions gets views of the same "
        "buffers."
    )
    return table


if __name__ == "__main__":
    main(build)
