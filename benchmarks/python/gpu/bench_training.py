"""Micro-GPT in bfloat16: tokens/s with torch's DataLoader, aegis, and batches that are already on the device.

The resident batches are the ceiling: no feed can be faster. Rows with "graph" replay the step as a CUDA graph
(aegis.GraphedTrainStep), where least is left that could hide a slow feed. Feeds take turns within a round, so that
clocks and temperature treat them alike; the figure is the median over rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

import aegis
import torch
from feeds import BLOCK, VOCAB, Feeds
from report import ABSENT, Options, Row, check
from torch import Tensor

BENCH = "training: Micro-GPT, bfloat16"


def make_step(options: Options) -> Callable[[Tensor, Tensor], Tensor] | None:
    """One optimiser step that returns its loss, or None where this aegis has no model yet."""
    try:
        from aegis.train.model import MicroGPT, MicroGPTConfig
    except ImportError:
        return None
    torch.manual_seed(1)
    sizes = {"layers": 2, "heads": 2, "width": 64, "block_size": 32} if options.quick else {"block_size": BLOCK}
    model = MicroGPT(MicroGPTConfig(vocab_size=VOCAB, **sizes)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=options.cuda)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(options.device.type, torch.bfloat16):
            loss: Tensor = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_graphed_step(options: Options) -> Callable[[Tensor, Tensor], Tensor]:
    """The same, captured."""
    from aegis.train.model import MicroGPT, MicroGPTConfig

    torch.manual_seed(1)
    sizes = {"layers": 2, "heads": 2, "width": 64, "block_size": 32} if options.quick else {"block_size": BLOCK}
    model = MicroGPT(MicroGPTConfig(vocab_size=VOCAB, **sizes)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=options.cuda, capturable=options.cuda)
    step = aegis.GraphedTrainStep(model, None, optimizer, [])
    return lambda x, y: step([x, y])


def run(options: Options) -> Iterator[Row]:
    step = make_step(options)
    if step is None:
        yield Row(BENCH, "aegis.train.model", status=ABSENT)
        return
    batch, block = (4, 32) if options.quick else (64, BLOCK)
    warm, steps, rounds = (1, 3, 2) if options.quick else (20, 150, 5)
    feeds = Feeds(options, batch, block)
    cases = {name: (step, name) for name in feeds.names()}
    graphed = make_graphed_step(options)
    cases.update({f"graph: {name}": (graphed, name) for name in feeds.names() if name != "torch DataLoader"})
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    try:
        for name in feeds.names():
            x, y = feeds.next(name)
            if name != "resident synthetic":
                check(torch.equal(x[:, 1:], y[:, :-1]), f"{name}: targets are not the inputs one token later")
        for case, (call, name) in cases.items():
            for _ in range(warm):
                loss = call(*feeds.next(name))
            check(math.isfinite(loss.item()), f"{case}: the loss is {loss.item()}")
        for _ in range(rounds):
            for case, (call, name) in cases.items():
                options.synchronize()
                start = time.perf_counter()
                for _ in range(steps):
                    loss = call(*feeds.next(name))
                options.synchronize()
                seconds[case].append((time.perf_counter() - start) / steps)
                check(math.isfinite(loss.item()), f"{case}: the loss is {loss.item()}")
    finally:
        feeds.close()
    for name, taken in seconds.items():
        ceiling = statistics.median(seconds["graph: resident synthetic" if "graph" in name else "resident synthetic"])
        median = statistics.median(taken)
        yield Row(
            BENCH,
            name,
            {
                "tokens_per_s": round(batch * block / median),
                "ms_per_step": round(median * 1e3, 3),
                "of_resident": round(ceiling / median, 4),
                "spread": round((max(taken) - min(taken)) / median, 4),
                "batch": f"{batch} x {block}",
            },
        )
