"""What an experiment comes to: figures of each arm over all seeds, and of pairs of arms seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegis.evidence.drift import Drift, drift, median_interval
from aegis.evidence.experiment_presets import Claim

__all__ = ["ArmFigures", "Floats", "Run", "arm_figures", "band", "divergence", "measure", "paired_speed"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One arm with one seed.

    Attributes:
        columns: of its telemetry, up to the last step that all arms of the seed did.
        peak_rss: of its process, in bytes.
        validation_loss: None where none was taken.
    """

    seed: int
    columns: Mapping[str, Floats]
    peak_rss: float
    validation_loss: float | None
    warmup: int

    def counted(self, name: str) -> Floats:
        """A column without the warm-up, or without the first half of a run shorter than twice that."""
        values = self.columns[name]
        return values[min(self.warmup, len(values) // 2) :]

    @property
    def tokens_per_second(self) -> float:
        return float(self.counted("tokens").sum() / self.counted("step_seconds").sum())

    @property
    def last_loss(self) -> float:
        """Validation loss, or without one the mean training loss of the last quarter of the steps."""
        if self.validation_loss is not None:
            return self.validation_loss
        losses = self.columns["loss"]
        return float(losses[-max(1, len(losses) // 4) :].mean())


@dataclass(frozen=True)
class ArmFigures:
    """Over all seeds of an arm, and against the first arm, seed by seed. Bytes, nats per token.

    Attributes:
        speed: tokens/s over those of the first arm, less one: of each seed.
        paired_speed: the same of single steps on the same batch, one after the other: median, and the ends of its 95 %
            confidence interval. A machine's moods bear less on it.
        loss_difference: of each seed.
        divergence: mean over the counted steps of the distance of the two training losses, over all seeds.
    """

    tokens_per_second: float
    speed: list[float]
    paired_speed: tuple[float, float, float]
    wait_share: float
    peak_rss: float
    rss_drift: Drift
    minor_faults_per_second: float
    gpu_reserved: float | None
    gpu_reserved_drift: float | None
    loss: float
    loss_difference: list[float]
    divergence: float


def arm_figures(runs: Sequence[Run], first: Sequence[Run]) -> ArmFigures:
    """``first`` are the runs of the first arm, with the same seeds in the same order."""
    seconds = sum(run.counted("step_seconds").sum() for run in runs)
    reserved = [values[np.isfinite(values)] for values in (run.counted("gpu_reserved_bytes") for run in runs)]
    reserved = [values for values in reserved if len(values)]
    longest = max(runs, key=lambda run: len(run.columns["step"]))
    return ArmFigures(
        tokens_per_second=float(sum(run.counted("tokens").sum() for run in runs) / seconds),
        speed=[a.tokens_per_second / b.tokens_per_second - 1.0 for a, b in zip(runs, first, strict=True)],
        paired_speed=paired_speed(runs, first),
        wait_share=float(sum(run.counted("wait_seconds").sum() for run in runs) / seconds),
        peak_rss=max(run.peak_rss for run in runs),
        rss_drift=drift(longest.counted("step"), longest.counted("rss_anon_bytes")),
        minor_faults_per_second=float(sum(run.counted("minor_faults").sum() for run in runs) / seconds),
        gpu_reserved=float(max(values.max() for values in reserved)) if reserved else None,
        gpu_reserved_drift=float(max(values[-1] - values[0] for values in reserved)) if reserved else None,
        loss=float(np.mean([run.last_loss for run in runs])),
        loss_difference=[a.last_loss - b.last_loss for a, b in zip(runs, first, strict=True)],
        divergence=divergence(runs, first),
    )


def paired_speed(runs: Sequence[Run], against: Sequence[Run]) -> tuple[float, float, float]:
    """Median over steps and seeds of how much faster a step is, with its 95 % confidence interval."""
    pairs = zip(runs, against, strict=True)
    return median_interval([b.counted("step_seconds") / a.counted("step_seconds") - 1.0 for a, b in pairs])


def divergence(runs: Sequence[Run], first: Sequence[Run]) -> float:
    """Mean over steps and seeds of the distance of the losses on the same batches."""
    return float(
        np.mean([np.abs(a.counted("loss") - b.counted("loss")).mean() for a, b in zip(runs, first, strict=True)])
    )


def band(first: Sequence[Run]) -> float | None:
    """Standard deviation of the last losses of the first arm from seed to seed; None for a single seed."""
    losses = [run.last_loss for run in first]
    return float(np.std(losses, ddof=1)) if len(losses) > 1 else None


def measure(claim: Claim, runs: Mapping[str, Sequence[Run]], first: Sequence[Run]) -> list[float]:
    """What the claim is about: of throughput the median over pairs of steps and the ends of its interval, of divergence
    the mean over seeds, the lowest and the highest. Empty where it cannot be had."""
    if claim.kind == "throughput":
        return list(paired_speed(runs[claim.arm], runs[claim.against]))
    pairs = zip(runs[claim.arm], runs[claim.against], first, strict=True)
    distances = [(divergence([a], [zero]), divergence([b], [zero])) for a, b, zero in pairs]
    changes = [mine / other - 1.0 for mine, other in distances if other > 0.0]
    return [float(np.mean(changes)), min(changes), max(changes)] if changes else []
