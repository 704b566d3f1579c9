from __future__ import annotations

import csv
import math
import mmap
import os
import sys
from pathlib import Path

import pytest
from aegis.evidence.process import memory
from aegis.train.curve import draw_curve, write_csv
from aegis.train.meter import Meter, StepRecord
from aegis.train.report import markdown_table, summarise, table


def record(step: int, **changes: float) -> StepRecord:
    values = {
        "step": step,
        "tokens": 1000,
        "loss": 5.0 / step,
        "val_loss": math.nan,
        "lr": 1e-3,
        "seconds": 0.5,
        "wait_seconds": 0.005,
        "minor_faults": 30,
        "major_faults": 0,
        "next_faults": 2,
        "anon_rss_bytes": 100 << 20,
    }
    return StepRecord(**{**values, **changes})


def test_figures_are_taken_after_the_warm_up() -> None:
    slow = [record(step, seconds=9.0, wait_seconds=8.0, minor_faults=10**6) for step in range(1, 21)]
    steady = [record(step, anon_rss_bytes=(100 << 20) + (step << 10)) for step in range(21, 121)]
    steady[7].wait_seconds = 0.055
    summary = summarise(slow + steady)
    assert (summary.first, summary.last) == (21, 120)
    assert summary.tokens_per_second == pytest.approx(2000)
    assert summary.wait_share == pytest.approx((99 * 0.005 + 0.055) / 50)
    assert summary.next_median == pytest.approx(0.005)
    assert 0.005 <= summary.next_p99 < 0.055
    assert (summary.minor_faults, summary.next_faults, summary.major_faults) == (30, 2, 0)
    assert summary.rss_drift == 90 << 10


def test_a_short_run_counts_its_second_half() -> None:
    assert summarise([record(1), record(2), record(3)]).first == 2
    assert summarise([record(1)]).first == 1
    with pytest.raises(ValueError, match="records: expected at least one step, got none"):
        summarise([])


def test_table_opens_with_the_rate_end_to_end_and_says_what_it_counts() -> None:
    text = table({"aegis": summarise([record(step) for step in range(1, 41)])})
    lines = text.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0] == ["", "aegis"]
    assert cells[2:] == [
        ["end to end", "2,000 tokens/s"],
        ["share of the step spent waiting for data", "1.000%"],
        ["next(), median a batch", "5,000.0 µs"],
        ["next(), 99th percentile", "5,000.0 µs"],
        ["minor page faults a batch, whole step", "30.0"],
        ["minor page faults a batch, inside next()", "2.00"],
        ["major page faults a batch", "0.00"],
        ["anonymous RSS drift", "+0.00 MiB"],
    ]
    assert "steps 21 to 40" in text
    assert f"process {os.getpid()}" in text


def test_table_of_two_runs_has_a_column_each_and_no_drift() -> None:
    ours, theirs = [record(1)], [record(1, seconds=1.0)]
    text = table({"aegis": summarise(ours), "torch": summarise(theirs)}, memory=False)
    assert "| 2,000 tokens/s | 1,000 tokens/s |" in text
    assert "rift" not in text


def test_markdown_table_is_aligned() -> None:
    assert markdown_table(["", "a"], [["row", "1"], ["x", "1,000"]]).splitlines() == [
        "|     |     a |",
        "|-----|------:|",
        "| row |     1 |",
        "| x   | 1,000 |",
    ]


def test_csv_reads_back_the_same_bits(tmp_path: Path) -> None:
    records = [record(1, loss=1 / 3), record(2, loss=math.pi, val_loss=0.1 + 0.2)]
    write_csv(tmp_path / "loss.csv", records)
    with (tmp_path / "loss.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == StepRecord.columns()
    assert [float(row["loss"]) for row in rows] == [1 / 3, math.pi]
    assert [row["val_loss"] for row in rows] == ["", repr(0.1 + 0.2)]


def test_png_is_drawn(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is an optional extra")
    draw_curve(tmp_path / "loss.png", [record(step) for step in range(1, 60)], "title")
    pixels = image.imread(tmp_path / "loss.png")
    assert pixels.shape[:2] == (930, 1350)
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, pixels.shape[2])}) > 5


def test_without_matplotlib_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ModuleNotFoundError):
        draw_curve(tmp_path / "loss.png", [record(1)], "title")
    assert list(tmp_path.iterdir()) == []


def test_meter_counts_faults_and_memory_of_this_process() -> None:
    page = os.sysconf("SC_PAGE_SIZE")

    def batches() -> object:
        # Of its own: malloc might take what the process has left.
        memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(memory), page):
            memory[at] = 1
        yield memory

    meter = Meter()
    meter.start()
    held = meter.next(batches())
    measured = meter.stop(step=1, tokens=1, loss=0.0, lr=0.0)
    pages = len(held) // page
    assert 0 < measured.wait_seconds <= measured.seconds
    assert 0 < measured.next_faults <= measured.minor_faults <= pages + 10_000
    before = memory()["rss_anon_bytes"]
    held.close()
    assert before - memory()["rss_anon_bytes"] > 60 << 20
