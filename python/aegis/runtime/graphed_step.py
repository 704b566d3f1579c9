"""A training step that a GPU replays as one CUDA graph."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aegis.data.device_memory import map_tensors

__all__ = ["GraphedTrainStep"]


# torch counts compilations by the code that is compiled, and that of all steps is one: from the ninth step of a process
# on nothing would be compiled any more. Older versions cannot tell them apart.
_OWN_CACHE: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)


class Graphs(Protocol):
    """What the step needs of a device that has graphs."""

    def warm(self, function: Callable[[], Tensor]) -> Tensor:
        """Calls ``function`` now, in a way that readies what it uses for a capture."""

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Records what ``function`` asks the device for, and does none of it. Returns what does it; the tensor that
        this returns is overwritten by the next call."""


class CudaGraphs:
    """Those of a CUDA device, whichever is the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm(self, function: Callable[[], Tensor]) -> Tensor:
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    result = function()
            finally:  # also of a step that failed half-way, whose kernels are under way
                torch.cuda.current_stream().wait_stream(stream)
            result.record_stream(torch.cuda.current_stream())
            return result

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile. On another device than the current, kernels would not be captured but
        # run, on inputs of zeros.
        with torch.cuda.device(self._device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = function()

        def replay() -> Tensor:
            with torch.cuda.device(self._device):
                graph.replay()
            return result

        return replay


def _graphs_of(device: torch.device) -> Graphs | None:
    return CudaGraphs(device) if device.type == "cuda" else None


class GraphedTrainStep:
    """One optimiser step over a batch of ``loader``: forward in bfloat16 autocast, backward, ``optimizer.step()``.

    On a CUDA device the first ``warmup`` steps with batches of one shape run as they are, and the next is captured as a
    CUDA graph, with inputs at fixed addresses that batches are copied to; from then on a step is one launch. On a CPU
    every step runs as it is.
    The steps and their losses are those of this loop on the same device, bit for bit where its kernels are
    deterministic::

        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                value = loss(model(batch[0]), batch[1])
            value.backward()
            optimizer.step()

    ``for value in step`` goes through an epoch of the loader; ``step(batch)`` takes a batch from anywhere. A batch of
    other shapes than the captured (the last of an epoch), or with other values that are no tensors, runs as it is, and
    the graph stays. Gradients are clipped where the optimizer's hooks do it, which are part of the capture::

        def clip(*_):  # returns nothing: what a hook returns stands for the step's arguments
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        optimizer.register_step_pre_hook(clip)

    A capture freezes numbers, branches and addresses: it needs an optimizer made with ``capturable=True`` where there
    is such an option, and a learning rate that changes must be a tensor. What was frozen and has changed is an error:
    the optimizer's numbers, training or evaluation of any module, which parameters there are, where they lie and
    whether they need gradients. ``optimizer.load_state_dict`` is none: the graph is dropped, and made anew after a step
    that runs as it is.

    Args:
        model: all parameters on one device.
        loss: called with the model's output and the targets, ``batch[1]`` or ``batch["targets"]``; the model gets
            ``batch[0]`` or ``batch["inputs"]``. None: the model gets the whole batch, by position or by name, and
            returns the loss.
        optimizer: of the model's parameters.
        loader: gives batches on the model's device, or on the CPU, from where they are copied.
        autocast: False for the parameters' own precision.
        compile: compiles forward and loss with ``torch.compile``; a name chooses its backend.
        warmup: steps that run before the capture, at least 1, in which lazy state is made. They are training steps.

    Raises:
        ValueError: an optimizer that is not capturable, on a CUDA device; parameters on several devices; a loss that is
            no scalar tensor; a batch that is not inputs and targets, where there is a ``loss``. What ``loss`` or
            ``model`` raise goes to the caller; the step is then not done, and does not count as one of ``warmup``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor] | None,
        optimizer: Optimizer,
        loader: Iterable[Any],
        *,
        autocast: bool = True,
        compile: bool | str = False,
        warmup: int = 3,
    ) -> None:
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) != 1:
            names = ", ".join(sorted(map(str, devices))) or "none"
            raise ValueError(f"model: expected parameters on one device, got {names}")
        if warmup < 1:
            raise ValueError(f"warmup: expected at least 1, got {warmup}")
        self.model, self.loss, self.optimizer, self.loader = model, loss, optimizer, loader
        self.device = devices.pop()
        self.autocast = autocast
        self._graphs = _graphs_of(self.device)
        if self._graphs is not None:
            _check_capturable(optimizer)
        self._warmup = warmup
        self._done: Counter[Any] = Counter()  # steps before the capture, by the form of their batches
        self._loss_of: Callable[[Any], Tensor] = self._forward
        if compile:
            backend = "inductor" if compile is True else compile
            self._loss_of = torch.compile(self._forward, dynamic=False, backend=backend, **_OWN_CACHE)
        self._form: Any = None  # of the batches that the graph is for
        self._inputs: Any = None  # the batch that it reads
        self._replay: Callable[[], Tensor] | None = None
        self._frozen: _Frozen | None = None
        itself = weakref.ref(self)

        def forget(_: Optimizer) -> None:
            step = itself()
            if step is not None:
                step._forget()

        # Of a wrapper, as Accelerate's is, that which it wraps: it has no hooks of its own.
        getattr(optimizer, "optimizer", optimizer).register_load_state_dict_post_hook(forget)

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return self._replay is not None

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.loader:
            yield self(batch)

    def __call__(self, batch: Any) -> Tensor:
        """One step. Returns its loss, a scalar on the device that later steps leave alone; does not wait for it."""
        if self._graphs is None:
            return self._eager(self._here(batch))
        form = _form_of(batch)
        if self._replay is None:
            if self._done[form] < self._warmup:
                here = self._here(batch)
                value = self._graphs.warm(lambda: self._eager(here)).clone()
                self._done[form] += 1  # not before: state that is made lazily is there
                return value
            self._capture(self._graphs, batch, form)
        elif form != self._form:
            return self._beside_the_graph(batch)
        else:
            assert self._frozen is not None
            self._frozen.check()
        assert self._replay is not None
        for target, source in zip(_tensors(self._inputs), _tensors(batch), strict=True):
            target.copy_(source, non_blocking=True)
        return self._replay().clone()

    def _forget(self) -> None:
        """The optimizer has other state now, which the graph knows nothing of."""
        self._replay = self._inputs = self._form = self._frozen = None
        # One step more, for state that was not in what was loaded.
        self._done = Counter({form: min(count, self._warmup - 1) for form, count in self._done.items()})

    def _here(self, batch: Any) -> Any:
        return map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def _capture(self, graphs: Graphs, batch: Any, form: Any) -> None:
        _check_capturable(self.optimizer)
        inputs = map_tensors(batch, lambda tensor: torch.zeros_like(tensor, device=self.device))
        frozen = _Frozen(self.model, self.optimizer)
        # Gradients are made in the capture, at addresses of the graph's own, and written anew by each replay.
        replay = graphs.capture(lambda: self._eager(inputs))
        self._inputs, self._frozen, self._form, self._replay = inputs, frozen, form, replay

    def _beside_the_graph(self, batch: Any) -> Tensor:
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters]
        try:
            return self._eager(self._here(batch))
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient

    def _eager(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        return self._step(batch)

    def _step(self, batch: Any) -> Tensor:
        with self._precision():
            value = self._loss_of(batch)
        if not isinstance(value, Tensor):
            raise ValueError(f"loss: expected a scalar tensor, got a {type(value).__name__}")
        if value.ndim != 0:
            raise ValueError(f"loss: expected a scalar, got shape {tuple(value.shape)}")
        value.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return value.detach()

    def _precision(self) -> AbstractContextManager[Any]:
        # Weights that autocast has converted must not be kept from a capture to a step outside of it.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False)

    def _forward(self, batch: Any) -> Tensor:
        named = isinstance(batch, dict)
        if self.loss is None:
            result: Tensor = self.model(**batch) if named else self.model(*batch)
            return result
        if not named and (isinstance(batch, Tensor) or len(batch) != 2):
            got = "a tensor" if isinstance(batch, Tensor) else f"{len(batch)} items"
            raise ValueError(f"batch: expected inputs and targets for the loss, got {got}")
        inputs, targets = (batch["inputs"], batch["targets"]) if named else batch
        return self.loss(self.model(inputs), targets)


def _check_capturable(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if not group.get("capturable", True):
            name = type(optimizer).__name__
            raise ValueError(f"optimizer: expected one that a graph can capture, got {name} without capturable=True")


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(batch, found.append)
    return found


def _form_of(batch: Any) -> Any:
    """Equal where a graph that reads one batch can read the other: all but the values of tensors."""
    if isinstance(batch, Tensor):
        return Tensor, tuple(batch.shape), batch.dtype
    if isinstance(batch, Mapping):
        return type(batch), tuple((key, _form_of(value)) for key, value in batch.items())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return type(batch), tuple(map(_form_of, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return type(batch), tuple(_form_of(getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return batch if isinstance(batch, str | bytes | int | float | None) else type(batch)


class _Frozen:
    """What a capture takes as it is. Looked at in each step, so without a walk through the model's tree."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._names, self._modules = zip(*model.named_modules(), strict=True)
        self._numbers = self._numbers_now()
        self._states = self._states_now()

    def _numbers_now(self) -> dict[str, Any]:
        """Of the optimizer; where a learning rate lies that is a tensor."""
        numbers: dict[str, Any] = {}
        for at, group in enumerate(self._optimizer.param_groups):
            for name, value in group.items():
                key = f"optimizer.param_groups[{at}][{name!r}]"
                if isinstance(value, Tensor):
                    numbers[key] = f"the tensor at {value.data_ptr():#x}"
                elif isinstance(value, bool | int | float | tuple) and not name.startswith("initial_"):
                    numbers[key] = value
            numbers[f"len(optimizer.param_groups[{at}]['params'])"] = len(group["params"])
        return numbers

    def _states_now(self) -> list[tuple[Any, ...]]:
        """Of every module: training or not; children; names, places and needs of its own parameters."""
        return [
            (
                module.training,
                [*map(id, module._modules.values())],
                [
                    (name, parameter.data_ptr(), parameter.requires_grad)
                    for name, parameter in module._parameters.items()
                    if parameter is not None
                ],
            )
            for module in self._modules
        ]

    def check(self) -> None:
        """ValueError where something has changed."""
        numbers = self._numbers_now()
        if numbers != self._numbers:
            for key in [*self._numbers, *numbers]:
                if self._numbers.get(key) != numbers.get(key):
                    raise _changed(key, self._numbers.get(key), numbers.get(key))
        states = self._states_now()
        if states != self._states:
            for name, before, now in zip(self._names, self._states, states, strict=True):
                if before != now:
                    raise _changed_module(f"model.{name}" if name else "model", before, now)


def _changed_module(name: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> ValueError:
    if before[0] is not now[0]:
        return _changed(f"{name}.training", before[0], now[0])
    if before[1] != now[1]:
        return _changed(name, "the modules that it had", "others")
    for one, other in zip(before[2], now[2], strict=False):
        if one[0] == other[0] and one[2] is not other[2]:
            return _changed(f"{name}.{one[0]}.requires_grad", one[2], other[2])
        if one[0] == other[0] and one[1] != other[1]:
            return _changed(f"{name}.{one[0]}", f"memory at {one[1]:#x}", f"memory at {other[1]:#x}")
    return _changed(name, f"the parameters {[one[0] for one in before[2]]}", f"{[one[0] for one in now[2]]}")


def _changed(name: str, before: Any, now: Any) -> ValueError:
    return ValueError(f"{name}: expected {before}, got {now}, which the captured graph has frozen")
