"""Pictures of a soak: what each side did, step by step."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegis.evidence.soak_figures import Columns

__all__ = ["PANELS", "Panel", "draw"]

Floats = NDArray[np.float64]

_COLORS = {"aegis": "#2a6f97", "torch": "#c1440e"}
_OTHERS = ["#5b8c5a", "#7a5195", "#8a6d3b", "#4c4c4c"]
_BINS = 90
_MB = 1e6


@dataclass(frozen=True)
class Panel:
    """One plot: its title, the unit of its y axis, and what draws a side into it."""

    title: str
    unit: str
    plot: Callable[[Any, Columns, int, str, str], None]
    finish: Callable[[Any], None] = lambda axes: None


def draw(panels: Sequence[Panel], sides: Mapping[str, Columns], warmup: int, title: str = "") -> bytes:
    """A PNG of the panels, one under the other, over the steps of each side.

    Args:
        sides: the columns of each by name; at least one step in each.
        warmup: steps; they are shaded.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: no global state, no display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.5 + 2.1 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    warm = min(warmup, max(int(columns["step"][-1]) for columns in sides.values()) // 2)
    for axes, panel in zip(rows, panels, strict=True):
        axes.axvspan(0.0, warm, color="#000000", alpha=0.06, linewidth=0)
        others = iter(_OTHERS)
        for name, columns in sides.items():
            panel.plot(axes, columns, warmup, name, _COLORS.get(name) or next(others))
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_ylabel(panel.unit)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
        if not axes.get_legend_handles_labels()[0]:  # a run so short that nothing was sampled after its warm-up
            axes.plot([], [], " ", label="no samples")
        axes.legend(frameon=False, fontsize=8, markerscale=3, loc="center left", bbox_to_anchor=(1.0, 0.5))
        panel.finish(axes)
    rows[-1].set_xlabel("step (grey: warm-up)")
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    return file.getvalue()


def _binned(columns: Columns, reduce: Callable[[slice], float]) -> tuple[Floats, Floats]:
    """A value for each of up to 90 runs of 20 steps or more, over the middle of the run."""
    steps = columns["step"]
    count = max(1, min(_BINS, len(steps) // 20))
    edges = np.unique(np.linspace(0, len(steps), count + 1).astype(int))
    spans = [slice(a, b) for a, b in pairwise(edges)]
    return np.array([steps[s].mean() for s in spans]), np.array([reduce(s) for s in spans])


def _throughput(axes: Any, columns: Columns, warmup: int, name: str, color: str) -> None:
    tokens, seconds = columns["tokens"], columns["step_seconds"]
    axes.plot(*_binned(columns, lambda s: tokens[s].sum() / seconds[s].sum()), color=color, linewidth=1.4, label=name)


def _from_zero(axes: Any) -> None:
    axes.set_ylim(bottom=0.0)


def _latency(column: str) -> Callable[[Any, Columns, int, str, str], None]:
    def plot(axes: Any, columns: Columns, warmup: int, name: str, color: str) -> None:
        values = columns[column] * 1e3
        medians = _binned(columns, lambda s: float(np.median(values[s])))
        high = _binned(columns, lambda s: float(np.percentile(values[s], 95)))
        axes.plot(*medians, "-", color=color, linewidth=1.3, label=f"{name}, median")
        axes.plot(*high, ":", color=color, linewidth=1.3, label=f"{name}, 95 %")

    return plot


def _log(axes: Any) -> None:
    """Ticks between the powers of ten where there are few of those."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yscale("log", subs=[2, 5] if high / low < 100.0 else [])
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, position: f"{value:g}")


def _growth(column: str) -> Callable[[Any, Columns, int, str, str], None]:
    """The change since the median of the first samples after the warm-up; samples as dots, with the line fitted."""

    def plot(axes: Any, columns: Columns, warmup: int, name: str, color: str) -> None:
        kept = np.isfinite(columns[column])
        steps, values = columns["step"][kept], columns[column][kept] / _MB
        after = steps > min(warmup, columns["step"][-1] // 2)
        if not after.any():
            return
        values = values - np.median(values[after][:10])
        axes.plot(steps[after], values[after], ".", color=color, markersize=3, alpha=0.6, label=name)
        if after.sum() >= 3:
            slope, start = np.polyfit(steps[after], values[after], 1)
            ends = steps[after][[0, -1]]
            axes.plot(ends, start + slope * ends, color=color, linewidth=1.2)

    return plot


def _band(axes: Any) -> None:
    """At least ±1.5 MB, so that the noise of a flat line does not fill the picture."""
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.5), max(high, 1.5))
    axes.axhspan(-1.0, 1.0, color="#5b8c5a", alpha=0.10, linewidth=0)


def _faults(axes: Any, columns: Columns, warmup: int, name: str, color: str) -> None:
    counts = columns["minor_faults"]
    axes.plot(*_binned(columns, lambda s: float(counts[s].mean())), color=color, linewidth=1.3, label=name)


def _faults_scale(axes: Any) -> None:
    axes.set_yscale("symlog", linthresh=0.1, linscale=0.4)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:,g}" if value < 1e4 else f"{value:,.0f}")
    axes.axhline(0.1, color="#5b8c5a", linewidth=0.8, linestyle="--")


PANELS = [
    Panel("throughput", "tokens/s", _throughput, _from_zero),
    Panel("time of a step", "ms", _latency("step_seconds"), _log),
    Panel("of it, waiting for the batch", "ms", _latency("wait_seconds"), _log),
    Panel("anonymous RSS, change after the warm-up (green: ±1 MB)", "MB", _growth("rss_anon_bytes"), _band),
    Panel("VmData, change after the warm-up (green: ±1 MB)", "MB", _growth("vm_data_bytes"), _band),
    Panel("heap in use, change after the warm-up (green: ±1 MB)", "MB", _growth("heap_used_bytes"), _band),
    Panel("minor page faults of the process (dashed: 0.1)", "a batch", _faults, _faults_scale),
]
