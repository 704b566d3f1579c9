"""The operator to_bfloat16_rne, called from Python, against torch's conversion."""

from __future__ import annotations

import torch
from aegis import ops
from harness import Table, interleave, main, median


def build(quick: bool) -> Table:
    """to_bfloat16_rne against Tensor.copy_ and Tensor.to."""
    torch.set_num_threads(1)
    table = Table("to_bfloat16_rne from Python (isolated)")
    for count in (1 << 10, 1 << 16, 1 << 24):
        x = torch.randn(count)
        out, theirs = torch.empty(count, dtype=torch.bfloat16), torch.empty(count, dtype=torch.bfloat16)
        assert torch.equal(ops.to_bfloat16_rne(x, out=out), theirs.copy_(x))
        calls = {
            "torch": lambda x=x, out=theirs: out.copy_(x),  # type: ignore[misc]
            "aegis": lambda x=x, out=out: ops.to_bfloat16_rne(x, out=out),  # type: ignore[misc]
        }
        seconds = interleave(calls, rounds=2 if quick else 15, burst=4 if count > 1 << 20 else 50)
        us = {name: 1e6 * median(times) for name, times in seconds.items()}
        table.compared(f"{count:,} values into memory that is there", "out.copy_(x)", us["torch"], us["aegis"], "µs")
    x = torch.randn(4096, 4096).t()
    assert torch.equal(ops.to_bfloat16_rne(x), x.to(torch.bfloat16))
    seconds = interleave(
        {
            "torch": lambda: x.to(torch.bfloat16, memory_format=torch.contiguous_format),
            "aegis": lambda: ops.to_bfloat16_rne(x),
        },
        rounds=1 if quick else 4,
        burst=1,
    )
    us = {name: 1e6 * median(times) for name, times in seconds.items()}
    table.compared("4096 × 4096, transposed, to contiguous", "x.to(contiguous)", us["torch"], us["aegis"], "µs")
    table.notes.append(
        "One thread. What is gained is the same NaN everywhere and denormal numbers that stay, not time: "
        "torch converts as fast."
    )
    return table


if __name__ == "__main__":
    main(build)
