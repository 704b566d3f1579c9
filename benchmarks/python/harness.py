"""What every benchmark shares: fair timing, and a table that says whether a target was met.

Contenders of one row are called in turn within one process, so that a machine whose speed drifts is fair to all of
them; medians are compared. Results are checked equal before anything is timed. A benchmark is a function that
fills a :class:`Table`, and a module that ends in ``main(function)``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aegis
import torch


@dataclass
class Row:
    what: str
    anchor: str
    """What it is measured against, or empty where the target is an absolute limit."""
    anchor_value: float | None
    ours: float
    unit: str
    target: str
    met: bool | None
    """None where the row has no target: a figure for orientation."""


@dataclass
class Table:
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ratio(self, what: str, anchor: str, anchor_value: float, ours: float, unit: str, at_least: float) -> None:
        """A row where smaller is better and ours must be ``at_least`` times smaller than the anchor."""
        met = anchor_value >= at_least * ours
        self.rows.append(Row(what, anchor, anchor_value, ours, unit, f"≥ {at_least:g}×", met))

    def rate(self, what: str, anchor: str, anchor_value: float, ours: float, unit: str, at_least: float) -> None:
        """A row where larger is better and ours must be ``at_least`` times the anchor."""
        self.rows.append(
            Row(what, anchor, anchor_value, ours, unit, f"≥ {at_least:g}×", ours >= at_least * anchor_value)
        )

    def compared(self, what: str, anchor: str, anchor_value: float, ours: float, unit: str) -> None:
        """Two values side by side, without a target."""
        self.rows.append(Row(what, anchor, anchor_value, ours, unit, "", None))

    def limit(self, what: str, ours: float, unit: str, at_most: float) -> None:
        """A row that must not exceed a number."""
        self.rows.append(Row(what, "", None, ours, unit, f"≤ {at_most:g} {unit}", ours <= at_most))

    def figure(self, what: str, value: float, unit: str) -> None:
        """A row without a target."""
        self.rows.append(Row(what, "", None, value, unit, "", None))

    def markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            "| what | measured against | that | aegis | ratio | target | met |",
            "| --- | --- | ---: | ---: | ---: | --- | --- |",
        ]
        for row in self.rows:
            anchor = "" if row.anchor_value is None else f"{_number(row.anchor_value)} {row.unit}"
            smaller = row.anchor_value is not None and not row.unit.endswith("/s")
            ratio = ""
            if row.anchor_value is not None and row.ours > 0 and row.anchor_value > 0:
                ratio = f"{row.anchor_value / row.ours if smaller else row.ours / row.anchor_value:.2f}×"
            met = {True: "yes", False: "**no**", None: ""}[row.met]
            lines.append(
                f"| {row.what} | {row.anchor} | {anchor} | {_number(row.ours)} {row.unit} | {ratio} "
                f"| {row.target} | {met} |"
            )
        return "\n".join([*lines, "", *self.notes, ""])


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interleave(
    contenders: dict[str, Callable[[], object]], rounds: int, burst: int = 10, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of each call. Every contender has a turn in each round, the order turned by one each time; a turn is
    ``burst`` calls, after one that is not counted and finds the caches as the contender before left them."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            call = contenders[name]
            call()
            for _ in range(burst):
                start = time.perf_counter()
                call()
                if number >= 0:
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def anonymous_bytes() -> int:
    """Resident memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no RssAnon")


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return (
        f"{model}, {os.cpu_count()} logical CPUs, {aegis.cpu_isa()}; Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, aegis {aegis.__version__}"
    )


def main(build: Callable[[bool], Table], draw: Callable[[Any, Path], None] | None = None) -> None:
    """The command line of a benchmark: prints its table, keeps it as JSON and draws it where asked to."""
    parser = argparse.ArgumentParser(description=build.__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    if draw is not None:
        parser.add_argument("--png", type=Path, help="also draw a picture into this file")
    arguments = parser.parse_args()
    table = build(arguments.quick)
    print(table.markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), **asdict(table)}, indent=1))
    if draw is not None and arguments.png:
        draw(table, arguments.png)
