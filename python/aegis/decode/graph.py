"""A step as a CUDA graph, or compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["capture_graph", "compiled"]

# torch counts compilations by the code that is compiled, which is one for all runners: without this, nothing would be
# compiled any more from the ninth of a process on. Older versions cannot tell them apart.
_OWN_CACHE: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)


def compiled(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``step`` through torch.compile, for tensors of the shapes that it is called with; the first call compiles."""
    # The code around the kernels in C++ too: a quarter of what a step costs beside them.
    result: Callable[..., Tensor] = torch.compile(step, dynamic=False, options={"cpp_wrapper": True}, **_OWN_CACHE)
    return result


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
