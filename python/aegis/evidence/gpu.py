"""What a GPU says of itself, through torch and, where the package is installed, NVML."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

__all__ = ["GpuProbe"]


class GpuProbe:
    """Readings of the current CUDA device; none where there is no such device or CUDA was not started.

    Clocks, temperature and power come from the package ``pynvml`` and are left out without it.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._tried = False

    def memory(self) -> dict[str, float]:
        """Bytes that torch's caching allocator has given out and holds. Cost: some 20 µs."""
        if not _running():
            return {}
        return {
            "gpu_allocated_bytes": torch.cuda.memory_allocated(),
            "gpu_reserved_bytes": torch.cuda.memory_reserved(),
        }

    def hardware(self) -> dict[str, float]:
        """Clock, temperature and power. Cost: up to milliseconds; not for the thread that trains."""
        if not _running():
            return {}
        if not self._tried:
            self._tried = True
            self._start()
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], float]] = {
            "gpu_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "gpu_power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        }
        found = {}
        for name, reading in readings.items():
            try:
                found[name] = float(reading())
            except nvml.NVMLError:  # not every device has every sensor
                continue
        return found

    def _start(self) -> None:
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            # CUDA's numbering may leave devices out, NVML's does not; the UUID is the same in both.
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = nvml
        except Exception:  # no package, no driver, no rights: readings are optional
            self._handle = None


def _running() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
