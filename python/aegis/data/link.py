"""The way to a device: copies on a stream of their own, and events that order them with the consumer's work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from aegis import _C

__all__ = ["CudaLink", "Link", "make_link", "named_device", "require", "require_kernels"]


class Link(Protocol):
    """What :class:`~aegis.data.device_iter.DeviceIter` needs of a device.

    Two queues run beside the host: that of the *copies*, which is the link's own, and that of the consumer's *work*,
    which is whatever stream is current. Nothing orders them but the marks below.
    """

    device: torch.device
    pins: _C.DevicePins | None
    """What pins slots, where the device's driver can."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory on the device that copies may write as soon as they are asked for."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Asks for a copy. ``source`` is read at some time before a later mark of the copies is reached."""

    def run(self, function: Callable[[], Any]) -> None:
        """Calls ``function``, which asks for kernels, with the copies' stream as the current one."""

    def mark_copies(self) -> Any:
        """A mark behind all copies asked for until now."""

    def mark_work(self) -> Any:
        """A mark behind all of the consumer's work until now."""

    def copies_wait(self, mark: Any) -> None:
        """Copies asked for from now on begin when ``mark`` is reached."""

    def work_waits(self, mark: Any) -> None:
        """The consumer's work from now on begins when ``mark`` is reached."""

    def hand_over(self, tensor: Tensor) -> None:
        """Before the consumer gets ``tensor``: its memory is not given to others while the consumer's work uses it."""

    def reached(self, mark: Any) -> bool:
        """Whether ``mark`` is reached, without waiting."""

    def wait(self, mark: Any) -> None:
        """Returns when ``mark`` is reached."""


class CudaLink:
    """A CUDA device, by torch's streams, events and allocator."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.pins: _C.DevicePins | None = None
        with suppress(RuntimeError):  # copies are then as correct and slower; stats() tells
            self.pins = _C.DevicePins(index)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with torch.cuda.stream(self._stream):  # whose earlier work is all that may still use the memory
            return torch.empty(shape, dtype=dtype, device=self.device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def run(self, function: Callable[[], Any]) -> None:
        with torch.cuda.stream(self._stream):
            function()

    def mark_copies(self) -> torch.cuda.Event:
        return self._stream.record_event()  # type: ignore[no-any-return]

    def mark_work(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self.device).record_event()  # type: ignore[no-any-return]

    def copies_wait(self, mark: torch.cuda.Event) -> None:
        self._stream.wait_event(mark)

    def work_waits(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self.device).wait_event(mark)

    def hand_over(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()


def make_link(device: torch.device) -> Link:
    """The link to a CUDA device. Raises ValueError where torch finds none."""
    require(device)
    return CudaLink(device)


def require(device: torch.device) -> None:
    """ValueError for a CUDA device that torch does not find."""
    if device.type != "cuda":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise ValueError(f"device: expected one that torch finds, got {device} and no CUDA device")
    if device.index is not None and device.index >= found:
        raise ValueError(f"device: expected cuda:0 to cuda:{found - 1}, which torch finds, got {device}")


def require_kernels(device: torch.device, option: str) -> None:
    """ValueError, in the name of ``option``, where this aegis was built without kernels for ``device``."""
    if device.type == "cuda" and not _C.build_info()["cuda"]:
        raise ValueError(f"{option}: expected an aegis built with CUDA kernels (AEGIS_CUDA=ON), got one without")


def named_device(device: torch.device | str | int | None) -> torch.device | None:
    """The device that is meant by a loader's argument. Raises TypeError, and ValueError for what is no such device."""
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(f"device: expected a torch.device, a name, a number or None, got {type(device).__name__}")
    if isinstance(device, int) and not 0 <= device < 128:  # torch wraps larger ones round
        raise ValueError(f"device: expected the number of a CUDA device, got {device}")
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: expected cpu or cuda, got {device!r}") from error
    wrapped = isinstance(device, str) and str(found) != device  # "cuda:256" is cuda:0 to torch
    if wrapped or found.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    return found
