"""What a soak comes to: figures over the steps after the warm-up, from the telemetry of each side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegis.evidence.drift import Drift, drift

__all__ = ["SoakFigures", "figures", "same_losses"]

Columns = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class SoakFigures:
    """Over the steps from ``first`` to ``last``, both included. Seconds and bytes; NaN where nothing was counted.

    ``workers_*`` are of the worker processes, where the loader has any, everything else of the training process.
    """

    first: int
    last: int
    tokens_per_second: float
    wait_share: float
    step_p50: float
    step_p99: float
    cpu_seconds: float  # a batch
    wait_p50: float
    wait_p95: float
    wait_p99: float
    minor_faults: float  # a batch
    major_faults: float  # a batch
    workers_minor_faults: float  # a batch
    rss_anon: float  # median
    workers_pss: float  # median
    peak_rss: float
    rss_drift: Drift
    vm_data_drift: Drift
    heap_drift: Drift  # of what malloc has given out and not got back

    def plain(self) -> dict[str, Any]:
        """As values that JSON has; NaN and infinity as None."""
        values: dict[str, Any] = _plain(asdict(self))
        return values


def figures(columns: Columns, warmup: int, peak_rss: float) -> SoakFigures:
    """Sum up one side.

    Args:
        columns: of :func:`~aegis.evidence.read_telemetry`.
        warmup: steps left out; of a run shorter than twice that, its first half is.

    Raises:
        ValueError: no step.
    """
    count = len(columns["step"])
    if count == 0:
        raise ValueError("columns: expected at least one step, got none")
    kept = slice(min(warmup, count // 2), None)
    counted = {name: values[kept] for name, values in columns.items()}
    seconds, waits = counted["step_seconds"], counted["wait_seconds"]
    step_p50, step_p99 = np.percentile(seconds, (50, 99))
    wait_p50, wait_p95, wait_p99 = np.percentile(waits, (50, 95, 99))
    return SoakFigures(
        first=int(counted["step"][0]),
        last=int(counted["step"][-1]),
        tokens_per_second=float(counted["tokens"].sum() / seconds.sum()),
        wait_share=float(waits.sum() / seconds.sum()),
        step_p50=float(step_p50),
        step_p99=float(step_p99),
        cpu_seconds=float(counted["cpu_seconds"].mean()),
        wait_p50=float(wait_p50),
        wait_p95=float(wait_p95),
        wait_p99=float(wait_p99),
        minor_faults=float(counted["minor_faults"].mean()),
        major_faults=float(counted["major_faults"].mean()),
        workers_minor_faults=_per_step(counted["step"], counted["workers_minor_faults"]),
        rss_anon=_median(counted["rss_anon_bytes"]),
        workers_pss=_median(counted["workers_pss_bytes"]),
        peak_rss=peak_rss,
        rss_drift=drift(counted["step"], counted["rss_anon_bytes"]),
        vm_data_drift=drift(counted["step"], counted["vm_data_bytes"]),
        heap_drift=drift(counted["step"], counted["heap_used_bytes"]),
    )


def same_losses(left: Columns, right: Columns) -> tuple[int, int | None]:
    """How many steps both have, and the first of them whose losses differ in any bit, or None."""
    rights = dict(zip(right["step"], right["loss"], strict=True))
    common = 0
    for step, loss in zip(left["step"], left["loss"], strict=True):
        if step in rights:
            common += 1
            if loss.tobytes() != rights[step].tobytes():
                return common, int(step)
    return common, None


def _per_step(steps: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """The slope between the first and the last count of something that only grows."""
    kept = np.isfinite(counts)
    if kept.sum() < 2:
        return float("nan")
    steps, counts = steps[kept], counts[kept]
    return float((counts[-1] - counts[0]) / (steps[-1] - steps[0]))


def _median(values: NDArray[np.float64]) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else float("nan")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
