"""Does memory grow while training? Reserved device memory, and the process's own, over a minute of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from bench_training import make_step
from feeds import BLOCK, Feeds
from report import ABSENT, FAILED, PASSED, Options, Row
from torch import Tensor

BENCH = "memory: a minute of training through aegis"


def anonymous_kib() -> int:
    """Anonymous resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status: no RssAnon")


def run(options: Options) -> Iterator[Row]:
    step = make_step(options)
    if step is None:
        yield Row(BENCH, "aegis.train.model", status=ABSENT)
        return
    batch, block = (4, 32) if options.quick else (64, BLOCK)
    warm_seconds, seconds = (0.2, 1.0) if options.quick else (5.0, 60.0)
    feeds = Feeds(options, batch, block)
    try:
        train(step, feeds, options, warm_seconds)
        before, before_kib = reserved(options), anonymous_kib()
        steps = train(step, feeds, options, seconds)
        after, after_kib = reserved(options), anonymous_kib()
    finally:
        feeds.close()
    grown = after - before
    yield Row(
        BENCH,
        "aegis",
        {
            "steps": steps,
            "reserved_MiB": round(after / 2**20, 1),
            "reserved_drift_bytes": grown,
            "host_drift_KiB": after_kib - before_kib,
            "seconds": seconds,
        },
        FAILED if grown > 0 else PASSED,
        "reserved device memory grew" if grown > 0 else "",
    )


def reserved(options: Options) -> int:
    return torch.cuda.memory_reserved(options.device) if options.cuda else 0


def train(step: Callable[[Tensor, Tensor], Tensor], feeds: Feeds, options: Options, seconds: float) -> int:
    """Steps until the time is over; waits for the device every ten."""
    steps = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            step(*feeds.next("aegis"))
        options.synchronize()
        steps += 10
    return steps
