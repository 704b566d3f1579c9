"""The loss curve, as numbers (CSV) and as a picture (PNG)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from aegis.files import atomic_file
from aegis.train.meter import StepRecord

__all__ = ["draw_curve", "write_csv"]

Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

_TRAIN, _VALIDATION, _WAIT = "#2a6f97", "#c1440e", "#7a7a7a"


def write_csv(path: Path, records: Sequence[StepRecord]) -> None:
    """One row a step under the names of :class:`StepRecord`; an empty ``val_loss`` means none was taken.

    Losses are written so that reading them back gives the same bits.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(StepRecord.columns())
    for record in records:
        writer.writerow("" if isinstance(v, float) and math.isnan(v) else repr(v) for v in record.row())
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())


def draw_curve(path: Path, records: Sequence[StepRecord], title: str) -> None:
    """Losses over the steps, and below them what a step took and how much of that was waiting for data.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: no global state, no display
    from matplotlib.figure import Figure

    steps = np.array([record.step for record in records])
    losses = np.array([record.loss for record in records])
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])

    above.plot(steps, losses, color=_TRAIN, alpha=0.25, linewidth=0.8)
    above.plot(steps, _smooth(losses), color=_TRAIN, linewidth=1.8, label="training (smoothed)")
    taken = [record for record in records if not math.isnan(record.val_loss)]
    if taken:
        points = [record.step for record in taken], [record.val_loss for record in taken]
        above.plot(*points, "o-", color=_VALIDATION, markersize=4, linewidth=1.2, label="validation")
        last = taken[-1]
        above.annotate(
            f"{last.val_loss:.2f}",
            (last.step, last.val_loss),
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
            color=_VALIDATION,
        )
    above.set_ylabel("loss (nats per token)")
    above.set_title(title, loc="left", fontsize=11)
    above.legend(frameon=False)

    lines = [("seconds", _TRAIN, "whole step"), ("wait_seconds", _WAIT, "waiting for data")]
    for name, color, label in lines:
        times = np.array([getattr(record, name) for record in records]) * 1e3
        below.plot(steps, times, color=color, linewidth=0.8, label=label)
    below.set_yscale("log")
    below.set_ylabel("ms a step")
    below.set_xlabel("step")
    below.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 0.96))  # above the lines
    for axes in (above, below):
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _smooth(values: Floats) -> Floats:
    """Weighted mean over the neighbours to both sides (a bell of deviation 8): it does not lag behind."""
    kernel = np.exp(-0.5 * (np.arange(-24, 25) / 8.0) ** 2)
    weights = np.convolve(np.ones_like(values), kernel, mode="full")[24:-24]
    smooth: Floats = np.convolve(values, kernel, mode="full")[24:-24] / weights
    return smooth
