"""A training step that a GPU replays as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aegis.data.device_memory import map_tensors

__all__ = ["GraphedTrainStep"]


class Graphs(Protocol):
    """What the step needs of a device that has graphs."""

    def warm(self, function: Callable[[], Tensor]) -> Tensor:
        """Calls ``function`` now, in a way that readies what it uses for a capture."""

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Records what ``function`` asks the device for, and does none of it. Returns what does it; the tensor that
        this returns is overwritten by the next call."""


class CudaGraphs:
    """Those of the current CUDA device."""

    def warm(self, function: Callable[[], Tensor]) -> Tensor:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function()
        torch.cuda.current_stream().wait_stream(stream)
        result.record_stream(torch.cuda.current_stream())
        return result

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = function()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def _graphs_of(device: torch.device) -> Graphs | None:
    return CudaGraphs() if device.type == "cuda" else None


class GraphedTrainStep:
    """One optimiser step over a batch of ``loader``: forward in bfloat16 autocast, backward, ``optimizer.step()``.

    On a CUDA device the first ``warmup`` steps run as they are, and the next is captured as a CUDA graph, with inputs
    at fixed addresses that batches are copied to; from then on a step is one launch. On a CPU every step runs as it is.
    The steps and their losses are those of this loop on the same device, bit for bit where its kernels are
    deterministic::

        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                value = loss(model(batch[0]), batch[1])
            value.backward()
            optimizer.step()

    ``for value in step`` goes through an epoch of the loader; ``step(batch)`` takes a batch from anywhere. A batch of
    other shapes than the captured (the last of an epoch) runs as it is, and the graph stays.

    A capture freezes numbers and branches: it needs an optimizer made with ``capturable=True`` where there is such an
    option, and a learning rate that changes must be a tensor. What was frozen and has changed is an error.

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
            no scalar.
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
        self._loss_of: Callable[[Any], Tensor] = self._forward
        if compile:
            backend = "inductor" if compile is True else compile
            self._loss_of = torch.compile(self._forward, dynamic=False, backend=backend)
        self._shapes: Any = None  # of the batches that the graph is for
        self._inputs: Any = None  # the batch that it reads
        self._replay: Callable[[], Tensor] | None = None
        self._frozen: Any = None

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
        shapes = _shapes(batch)
        if self._shapes is None:
            self._shapes = shapes
        if shapes != self._shapes:
            return self._beside_the_graph(batch)
        if self._warmup > 0:
            self._warmup -= 1
            here = self._here(batch)
            return self._graphs.warm(lambda: self._eager(here)).clone()
        if self._replay is None:
            self._capture(self._graphs, batch)
        elif self._frozen != (frozen := _frozen(self.model, self.optimizer)):
            raise ValueError(f"{_first_change(self._frozen, frozen)}, which the captured graph has frozen")
        assert self._replay is not None
        for target, source in zip(_tensors(self._inputs), _tensors(batch), strict=True):
            target.copy_(source, non_blocking=True)
        return self._replay().clone()

    def _here(self, batch: Any) -> Any:
        return map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def _capture(self, graphs: Graphs, batch: Any) -> None:
        self._inputs = map_tensors(batch, lambda tensor: torch.zeros_like(tensor, device=self.device))
        self._frozen = _frozen(self.model, self.optimizer)
        # Gradients are made in the capture, at addresses of the graph's own, and written anew by each replay.
        self._replay = graphs.capture(lambda: self._eager(self._inputs))

    def _beside_the_graph(self, batch: Any) -> Tensor:
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters]
        value = self._eager(self._here(batch))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return value

    def _eager(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        return self._step(batch)

    def _step(self, batch: Any) -> Tensor:
        with self._precision():
            value = self._loss_of(batch)
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


def _shapes(batch: Any) -> Any:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in _tensors(batch))


def _frozen(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The numbers that a capture takes as they are."""
    numbers: dict[str, Any] = {"model.training": model.training}
    for at, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, bool | int | float | tuple) and not name.startswith("initial_"):
                numbers[f"optimizer.param_groups[{at}][{name!r}]"] = value
    return numbers


def _first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            return f"{name}: expected {before.get(name)}, got {after.get(name)}"
    return "optimizer: expected the settings of before"
