"""Two processes in turns: the same training, files in order however they end, and a report of what was measured."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aegis.cli import main
from aegis.evidence import read_telemetry, soak, verify_receipt
from aegis.evidence.soak_figures import figures, same_losses
from aegis.evidence.soak_report import SoakReport
from aegis.evidence.turns import Side, take_turns
from aegis.train.settings import Settings

WAIT = 120.0
PNG = b"\x89PNG\r\n\x1a\n"


def test_both_loaders_train_alike_and_the_report_says_what_was_measured(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    turns: list[tuple[str, int]] = []
    result = soak(
        settings(),
        out,
        steps=14,
        turn=5,
        warmup=4,
        interval=1e-3,
        on_turn=lambda side: turns.append((side.arm.name, side.steps)),
    )
    rounds = [("aegis", 5), ("torch", 5), ("torch", 10), ("aegis", 10), ("aegis", 14), ("torch", 14)]
    assert turns == rounds
    assert result.stopped_by is None
    assert (result.common_steps, result.first_difference, result.same_chains) == (14, None, True)
    tables = {name: read_telemetry(out / f"telemetry-{name}.csv") for name in ("aegis", "torch")}
    for name, table in tables.items():
        assert table["step"].tolist() == list(range(1, 15))
        assert table["tokens"].tolist() == [32] * 14
        assert (result.sides[name].first, result.sides[name].last) == (5, 14)
        assert result.sides[name].tokens_per_second > 0.0
        assert result.sides[name].peak_rss > result.sides[name].rss_anon > 1e6
        checks = verify_receipt(out / f"receipt-{name}.json")
        assert [check.detail for check in checks if check.passed is False] == []
        assert {check.name for check in checks if check.passed} >= {"seal", "chain run", "data train"}
    assert np.isnan(tables["aegis"]["workers_minor_faults"]).all()
    assert result.sides["torch"].workers_minor_faults >= 0.0
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in result.files)

    report = (out / "report.md").read_text()
    assert report.index("| end to end") < report.index("next(), median")
    assert "Losses are bit-identical at all 14 steps that both did." in report
    assert re.search(r"The integrity chains over steps, losses and whole batches are the same \([0-9a-f]{8}\)", report)
    assert "Counted: steps 5 to 14" in report
    assert (out / "report.png").read_bytes().startswith(PNG)
    page = (out / "report.html").read_text()
    pictures = re.findall(r'src="([^"]*)"', page)
    assert len(pictures) == 7
    for picture in pictures:
        assert base64.b64decode(picture.removeprefix("data:image/png;base64,"), validate=True).startswith(PNG)
    assert "http" not in page.replace("http-equiv", "")
    summary = json.loads((out / "soak.json").read_text())
    assert summary["sides"]["aegis"]["tokens_per_second"] == result.sides["aegis"].tokens_per_second
    assert summary["results"]["aegis"]["chain"] == summary["results"]["torch"]["chain"]


def test_sigterm_within_a_turn_leaves_valid_files(text: Path, tmp_path: Path) -> None:
    out, number = tmp_path / "out", signal.SIGTERM
    command = [sys.executable, "-m", "aegis", "soak", "--minutes", "60", "--loader", "aegis", "--turn", "10000"]
    command += ["--block-size", "16", "--batch-size", "2", "--interval", "0.05", "--device", "cpu"]
    command += ["--text", str(text), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    telemetry = out / "telemetry-aegis.csv"
    deadline = time.monotonic() + WAIT
    while not (telemetry.exists() and telemetry.read_text().count("\n") > 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number, errors
    assert f"ended early by signal {number}" in printed
    steps = len(read_telemetry(telemetry)["step"])
    assert steps >= 3
    checks = verify_receipt(out / "receipt-aegis.json")
    assert all(check.passed is not False for check in checks if check.name != "status"), checks
    receipt = json.loads((out / "receipt-aegis.json").read_text())
    assert (receipt["status"], receipt["steps"]["last"]) == ("interrupted", steps)
    assert json.loads((out / "soak.json").read_text())["stopped_by"] == number
    assert {"report.md", "report.html", "report.png"} <= {path.name for path in out.iterdir()}
    assert not list(out.glob(".*"))


def test_ctrl_c_ends_at_the_step_that_both_have_done(settings: Callable[..., Settings], tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def press(side: Side) -> None:
        if side.arm.name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

    result = soak(settings(), tmp_path / "out", minutes=60, turn=3, on_turn=press)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (result.stopped_by, result.common_steps, result.first_difference) == (signal.SIGINT, 3, None)
    for name in ("aegis", "torch"):
        receipt = json.loads((tmp_path / "out" / f"receipt-{name}.json").read_text())
        assert (receipt["status"], receipt["steps"]["last"]) == ("interrupted", 3)


def test_a_process_that_dies_is_an_error_and_the_other_one_ends(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    pids: list[int] = []

    def kill(side: Side) -> None:
        pids.append(side.pid)
        if len(pids) == 1:
            os.kill(side.pid, signal.SIGKILL)

    with pytest.raises(ChildProcessError, match=r"aegis: the process ended with -9: it said nothing"):
        soak(settings(), tmp_path / "out", steps=50, turn=2, on_turn=kill)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    receipt = json.loads((tmp_path / "out" / "receipt-torch.json").read_text())
    assert receipt["status"] == "interrupted"
    assert json.loads((tmp_path / "out" / "receipt-aegis.json").read_text())["status"] == "running"


def test_signals_to_all_processes_at_once_leave_valid_files(settings: Callable[..., Settings], tmp_path: Path) -> None:
    """As a service manager sends them: a side may end before this process tells it to."""
    sides: list[Side] = []

    def terminate(side: Side) -> None:
        sides.append(side)
        if len(sides) == 2:
            for one in sides:
                os.kill(one.pid, signal.SIGTERM)
                os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
            os.kill(os.getpid(), signal.SIGTERM)

    result = soak(settings(), tmp_path / "out", steps=50, turn=2, on_turn=terminate)
    assert result.stopped_by == signal.SIGTERM
    assert result.common_steps == 2
    for name in ("aegis", "torch"):
        checks = {check.name: check for check in verify_receipt(tmp_path / "out" / f"receipt-{name}.json")}
        assert all(check.passed for check in checks.values())
        assert checks["status"].detail == "interrupted after step 2"


def test_peak_memory_is_that_of_the_process_itself(settings: Callable[..., Settings], tmp_path: Path) -> None:
    ballast = np.ones(1 << 27)  # 1 GiB, which ru_maxrss of a child would count too
    result = soak(settings(), tmp_path / "out", steps=2, turn=2, loaders=["aegis"])
    assert 50e6 < result.sides["aegis"].peak_rss < ballast.nbytes


class Recorder:
    """A side that only notes whose turn it is."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns, self.steps = name, turns, 0
        self.result: dict[str, Any] = {}
        self._process = self

    def run(self, steps: int, stop: Callable[[], bool]) -> None:
        self.turns.append(self.name)
        self.steps += steps

    def wait_ready(self, stop: Callable[[], bool]) -> None: ...
    def finish(self, **options: Any) -> None: ...
    def kill(self) -> None: ...
    def poll(self) -> int:
        return 0


