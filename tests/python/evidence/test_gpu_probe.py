"""What a GPU says of itself, without one: torch and NVML are stood in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from aegis.evidence import Telemetry, read_telemetry
from aegis.evidence.gpu import GpuProbe


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1234"))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    class NVMLError(Exception):
        pass

    def no_sensor(handle: str, kind: int) -> int:
        raise NVMLError

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1234": "handle"}[uuid],
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=no_sensor,
        nvmlDeviceGetPowerUsage=lambda handle: 250_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.mark.usefixtures("device", "nvml")
def test_readings_reach_the_file_and_missing_sensors_stay_empty(tmp_path: Path) -> None:
    with Telemetry(tmp_path / "t.csv") as telemetry:
        telemetry.step()
    table = read_telemetry(tmp_path / "t.csv")
    assert table["gpu_allocated_bytes"][0] == 100
    assert table["gpu_reserved_bytes"][0] == 200
    assert table["gpu_clock_mhz"][0] == 1980
    assert table["gpu_power_w"][0] == 250.5
    assert table["gpu_power_limit_w"][0] == 700
    assert table["gpu_temperature_c"][0] != table["gpu_temperature_c"][0]


@pytest.mark.usefixtures("device")
def test_a_sensor_that_breaks_costs_a_warning_and_no_row(tmp_path: Path, nvml: ModuleType) -> None:
    def broken(handle: str) -> int:
        raise TypeError("no such sensor")

    nvml.__dict__["nvmlDeviceGetPowerUsage"] = broken

    def train() -> None:
        with Telemetry(tmp_path / "t.csv", interval=1e-6) as telemetry:
            for _ in range(3):
                telemetry.step()

    with pytest.warns(RuntimeWarning, match="samples are incomplete: TypeError") as caught:
        train()
    assert len(caught) == 1
    assert read_telemetry(tmp_path / "t.csv")["gpu_allocated_bytes"].tolist() == [100] * 3


@pytest.mark.usefixtures("device")
def test_without_nvml_only_torch_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    probe = GpuProbe()
    assert probe.memory() == {"gpu_allocated_bytes": 100, "gpu_reserved_bytes": 200}
    assert probe.hardware() == {}


def test_cuda_is_never_started_for_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert GpuProbe().memory() == {}
    assert GpuProbe().hardware() == {}
