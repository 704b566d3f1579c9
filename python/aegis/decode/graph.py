"""A step as a CUDA graph, or compiled; and what a model is like, for what was captured of it."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ModelWatch", "capture_graph", "compiled", "fingerprint"]

# torch keeps what it compiled by the code it compiled, which is one for all runners: without this, nothing would be
# compiled any more from the ninth of a process on. Older versions cannot tell them apart.
_OWN_CACHE: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)


def compiled(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``step`` through torch.compile, for tensors of the shapes that it is called with; the first call compiles.

    The model, which ``step`` finds in an attribute called ``model``, is not looked at again: the caller has a
    :class:`ModelWatch`. That is some 1,700 questions to 6 layers, and would be a tenth to a sixth of a small model's
    step. Where torch keeps what all runners compiled in one place, though, these questions are what tells their models
    apart, and are asked.
    """
    # The code around the kernels in C++ too: a quarter of what a step costs beside them.
    options: dict[str, Any] = {"cpp_wrapper": True}
    if _OWN_CACHE:
        options["guard_filter_fn"] = _not_of_model
    else:
        step = _copy(step)
    result: Callable[..., Tensor] = torch.compile(step, dynamic=False, options=options, **_OWN_CACHE)
    return result


def _copy(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same with a code object of its own, for which torch has compiled nothing yet. What it has for another of the
    model's states might be taken: torch's questions leave out hooks."""
    assert isinstance(function, types.FunctionType)
    own = function.__code__.replace()
    return types.FunctionType(own, function.__globals__, function.__name__, None, function.__closure__)


def _not_of_model(guards: Sequence[Any]) -> list[bool]:
    """Which of torch.compile's guards stay: those of arguments, of the cache and of torch's modes."""
    return [not guard.is_global and ".model" not in guard.name for guard in guards]


def fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What a captured or compiled step of a model rests on: where its parameters and saved buffers lie, what modules it
    has, their hooks, and what they and its configuration have for switches, names, fractions and functions
    (``training``, the adapters in use and their scale, a ``forward`` of their own). Whole numbers are those of the
    configuration; modules also count in them, so theirs are :func:`_whole_numbers`.

    Cost: a millisecond for some hundred modules.
    """
    modules = tuple(
        (
            weakref.ref(module),  # an address alone may be given to another module later
            type(module),
            tuple(module._forward_hooks),
            tuple(module._forward_pre_hooks),
            tuple(map(_place, _saved_buffers(module))),
            _settings(vars(module)),
        )
        for module in model.modules()
    )
    config: Any = model.config
    configs = [vars(part) for part in (config, *(getattr(config, name, None) for name in config.sub_configs)) if part]
    settings = tuple((_settings(numbers), _counted(numbers)) for numbers in configs)
    return tuple(map(_place, model.parameters())), modules, settings


class ModelWatch:
    """Tells whether a model has changed since something was captured or compiled of it.

    That rests on its :func:`fingerprint` and on the whole numbers that its modules have. A number that a pass was seen
    to change is the module's own, and from then on does not count. One that changes in none of the passes within
    :meth:`passing` is taken for a setting: who counts there now and then, say from a certain length of text on, is
    taken for a changed model until it does so within.

    Cost: of each call, and of each end of :meth:`passing`, a millisecond for some hundred modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._fingerprint: tuple[Any, ...] = ()
        self._numbers: dict[Any, Any] = {}
        self._counters: set[Any] = set()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around passes that run the modules' Python code, such as a prompt's and the first one that is compiled."""
        before = _whole_numbers(self._model)
        try:
            yield
        finally:
            self._counters |= _different(before, _whole_numbers(self._model))

    def note(self) -> None:
        """The model as it is now is the one to compare with."""
        self._fingerprint, self._numbers = fingerprint(self._model), _whole_numbers(self._model)

    def changed(self) -> bool:
        """Whether it is another than at the last :meth:`note`."""
        if fingerprint(self._model) != self._fingerprint:
            return True
        return not _different(self._numbers, _whole_numbers(self._model)) <= self._counters


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _whole_numbers(model: nn.Module) -> dict[tuple[Any, str], Any]:
    """By module and name; what every module has of torch's is none of them."""
    return {
        (weakref.ref(module), name): value
        for module in model.modules()
        for name, value in _counted({k: v for k, v in list(vars(module).items()) if k not in _OF_EVERY_MODULE})
    }


def _different(before: dict[Any, Any], after: dict[Any, Any]) -> set[Any]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _saved_buffers(module: nn.Module) -> list[Tensor]:
    """Others are made anew by passes, as frequencies of rotary positions are."""
    passing = module._non_persistent_buffers_set
    return [buffer for name, buffer in module._buffers.items() if buffer is not None and name not in passing]


def _settings(attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for name, value in list(attributes.items()):  # at once: another thread may set one meanwhile
        if _is_plain(value):
            found.append((name, value))
        elif isinstance(value, (list, tuple)) and all(map(_is_plain, value)):
            found.append((name, tuple(value)))
        elif isinstance(value, dict) and all(map(_is_plain, value.values())):
            found.append((name, tuple(value.items())))
        elif callable(value) and not isinstance(value, nn.Module):
            found.append((name, id(value)))
    return tuple(found)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, float, str))


def _counted(attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Whole numbers, and lists and dictionaries with some, which :func:`_settings` passes over."""
    found: list[tuple[str, Any]] = []
    for name, value in list(attributes.items()):  # at once: another thread may set one meanwhile
        if isinstance(value, int) and not isinstance(value, bool):
            found.append((name, value))
        elif isinstance(value, (list, tuple)) and _has_numbers(value):
            found.append((name, tuple(value)))
        elif isinstance(value, dict) and _has_numbers(value.values()):
            found.append((name, tuple(value.items())))
    return tuple(found)


def _has_numbers(values: Collection[object]) -> bool:
    return not all(map(_is_plain, values)) and all(_is_plain(value) or isinstance(value, int) for value in values)


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
