"""A step as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["capture_graph"]


def capture_graph(step: Callable[[], Tensor], state: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Warms ``step`` up on a stream of its own, captures it, and leaves ``state``, all that it writes, as it was.

    Returns:
        What replays it, and returns the tensor that ``step`` returned, overwritten by each replay.
    """
    before = [tensor.clone() for tensor in state]

    def restore() -> None:
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
            restore()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    restore()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
