"""The report of a soak: Markdown with a picture, and one page of HTML that needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegis.evidence.drift import Drift
from aegis.evidence.soak_figures import SoakFigures
from aegis.files import atomic_file
from aegis.train.report import markdown_table

__all__ = ["SoakReport"]

_MB = 1e6
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
img { max-width: 100%; }
p { max-width: 50rem; }
"""


@dataclass(frozen=True)
class SoakReport:
    """What is told of a soak, in the order in which it is told.

    Attributes:
        title: one line.
        setting: what was run and where, in sentences.
        verdicts: what was found, in sentences.
        sides: the figures of each.
    """

    title: str
    setting: Sequence[str]
    verdicts: Sequence[str]
    sides: Mapping[str, SoakFigures]

    def markdown(self, picture: str | None) -> str:
        """``picture`` is the name of a file beside it."""
        header, rows = self._table()
        parts = [f"# {self.title}", *self.setting, markdown_table(header, rows), *self._notes(), "## Findings"]
        parts.append("\n".join(f"- {verdict}" for verdict in self.verdicts))
        if picture:
            parts.append(f"![throughput, latencies, memory and faults over time]({picture})")
        return "\n\n".join(parts) + "\n"

    def page(self, pictures: Mapping[str, bytes]) -> str:
        """``pictures`` are PNG files by their titles."""
        header, rows = self._table()

        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        table = "\n".join([line(header, "th"), *(line(row, "td") for row in rows)])
        images = []
        for name, data in pictures.items():
            text, source = html.escape(name, quote=True), base64.b64encode(data).decode()
            images.append(f'<p><img alt="{text}" src="data:image/png;base64,{source}"></p>')
        title = html.escape(self.title)
        paragraphs = "\n".join(f"<p>{html.escape(text)}</p>" for text in self.setting)
        notes = "\n".join(f"<p>{html.escape(text)}</p>" for text in self._notes())
        verdicts = "\n".join(f"<li>{html.escape(text)}</li>" for text in self.verdicts)
        head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        body = [
            f"{head}<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n{paragraphs}",
            f"<table>\n{table}\n</table>\n{notes}",
            f"<h2>Findings</h2>\n<ul>\n{verdicts}\n</ul>",
            *(["<h2>Over time</h2>", *images] if images else []),
            "</body></html>\n",
        ]
        return "\n".join(body)

    def write(self, folder: Path, picture: bytes | None, pictures: Mapping[str, bytes]) -> list[Path]:
        """``report.md``, ``report.png`` where there is a picture, ``report.html``; their paths."""
        files = {"report.md": self.markdown("report.png" if picture else None).encode()}
        if picture:
            files["report.png"] = picture
        files["report.html"] = self.page(pictures).encode()
        for name, data in files.items():
            with atomic_file(folder / name) as file:
                file.write(data)
        return [folder / name for name in files]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        columns = list(self.sides.values())
        rows = [
            ["end to end", *(f"{s.tokens_per_second:,.0f} tokens/s" for s in columns)],
            ["share of the step spent waiting for data", *(f"{s.wait_share:.3%}" for s in columns)],
            ["step, median / 99 %", *(f"{s.step_p50 * 1e3:,.1f} / {s.step_p99 * 1e3:,.1f} ms" for s in columns)],
            ["processor time a batch, all threads", *(f"{s.cpu_seconds * 1e3:,.1f} ms" for s in columns)],
            [
                "next(), median / 95 % / 99 %",
                *(f"{s.wait_p50 * 1e6:,.0f} / {s.wait_p95 * 1e6:,.0f} / {s.wait_p99 * 1e6:,.0f} µs" for s in columns),
            ],
            ["anonymous RSS, drift", *(_drift(s.rss_drift) for s in columns)],
            ["VmData, drift", *(_drift(s.vm_data_drift) for s in columns)],
            ["heap in use, drift", *(_drift(s.heap_drift) for s in columns)],
            ["minor page faults a batch", *(f"{s.minor_faults:,.3f}" for s in columns)],
            [
                "the same of worker processes",
                *(_or_none(s.workers_minor_faults, ",.1f") for s in columns),
            ],
            ["major page faults a batch", *(f"{s.major_faults:,.3f}" for s in columns)],
            ["anonymous RSS, median", *(f"{s.rss_anon / _MB:,.0f} MB" for s in columns)],
            ["PSS of worker processes, median", *(_or_none(s.workers_pss / _MB, ",.0f", " MB") for s in columns)],
            ["highest RSS since the start", *(f"{s.peak_rss / _MB:,.0f} MB" for s in columns)],
        ]
        return ["", *self.sides], rows

    def _notes(self) -> list[str]:
        spans = " / ".join(dict.fromkeys(f"{s.first:,} to {s.last:,}" for s in self.sides.values()))
        return [
            f"Counted: steps {spans}; those before are warm-up. A step lasts from asking for the batch until its loss "
            "is known and the weights are updated; where other programs use the machine, or its scheduler puts the "
            "threads of a process on one core, it takes longer and its processor time hardly more. That time and page "
            "faults are those of the training process with all of its "
            "threads, model and telemetry included, and what it does between two steps.",
            "Drift is slope times span of a straight line through the samples, ± half the width of its 95 % confidence "
            "interval; the interval allows for samples that resemble the ones before them. Heap in use is what malloc "
            "has given out and not got back: what grows there grows, wherever it finds its memory.",
        ]


def _drift(value: Drift) -> str:
    if value.margin == float("inf"):
        return "too few samples"
    return f"{value.change / _MB:+,.3f} ± {value.margin / _MB:,.3f} MB"


def _or_none(value: float, form: str, unit: str = "") -> str:
    return "none" if value != value else f"{value:{form}}{unit}"
