"""The closing table: end to end first, and under it what was counted, from which step, in which process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aegis.train.meter import StepRecord

__all__ = ["Summary", "markdown_table", "summarise", "table"]

WARMUP_STEPS = 20


@dataclass(frozen=True)
class Summary:
    """Figures over the steps from ``first`` to ``last``, both included: those after the warm-up."""

    first: int
    last: int
    tokens_per_second: float
    wait_share: float
    next_median: float  # seconds
    next_p99: float  # seconds
    minor_faults: float  # a batch
    major_faults: float  # a batch
    next_faults: float  # a batch
    rss_drift: float  # bytes: median over the last tenth of the steps counted, less that over the first


def summarise(records: Sequence[StepRecord]) -> Summary:
    """Sum up the steps of one run; the first ``WARMUP_STEPS``, or half of a short run, are left out.

    Raises:
        ValueError: no records.
    """
    if not records:
        raise ValueError("records: expected at least one step, got none")
    counted = records[min(WARMUP_STEPS, len(records) // 2) :]
    seconds = sum(record.seconds for record in counted)
    waits = [record.wait_seconds for record in counted]
    memory = [record.anon_rss_bytes for record in counted]
    tenth = -(-len(counted) // 10)
    return Summary(
        first=counted[0].step,
        last=counted[-1].step,
        tokens_per_second=sum(record.tokens for record in counted) / seconds,
        wait_share=sum(waits) / seconds,
        next_median=float(np.median(waits)),
        next_p99=float(np.percentile(waits, 99)),
        minor_faults=float(np.mean([record.minor_faults for record in counted])),
        major_faults=float(np.mean([record.major_faults for record in counted])),
        next_faults=float(np.mean([record.next_faults for record in counted])),
        rss_drift=float(np.median(memory[-tenth:]) - np.median(memory[:tenth])),
    )


def table(summaries: dict[str, Summary], *, memory: bool = True) -> str:
    """The Markdown table, a column for each named summary, and the notes that say what it counts.

    ``memory=False`` leaves the drift out: that of a process shared by several loaders is nobody's.
    """
    columns = list(summaries.values())
    rows = [
        ["end to end", *(f"{s.tokens_per_second:,.0f} tokens/s" for s in columns)],
        ["share of the step spent waiting for data", *(f"{s.wait_share:.3%}" for s in columns)],
        ["next(), median a batch", *(f"{s.next_median * 1e6:,.1f} µs" for s in columns)],
        ["next(), 99th percentile", *(f"{s.next_p99 * 1e6:,.1f} µs" for s in columns)],
        ["minor page faults a batch, whole step", *(f"{s.minor_faults:,.1f}" for s in columns)],
        ["minor page faults a batch, inside next()", *(f"{s.next_faults:,.2f}" for s in columns)],
        ["major page faults a batch", *(f"{s.major_faults:,.2f}" for s in columns)],
    ]
    if memory:
        rows.append(["anonymous RSS drift", *(f"{s.rss_drift / 2**20:+,.2f} MiB" for s in columns)])
    spans = {f"steps {s.first} to {s.last}" for s in columns}
    notes = [
        f"Counted: {' / '.join(sorted(spans))}; those before are warm-up. A step lasts from asking for the batch until",
        "its loss is known and the weights are updated; evaluation and checkpoints are left out.",
        f"Page faults are those of process {os.getpid()}, all threads, model included; those inside next() are of the",
        "calling thread alone. Worker processes, where a loader starts any, are not counted.",
    ]
    if memory:
        notes += [
            "Drift: anonymous resident memory of that process, median over the last tenth of the steps counted less",
            "that over the first tenth (it moves from step to step with the model's buffers).",
        ]
    return "\n".join([markdown_table(["", *summaries], rows), "", *notes])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as an aligned Markdown table; all columns but the first lean to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    rule = f"|{'-' * (widths[0] + 2)}|{''.join('-' * (width + 1) + ':|' for width in widths[1:])}"
    return "\n".join([line(header), rule, *map(line, rows)])