@pytest.mark.parametrize("count", [2, 3, 4])
def test_turns_are_fair(count: int) -> None:
    """All are as often at every place, and none of three or more goes twice on end, with its memory still in caches."""
    turns: list[str] = []
    sides: list[Any] = [Recorder(name, turns) for name in "abcd"[:count]]
    take_turns(sides, 1, done=lambda: False, stop=lambda: False, steps=4 * count)
    rounds = np.array(turns).reshape(-1, count)
    for place in range(count):
        assert sorted(rounds[:, place]) == sorted(4 * list("abcd"[:count]))
    assert count == 2 or all(a != b for a, b in pairwise(turns))


def columns(**changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    count = 40
    table = {
        "step": np.arange(1.0, count + 1),
        "step_seconds": np.full(count, 0.1),
        "wait_seconds": np.full(count, 0.01),
        "tokens": np.full(count, 100.0),
        "loss": np.linspace(5.0, 1.0, count),
        "cpu_seconds": np.full(count, 0.15),
        "minor_faults": np.r_[1000.0, np.zeros(count - 1)],
        "major_faults": np.zeros(count),
        "workers_minor_faults": np.full(count, np.nan),
        "workers_pss_bytes": np.full(count, np.nan),
        "rss_anon_bytes": 1e8 + 1e4 * np.arange(count),
        "vm_data_bytes": np.full(count, 2e8),
        "heap_used_bytes": 1e7 + 1e3 * np.arange(count),
    }
    return {**table, **changes}


def test_figures_leave_the_warm_up_out_and_count_from_there() -> None:
    found = figures(columns(), 10, 3e8)
    assert (found.first, found.last) == (11, 40)
    assert found.tokens_per_second == pytest.approx(1000.0)
    assert found.wait_share == pytest.approx(0.1)
    assert found.cpu_seconds == pytest.approx(0.15)
    assert found.minor_faults == 0.0
    assert found.rss_drift.change == pytest.approx(29e4)
    assert found.rss_drift.margin == pytest.approx(0.0, abs=1.0)
    assert found.vm_data_drift.change == 0.0
    assert found.heap_drift.change == pytest.approx(29e3)
    assert found.plain()["workers_pss"] is None
    assert figures(columns(), 1000, 3e8).first == 21
    growing = columns(workers_minor_faults=np.arange(40.0) * 7)
    assert figures(growing, 10, 3e8).workers_minor_faults == pytest.approx(7.0)
    with pytest.raises(ValueError, match="columns: expected at least one step, got none"):
        figures({name: values[:0] for name, values in columns().items()}, 10, 3e8)


def test_a_report_without_pictures(tmp_path: Path) -> None:
    report = SoakReport("A <title>", ["setting"], ["a < b"], {"aegis": figures(columns(), 10, 3e8)})
    assert [path.name for path in report.write(tmp_path, None, {})] == ["report.md", "report.html"]
    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert "![" not in text
    assert "| the same of worker processes             | none |".replace(" ", "") in text.replace(" ", "")
    assert "<img" not in page
    assert "<title>A &lt;title&gt;</title>" in page
    assert "<li>a &lt; b</li>" in page


def test_losses_are_compared_bit_by_bit_where_both_have_a_step() -> None:
    left, right = columns(), columns()
    assert same_losses(left, right) == (40, None)
    right["loss"] = right["loss"].copy()
    right["loss"][6] = np.nextafter(right["loss"][6], 9.0)
    assert same_losses(left, right) == (7, 7)
    assert same_losses(left, {name: values[:5] for name, values in right.items()}) == (5, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "minutes: expected a number above 0, got 0.0"),
        (["--minutes", "nan"], "minutes: expected a number above 0, got nan"),
        (["--steps", "-3"], "steps: expected a number above 0, got -3"),
        (["--turn", "0"], "turn: expected a number above 0, got 0"),
        (["--warmup", "-1"], "warmup: expected at least 0, got -1"),
        (["--num-workers", "-1"], "--num-workers: expected at least 0, got -1"),
        (["--dtype", "uint8"], "--dtype: expected only together with --data"),
        (["--data", "/no/such/file", "--dtype", "uint8", "--steps", "1"], "/no/such/file"),
        (["--batch-size", "100000", "--steps", "1"], "batch_size: expected at most "),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], message: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = [] if "--data" in arguments else ["--text", str(text)]
    assert main(["soak", *source, "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("aegis soak: error: ")
    assert message in error


def test_bad_arguments(settings: Callable[..., Settings], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="minutes, steps: expected at least one of them"):
        soak(settings(), tmp_path)
    with pytest.raises(ValueError, match=r"loaders: expected different ones of aegis, torch, got \['aegis', 'aegis'\]"):
        soak(settings(), tmp_path, steps=1, loaders=["aegis", "aegis"])
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        soak(settings(), tmp_path / "file", steps=1)
