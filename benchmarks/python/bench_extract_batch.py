"""The operator extract_batch, called from Python: 64 windows of 256 tokens, cold and warm apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import aegis  # noqa: F401
import numpy as np
import torch
from harness import Table, interleave, main, median

BATCH, BLOCK = 64, 256


def nanogpt_batch(data: np.ndarray, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loop that nanoGPT's get_batch runs (github.com/karpathy/nanoGPT), in its shape."""
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts])
    return x, y


def vectorised_batch(windows: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best that torch's own operators do: gather overlapping views at once, then widen."""
    rows = windows[starts].to(torch.int64)
    return rows[:, :-1], rows[:, 1:]


def contenders(data: np.ndarray, seed: int) -> dict[str, Callable[[], object]]:
    arena = torch.from_numpy(data)
    # uint16 has no indexing kernel in torch; int16 has the same bits.
    windows = torch.from_numpy(data.view(np.int16)).unfold(0, BLOCK + 1, 1)
    random = np.random.default_rng(seed)

    def starts() -> torch.Tensor:
        return torch.from_numpy(random.integers(0, len(data) - BLOCK, BATCH))

    one = starts()
    x, y = torch.ops.aegis.extract_batch(arena, one, BLOCK)
    for other in (nanogpt_batch(data, one), vectorised_batch(windows, one)):
        assert torch.equal(x, other[0])
        assert torch.equal(y, other[1])
    inputs, targets = torch.empty_like(x), torch.empty_like(y)
    return {
        "nanoGPT's loop": lambda: nanogpt_batch(data, starts()),
        "vectorised torch": lambda: vectorised_batch(windows, starts()),
        "aegis": lambda: torch.ops.aegis.extract_batch(arena, starts(), BLOCK),
        "aegis, out=": lambda: torch.ops.aegis.extract_batch.out(arena, starts(), inputs=inputs, targets=targets),
        "memcpy": lambda: (starts(), inputs.copy_(x), targets.copy_(y)),
        "starts alone": starts,
    }


def build(quick: bool) -> Table:
    """extract_batch against a Python loop and vectorised torch."""
    torch.set_num_threads(1)
    table = Table("extract_batch from Python: 64 × 256 tokens (isolated)")
    rounds = 10 if quick else 60
    tokens = {"cold": (20 if quick else 512) * 2**20, "warm": 2**20}
    with tempfile.TemporaryDirectory() as folder:
        for state, count in tokens.items():
            path = Path(folder) / f"{state}.bin"
            np.random.default_rng(0).integers(0, 2**15, count, dtype=np.uint16).tofile(path)
            data = np.memmap(path, np.uint16, "r+")
            assert int(data.max()) < 2**15  # and every page is mapped, for all contenders alike
            seconds = interleave(contenders(data, seed=1), rounds)
            drawing = median(seconds["starts alone"])
            us = {name: (median(times) - drawing) * 1e6 for name, times in seconds.items()}
            where = f"{state} ({2 * count / 2**20:,.0f} MB of tokens)"
            table.ratio(f"whole op, {where}", "vectorised torch", us["vectorised torch"], us["aegis"], "µs", 3)
            table.ratio(
                f"whole op, {where}",
                "nanoGPT's loop",
                us["nanoGPT's loop"],
                us["aegis"],
                "µs",
                80 if state == "cold" else 1,
            )
            table.ratio(
                f"op with out=, {where}", "vectorised torch", us["vectorised torch"], us["aegis, out="], "µs", 3
            )
            if state == "warm":
                table.figure("copying as many bytes with torch, warm", us["memcpy"], "µs")
    table.notes.append(
        "Both sides draw their own random offsets; that time is subtracted. Cold: windows lie in a page-cached file "
        "far larger than the CPU's caches. nanoGPT's loop is a Python loop over rows, not a DataLoader."
    )
    return table


if __name__ == "__main__":
    main(build)
