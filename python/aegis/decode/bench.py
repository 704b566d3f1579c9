"""``aegis.bench_generate``: how fast a model decodes here, beside ``model.generate``."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aegis.decode.generation import generate
from aegis.decode.runner import CUDAGraphFastRunner

__all__ = ["DecodeFigures", "StepClock", "bench_generate"]


class StepClock:
    """A streamer that notes when tokens come. The first call of ``put`` brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    @property
    def steps(self) -> list[float]:
        """Seconds of each decoding step; the prefill is none."""
        times = self.times[1:]
        return [after - before for before, after in itertools.pairwise(times)]


@dataclass(frozen=True)
class DecodeFigures:
    """What :func:`aegis.bench_generate` measured. Times are of steps after the prefill, in milliseconds."""

    rows: int
    tokens: int
    """New tokens of a row in each turn."""
    mode: str
    equal: bool | None
    """Whether both gave the same tokens; None where they were sampled."""
    theirs: tuple[float, float, float]
    """model.generate: tokens per second, p50 and p99 of a step."""
    ours: tuple[float, float, float]
    """aegis.generate, likewise."""

    @property
    def ratio(self) -> float:
        """How many times more tokens per second aegis gives."""
        return self.ours[0] / self.theirs[0]

    def __str__(self) -> str:
        lines = [f"{'':16}{'tokens/s':>10}{'p50 ms':>10}{'p99 ms':>10}"]
        for name, figures in (("model.generate", self.theirs), (f"aegis ({self.mode})", self.ours)):
            lines.append(f"{name:16}{figures[0]:10,.1f}{figures[1]:10.2f}{figures[2]:10.2f}")
        same = {None: "sampled", True: "same tokens", False: "DIFFERENT tokens"}[self.equal]
        lines.append(f"{self.ratio:.2f}x, {same}, {self.rows} x {self.tokens} tokens")
        return "\n".join(lines)


def bench_generate(
    model: Any,
    input_ids: Tensor,
    *,
    max_new_tokens: int = 64,
    turns: int = 3,
    runner: CUDAGraphFastRunner | None = None,
    quiet: bool = False,
    **options: Any,
) -> DecodeFigures:
    """Times ``aegis.generate`` against ``model.generate`` on the same model and prompt, in turns, and prints a table.

    Args:
        model, input_ids, runner, options: as :func:`aegis.generate` takes them; no token ends a row.
        max_new_tokens: of each row, in each of ``turns`` turns, after one that does not count.
        quiet: return the figures without printing.

    Raises:
        ValueError: fewer than 2 new tokens, or no turn; else as :func:`aegis.generate`.
    """
    for name, value, least in (("max_new_tokens", max_new_tokens, 2), ("turns", turns, 1)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    own = {name: options.pop(name) for name in ("seed", "stop_sequences") if name in options}
    options = {"max_new_tokens": max_new_tokens, "eos_token_id": None, "pad_token_id": 0, **options}
    if own.get("seed") is not None:
        options.setdefault("do_sample", True)
    rows, length = input_ids.shape
    rows *= options.get("num_return_sequences") or 1
    mode = options.pop("mode", "auto")
    if runner is None:  # one for all turns: a compiled step is compiled once
        room = length + max_new_tokens
        runner = CUDAGraphFastRunner(model, batch_size=rows, max_cache_len=room, mode=mode)
    theirs, ours = [], []
    result: list[Tensor] = []
    for turn in range(-1, turns):
        clocks = StepClock(), StepClock()
        result = [
            model.generate(input_ids, streamer=clocks[0], **options),
            generate(model, input_ids, streamer=clocks[1], runner=runner, **own, **options),
        ]
        if turn >= 0:
            theirs += clocks[0].steps
            ours += clocks[1].steps
    sampled = bool(options.get("do_sample"))
    figures = DecodeFigures(
        rows,
        max_new_tokens,
        runner.mode,
        None if sampled else torch.equal(*result),
        _summary(theirs, rows),
        _summary(ours, rows),
    )
    if not quiet:
        print(figures)
    return figures


def _summary(steps: list[float], rows: int) -> tuple[float, float, float]:
    ordered = sorted(steps)
    p50, p99 = (1e3 * ordered[int(q * (len(ordered) - 1))] for q in (0.5, 0.99))
    return rows * len(steps) / sum(steps), p50, p99
