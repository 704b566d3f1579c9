"""The picture of an experiment."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aegis.evidence.experiment_figures import ArmFigures, Floats, Run

__all__ = ["draw"]

_COLORS = ["#4c4c4c", "#2a6f97", "#c1440e", "#5b8c5a", "#7a5195", "#8a6d3b"]
_DASHES = ["-", (0, (5, 2)), (0, (2, 2)), (0, (5, 2, 1, 2))]  # arms with the same losses are still seen


def draw(title: str, runs: Mapping[str, Sequence[Run]], figures: Mapping[str, ArmFigures], band: float | None) -> bytes:
    """A PNG: how much faster steps are than the first arm's, the losses, and their distance from the first arm's.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: no global state, no display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.6 + 0.35 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    speed, losses, differences = figure.subplots(3, 1, height_ratios=[0.5 + 0.3 * len(runs), 2.6, 2.6])
    names = list(runs)
    _draw_speed(speed, figures)
    for place, (name, of_arm) in enumerate(runs.items()):
        steps = of_arm[0].columns["step"]
        style: dict[str, Any] = {
            "color": _COLORS[place % len(_COLORS)],
            "linestyle": _DASHES[place % len(_DASHES)],
            "label": name,
        }
        losses.plot(steps, _smooth(_mean([run.columns["loss"] for run in of_arm])), **style)
        if place:
            pairs = zip(of_arm, runs[names[0]], strict=True)
            differences.plot(steps, _smooth(_mean([a.columns["loss"] - b.columns["loss"] for a, b in pairs])), **style)
    losses.set_title("training loss, mean over seeds, smoothed", loc="left", fontsize=10)
    if band is not None:
        name = "seed-to-seed band\n(loss at the end)"
        differences.axhspan(-band, band, color="#5b8c5a", alpha=0.12, linewidth=0, label=name)
    differences.axhline(0.0, color=_COLORS[0], linewidth=0.8)
    differences.set_title(f"the same less that of {names[0]}", loc="left", fontsize=10)
    differences.set_xlabel("step")
    for axes in (losses, differences):
        axes.set_ylabel("nats per token")
        axes.margins(x=0.01)
        axes.legend(frameon=False, fontsize=8, handlelength=3, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (speed, losses, differences):
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    return file.getvalue()


def _draw_speed(axes: Any, figures: Mapping[str, ArmFigures]) -> None:
    labels = [f"{name}: {of_arm.tokens_per_second:,.0f} tokens/s" for name, of_arm in figures.items()]
    axes.axvline(0.0, color=_COLORS[0], linewidth=0.8)
    for place, of_arm in enumerate(figures.values()):
        median, low, high = (100.0 * value for value in of_arm.paired_speed)
        color = _COLORS[place % len(_COLORS)]
        axes.errorbar(median, place, xerr=[[median - low], [high - median]], fmt="o", color=color, capsize=3)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("%")
    title = f"how much faster a step is than the same one of {next(iter(figures))}: median, 95 % interval"
    axes.set_title(title, loc="left", fontsize=10)


def _mean(rows: Sequence[Floats]) -> Floats:
    mean: Floats = np.mean(rows, axis=0)
    return mean


def _smooth(values: Floats) -> Floats:
    """Mean over a twentieth of the steps, fewer at the ends."""
    width = max(1, len(values) // 20)
    weights = np.convolve(np.ones_like(values), np.ones(width), mode="same")
    smooth: Floats = np.convolve(values, np.ones(width), mode="same") / weights
    return smooth
