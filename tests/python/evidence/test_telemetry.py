"""aegis.evidence.Telemetry: what a row holds, and what is refused."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aegis
import numpy as np
import pytest
import torch
from aegis.evidence import Telemetry, read_telemetry
from aegis.evidence import telemetry as telemetry_module
from aegis.evidence.telemetry_row import COLUMNS
from torch.utils.data import DataLoader, TensorDataset
from waiting import until


@pytest.fixture
def loader() -> Iterator[aegis.FlatArenaDataLoader]:
    data = TensorDataset(torch.arange(400.0).reshape(100, 4))
    with aegis.FlatArenaDataLoader(data, 5, num_workers=1) as made:
        yield made


def test_a_row_for_every_step(tmp_path: Path, loader: aegis.FlatArenaDataLoader) -> None:
    path = tmp_path / "new" / "folder" / "telemetry.csv"
    with Telemetry(path, loader=loader, interval=1e-3) as telemetry:
        for (values,) in telemetry.watch(loader):
            seconds = telemetry.step(tokens=values.numel(), loss=values.sum().item())
            assert seconds > 0.0
    assert telemetry.stats() == {"rows": 20, "dropped_rows": 0, "lost_rows": 0, "clock_steps": 0}
    table = read_telemetry(path)
    assert list(table) == COLUMNS
    assert table["step"].tolist() == list(range(1, 21))
    assert table["loss"].tolist() == [sum(range(20 * n, 20 * n + 20)) for n in range(20)]
    assert table["tokens"].tolist() == [20] * 20
    assert (table["wait_seconds"] > 0.0).all()
    assert (table["wait_seconds"] < table["step_seconds"]).all()
    assert np.allclose(table["tokens_per_second"], 20 / table["step_seconds"])
    assert (np.diff(table["elapsed_seconds"]) > 0.0).all()
    assert (table["minor_faults"] >= 0).all()
    assert 0.0 < table["cpu_seconds"].sum() <= time.process_time()
    assert (table["native_allocations"] >= 0).all()
    assert np.isnan(table["clock_step_seconds"]).all()
    sampled = np.isfinite(table["rss_anon_bytes"])
    assert sampled[0]
    for name in ("rss_file_bytes", "rss_shmem_bytes", "vm_data_bytes", "workers"):
        assert np.isfinite(table[name][sampled]).all()
        assert np.isnan(table[name][~sampled]).all()
    assert 1e6 < table["pss_bytes"][0] < table["rss_anon_bytes"][0] + table["rss_file_bytes"][0] + 1e8
    assert (table["feeder_us_p50"][sampled] <= table["feeder_us_p99"][sampled]).any()
    for name in filter(lambda name: name.startswith("gpu_"), COLUMNS):
        assert np.isnan(table[name]).all() or torch.cuda.is_available()


def test_without_a_loader_steps_follow_each_other(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "t.csv", interval=1000.0)
    telemetry.step()
    telemetry.step(step=np.int64(7), tokens=np.int32(3), loss=np.float32(0.5))
    telemetry.step(loss=float("nan"))
    telemetry.close()
    telemetry.close()
    telemetry.step()
    assert telemetry.stats()["dropped_rows"] == 1
    table = read_telemetry(tmp_path / "t.csv")
    assert table["step"].tolist() == [1, 7, 8]
    assert table["tokens"].tolist() == [0, 3, 0]
    assert table["loss"][1] == 0.5
    assert np.isnan(table["wait_seconds"]).all()
    assert np.isnan(table["native_allocations"]).all()
    assert table["step_seconds"].sum() <= table["elapsed_seconds"][-1] * (1 + 1e-9)


def test_worker_processes_are_counted_apart(tmp_path: Path) -> None:
    data = DataLoader(TensorDataset(torch.arange(40.0)), 10, num_workers=2, persistent_workers=True)
    with Telemetry(tmp_path / "t.csv", loader=data, interval=1e-6) as telemetry:
        for (values,) in telemetry.watch(data):
            telemetry.step(tokens=values.numel())
    table = read_telemetry(tmp_path / "t.csv")
    assert table["workers"][0] == 2
    assert table["workers_pss_bytes"][0] > 0
    assert table["workers_minor_faults"][0] > 0


def test_a_wall_clock_that_is_set_is_noted_and_changes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shift = 0.0
    clock = time.time
    monkeypatch.setattr(telemetry_module.time, "time", lambda: clock() + shift)
    with Telemetry(tmp_path / "t.csv") as telemetry:
        telemetry.step()
        shift = -3600.0
        telemetry.step()
        telemetry.step()
        shift = 30.0
        telemetry.step()
    assert telemetry.stats()["clock_steps"] == 2
    table = read_telemetry(tmp_path / "t.csv")
    noted = table["clock_step_seconds"]
    assert np.isnan(noted[[0, 2]]).all()
    assert noted[[1, 3]].tolist() == pytest.approx([-3600.0, 3630.0], abs=30.0)
    assert (table["step_seconds"] >= 0.0).all()
    assert (np.diff(table["elapsed_seconds"]) >= 0.0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0.0}, "interval: expected seconds above 0 and below a day, got 0.0"),
        ({"interval": float("nan")}, "interval: expected seconds above 0 and below a day, got nan"),
        ({"max_bytes": 10}, "max_bytes: expected at least 4096, got 10"),
        ({"capacity": 0}, "capacity: expected at least 2, got 0"),
        ({"keep": -1}, "keep: expected at least 0, got -1"),
    ],
)
def test_numbers_out_of_range(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Telemetry(tmp_path / "t.csv", **options)
    assert not list(tmp_path.iterdir())


def test_progress_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Telemetry(tmp_path / "t.csv", progress=3) as telemetry:
        for _ in telemetry.watch(range(3)):
            telemetry.step(tokens=10, loss=1.5)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss 1.500, " in shown
    assert " tokens/s, waiting " in shown


def test_tensorboard_gets_every_step_or_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"tensorboard: expected the package .* \(pip install tensorboard\)"):
        Telemetry(tmp_path / "t.csv", tensorboard=tmp_path / "board")
    assert not (tmp_path / "t.csv").exists()

    class Board:
        scalars: list[tuple[str, float, int]] = []  # noqa: RUF012

        def __init__(self, folder: Path) -> None:
            assert folder == tmp_path / "board"

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            if step == 3:
                raise OSError("no room")
            self.scalars.append((tag, value, step))

        def close(self) -> None:
            pass

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Board  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    telemetry = Telemetry(tmp_path / "t.csv", tensorboard=tmp_path / "board", interval=1e-3)
    for step in range(1, 3):
        telemetry.step(loss=step / 2)
    until(lambda: telemetry.stats()["rows"] == 2)
    telemetry.step()
    with pytest.warns(RuntimeWarning, match="TensorBoard is left out from now on: no room"):
        telemetry.close()
    assert [(v, s) for tag, v, s in Board.scalars if tag == "train/loss"] == [(0.5, 1), (1.0, 2)]
    assert read_telemetry(tmp_path / "t.csv")["step"].tolist() == [1, 2, 3]


def test_signals_are_not_touched(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    Telemetry(tmp_path / "t.csv").close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
