"""A step as a CUDA graph, or compiled; and what a model is like, for what was captured of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["capture_graph", "compiled", "fingerprint"]

# torch counts compilations by the code that is compiled, which is one for all runners: without this, nothing would be
# compiled any more from the ninth of a process on. Older versions cannot tell them apart.
_OWN_CACHE: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)


def compiled(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``step`` through torch.compile, for tensors of the shapes that it is called with; the first call compiles.

    The model, which ``step`` finds in an attribute called ``model``, is not looked at again: the caller compares its
    :func:`fingerprint`. That is some 1,700 questions to 6 layers, and would be a tenth to a sixth of a small model's
    step.
    """
    # The code around the kernels in C++ too: a quarter of what a step costs beside them.
    options: dict[str, Any] = {"cpp_wrapper": True, "guard_filter_fn": _not_of_model}
    result: Callable[..., Tensor] = torch.compile(step, dynamic=False, options=options, **_OWN_CACHE)
    return result


def _not_of_model(guards: Sequence[Any]) -> list[bool]:
    """Which of torch.compile's guards stay: those of arguments, of the cache and of torch's modes."""
    return [not guard.is_global and ".model" not in guard.name for guard in guards]


def fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What a captured or compiled step of a model rests on: where its parameters lie, what modules it has, their hooks
    and what they and its configuration have for switches and names (``training``, the adapters in use). Numbers are
    left out, since modules count in them.

    Cost: a millisecond for some hundred modules.
    """
    parameters = tuple((p.data_ptr(), p.dtype, p.shape) for p in model.parameters())
    modules = tuple(
        (id(module), len(module._forward_hooks), len(module._forward_pre_hooks), _switches(vars(module)))
        for module in model.modules()
    )
    return parameters, modules, _switches(vars(model.config))


def _switches(attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for name, value in attributes.items():
        if isinstance(value, (bool, str)) or value is None:
            found.append((name, value))
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            found.append((name, tuple(value)))
    return tuple(found)


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
