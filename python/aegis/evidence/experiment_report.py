"""The report of an experiment: Markdown and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aegis.evidence.arm import Arm
from aegis.evidence.experiment_figures import ArmFigures, Run
from aegis.evidence.experiment_plot import draw
from aegis.evidence.experiment_presets import Claim
from aegis.files import atomic_file
from aegis.train.report import markdown_table

__all__ = ["ExperimentReport"]

_MB = 1e6
_RANGES = (
    "Throughput: median over pairs of steps, and its 95 % confidence interval. Divergence: how far the training losses "
    "lie from those of the first arm, mean over steps; mean over seeds, and the lowest and the highest."
)


@dataclass(frozen=True)
class ExperimentReport:
    """What is told of an experiment. ``arms`` are in the order of the tables; all others stand against the first."""

    title: str
    setting: Sequence[str]
    arms: Sequence[Arm]
    figures: Mapping[str, ArmFigures]
    band: float | None
    claims: Sequence[tuple[Claim, list[float]]]

    def markdown(self, picture: str | None) -> str:
        """``picture`` is the name of a file beside it."""
        parts = [f"# {self.title}", *self.setting, markdown_table(["", *self.figures], self._rows()), *self._notes()]
        parts += ["## Arms", markdown_table(["", *self.figures], self._arms())]
        if self.claims:
            header = ["claim", "theirs", "measured here", "range"]
            rows = [_claim_row(claim, values) for claim, values in self.claims]
            parts += ["## Their claims beside this", markdown_table(header, rows), _RANGES]
        if picture:
            parts.append(f"![throughput, losses and their differences]({picture})")
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path, runs: Mapping[str, Sequence[Run]]) -> list[Path]:
        """``report.md``, and ``report.png`` where matplotlib is installed; their paths."""
        try:
            picture = draw(self.title, runs, self.figures, self.band)
        except ModuleNotFoundError:
            picture = None
        files = {"report.md": self.markdown("report.png" if picture else None).encode()}
        if picture:
            files["report.png"] = picture
        for name, data in files.items():
            with atomic_file(folder / name) as file:
                file.write(data)
        return [folder / name for name in files]

    def _rows(self) -> list[list[str]]:
        columns = list(self.figures.values())
        rows = [
            ["end to end", *(f"{a.tokens_per_second:,.0f} tokens/s" for a in columns)],
            ["against the first arm", "", *(_spread(a.speed, "+.2%") for a in columns[1:])],
            ["the same, step by step", "", *(_interval(a.paired_speed) for a in columns[1:])],
            ["share of the step spent waiting for data", *(f"{a.wait_share:.3%}" for a in columns)],
            ["loss at the end", *(f"{a.loss:.4f}" for a in columns)],
            ["less that of the first arm", "", *(_spread(a.loss_difference, "+.4f") for a in columns[1:])],
            ["distance of training losses, mean", "", *(f"{a.divergence:.5f}" for a in columns[1:])],
            ["highest RSS", *(f"{a.peak_rss / _MB:,.0f} MB" for a in columns)],
            ["minor page faults a second", *(f"{a.minor_faults_per_second:,.1f}" for a in columns)],
        ]
        if any(a.gpu_reserved is not None for a in columns):
            rows.append(["GPU memory reserved", *(f"{(a.gpu_reserved or 0.0) / _MB:,.0f} MB" for a in columns)])
            rows.append(["its drift", *(f"{(a.gpu_reserved_drift or 0.0) / _MB:+,.1f} MB" for a in columns)])
        return rows

    def _notes(self) -> list[str]:
        count = len(next(iter(self.figures.values())).speed)
        notes = [
            "Losses in nats per token: at the end that of the validation batches, or without them the mean of the last "
            f"quarter of the training steps. Differences are taken seed by seed: mean of {count}, and in brackets the "
            "lowest and the highest. Step by step: how much faster the same step was than in the first arm, median "
            "over all steps and seeds, and in brackets its 95 % confidence interval, which allows for steps that "
            "resemble the ones before them.",
        ]
        if self.band is None:
            notes.append("With a single seed there is no band to hold differences of losses against.")
        else:
            notes.append(
                f"Seed-to-seed band: the loss at the end of the first arm varies by {self.band:.4f} nats (standard "
                "deviation over seeds). A difference that is smaller says nothing about how well an arm trains."
            )
        return notes

    def _arms(self) -> list[list[str]]:
        settings = [arm.settings() for arm in self.arms]
        return [[key, *(of_arm[key] for of_arm in settings)] for key in settings[0]]


def _claim_row(claim: Claim, values: list[float]) -> list[str]:
    what = f"{claim.kind} of {claim.arm} against {claim.against} ({claim.reading})"
    if not values:
        return [what, claim.theirs, "nothing", ""]
    if values[1] == values[2]:
        return [what, claim.theirs, f"{values[0]:+.2%}", "one seed"]
    certain = "" if values[1] * values[2] > 0.0 else " (not told from 0)"
    return [what, claim.theirs, f"{values[0]:+.2%}{certain}", f"{values[1]:+.2%} to {values[2]:+.2%}"]


def _interval(values: tuple[float, float, float]) -> str:
    return f"{values[0]:+.2%} ({values[1]:+.2%} to {values[2]:+.2%})"


def _spread(values: Sequence[float], form: str) -> str:
    mean = f"{np.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"
