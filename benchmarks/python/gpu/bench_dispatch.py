"""extract_batch on the device: what a call costs the host, and how long until the batch is there, p50 and p99."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import aegis  # noqa: F401  (registers the operators)
import torch
from report import Options, Row, check, host_seconds_of, p50_p99, seconds_of

BENCH = "dispatch: extract_batch.out, 64 x 256"


def run(options: Options) -> Iterator[Row]:
    batch, block = 64, 256
    generator = torch.Generator().manual_seed(1)
    tokens = 100_000 if options.quick else 50_000_000
    arena = torch.randint(0, 50_000, (tokens,), generator=generator).to(torch.uint16).to(options.device)
    offsets = torch.randint(0, tokens - block, (batch,), generator=generator).to(options.device)
    inputs = torch.empty(batch, block, dtype=torch.int64, device=options.device)
    targets = torch.empty_like(inputs)

    def eager() -> None:
        torch.ops.aegis.extract_batch.out(arena, offsets, inputs=inputs, targets=targets)

    calls: dict[str, Callable[[], None]] = {"eager": eager}
    if options.cuda:
        calls["graph replay"] = capture(eager)
    windows = arena.cpu().long().unfold(0, block + 1, 1)
    times = 200 if options.quick else 5000
    for name, call in calls.items():
        offsets.copy_(torch.randint(0, tokens - block, (batch,), generator=generator))
        inputs.fill_(-1)
        call()
        expected = windows[offsets.cpu()]
        check(torch.equal(inputs.cpu(), expected[:, :-1]), f"{name}: wrong inputs")
        check(torch.equal(targets.cpu(), expected[:, 1:]), f"{name}: wrong targets")
        yield Row(BENCH, f"{name}: call returns", p50_p99(host_seconds_of(call, options, warm=50, times=times)))
        yield Row(BENCH, f"{name}: batch is there", p50_p99(seconds_of(call, options, warm=50, times=times)))


def capture(call: Callable[[], None]) -> Callable[[], None]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay
