"""Matched arms: training runs that differ in what is asked about and in nothing else."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aegis
from aegis.evidence.arm import Arm
from aegis.evidence.experiment_figures import ArmFigures, Run, arm_figures, band, measure
from aegis.evidence.experiment_presets import Claim
from aegis.evidence.experiment_report import ExperimentReport
from aegis.evidence.telemetry_file import read_telemetry
from aegis.evidence.training import check_data
from aegis.evidence.turns import Plan, Side, take_turns
from aegis.files import atomic_file
from aegis.train.interruption import Stop, interruption
from aegis.train.settings import Settings, make_dataset

__all__ = ["ExperimentResult", "experiment"]


@dataclass(frozen=True)
class ExperimentResult:
    """What :func:`aegis.evidence.experiment` found and wrote.

    Attributes:
        arms: figures by name.
        seeds: those that were finished.
        band: standard deviation from seed to seed of the first arm's last loss; None for a single seed.
        claims: each with what was measured, and its range; nothing where it could not be.
        same_batches: whether all arms of each seed took the same batches, as far as a checksum can tell.
        files: written.
        stopped_by: the signal that ended it early, or None.
    """

    arms: dict[str, ArmFigures]
    seeds: list[int]
    band: float | None
    claims: list[tuple[Claim, list[float]]]
    same_batches: bool
    files: list[Path]
    stopped_by: int | None


def experiment(
    settings: Settings,
    folder: str | os.PathLike[str],
    arms: Sequence[Arm],
    *,
    claims: Sequence[Claim] = (),
    steps: int = 200,
    seeds: Sequence[int] = (0, 1, 2),
    device: str = "cpu",
    workers: int = 1,
    turn: int = 1,
    warmup: int = 20,
    title: str = "Experiment",
    on_turn: Callable[[Side], None] = lambda side: None,
) -> ExperimentResult:
    """Trains the Micro-GPT in every arm, with dropout 0, gradients clipped at 1.0, and per seed the same first weights
    and the same recorded batches.

    For each seed, every arm has a fresh process, and the processes take turns of ``turn`` steps. With single steps the
    loaders of all arms fill their queues during the steps of the others, so that throughput shows what a step costs
    and hides what a loader cannot keep up with: give longer turns to compare that.

    Args:
        settings: of model and data, as ``aegis train`` has them; ``steps`` and ``seed`` there are not looked at.
        folder: for the files: the recorded order, telemetry and a receipt of each arm and seed, ``experiment.json``,
            ``report.md`` and ``report.png`` (where matplotlib is installed).
        arms: the first is what the others are compared with.
        claims: about these arms, to be put beside what was measured.
        steps: of each arm and seed, at least 2.
        seeds: of weights and batches; the first arm's spread over them is the band that differences stand beside.
        device: that models train on.
        workers: filler threads (arms whose loader is aegis) or worker processes (torch).
        turn: steps.
        warmup: steps that figures leave out.
        title: of the report.
        on_turn: called after each turn.

    Raises:
        ValueError: a number out of its range; arms of one name, or that ``device`` does not have.
        OSError: data or folder cannot be used.
        ChildProcessError: a training process failed.
    """
    for name, value, least in (("steps", steps, 2), ("turn", turn, 1), ("warmup", warmup, 0), ("workers", workers, 0)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    names = [arm.name for arm in arms]
    if len(arms) < 2 or len(set(names)) < len(names):
        raise ValueError(f"arms: expected at least two, with different names, got {', '.join(names) or 'none'}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different numbers, got {list(seeds)}")
    for arm in arms:
        arm.check(torch.device(device))
    check_data(settings)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    files: list[Path] = []
    done: list[int] = []
    same_batches = True
    with interruption() as stop:
        for seed in seeds:
            order = _record_order(replace(settings, seed=seed), folder, steps)
            plan = Plan(replace(settings, seed=seed), folder, device, workers, order=order)
            sides = [Side(arm, plan, f"{arm.name}-seed{seed}") for arm in arms]
            take_turns(sides, turn, done=lambda: False, stop=stop, on_turn=on_turn, steps=steps, validate=True)
            files += [path for side in sides for path in (side.telemetry, side.receipt)]
            found = _runs(sides, seed, warmup)
            if len(found) == len(arms) and (not stop() or not done):
                done.append(seed)
                same_batches &= len({(side.steps, side.result["batches"]) for side in sides}) == 1 or stop()
                for name, run in found.items():
                    runs[name].append(run)
            if stop():
                break
        setting = _setting(plan, done, steps, turn, warmup, stop)
        if not same_batches:
            setting.append("The arms did not all take the same batches: nothing below compares like with like.")
        return _conclude(runs, done, claims, arms, folder, files, title, setting, same_batches, stop)


def _record_order(settings: Settings, folder: Path, steps: int) -> Path:
    """Sample numbers for all steps, drawn from the seed, in a file that every arm of the seed reads."""
    samples = len(make_dataset(settings.data, settings))
    generator = np.random.default_rng(settings.seed)
    path = folder / f"order-seed{settings.seed}.npy"
    with atomic_file(path) as file:
        np.save(file, generator.integers(samples, size=steps * settings.batch_size), allow_pickle=False)
    return path


def _runs(sides: Sequence[Side], seed: int, warmup: int) -> dict[str, Run]:
    """One run for each arm; without those that did no step before they were stopped."""
    common = min(side.steps for side in sides)
    found = {}
    for side in sides:
        columns = read_telemetry(side.telemetry)
        kept = columns["step"] <= common
        columns = {name: values[kept] for name, values in columns.items()}
        if len(columns["step"]) == common > 0:
            result = side.result
            found[side.arm.name] = Run(seed, columns, result["peak_rss_bytes"], result["validation_loss"], warmup)
    return found


def _setting(plan: Plan, seeds: list[int], steps: int, turn: int, warmup: int, stop: Stop) -> list[str]:
    settings = plan.settings
    where = f"{plan.threads} threads of torch" if plan.device == "cpu" else torch.cuda.get_device_name(plan.device)
    machine = f"{where}, {platform.machine()}, {os.cpu_count()} processors"
    text = [
        f"Micro-GPT '{settings.preset}', dropout 0, gradients clipped at 1.0, batches of {settings.batch_size} x "
        f"{settings.block_size} tokens, {steps} steps, seeds {', '.join(map(str, seeds)) or 'none'}, {plan.workers} "
        f"filler thread(s) or worker process(es), on {plan.device} ({machine}; aegis {aegis.__version__}, torch "
        f"{torch.__version__}).",
        "For each seed all arms have the same first weights and the same recorded batches. Each trains in a process of "
        f"its own, in turns of {turn} step(s). Figures leave out the first {warmup} steps, or half of a shorter run.",
    ]
    if turn == 1:
        text.append(
            "With turns of single steps, the loaders of all arms fill their queues during the steps of the others: "
            "throughput shows what a step costs, not whether a loader keeps up."
        )
    if stop.signal is not None:
        text.append(f"The experiment was ended early by signal {stop.signal}.")
    return text


def _conclude(
    runs: dict[str, list[Run]],
    seeds: list[int],
    claims: Sequence[Claim],
    arms: Sequence[Arm],
    folder: Path,
    files: list[Path],
    title: str,
    setting: list[str],
    same_batches: bool,
    stop: Stop,
) -> ExperimentResult:
    found: dict[str, ArmFigures] = {}
    measured: list[tuple[Claim, list[float]]] = []
    spread = None
    if seeds:
        first = runs[arms[0].name]
        found = {name: arm_figures(of_arm, first) for name, of_arm in runs.items()}
        measured = [(claim, measure(claim, runs, first)) for claim in claims]
        spread = band(first)
    document: dict[str, Any] = {
        "title": title,
        "setting": setting,
        "seeds": seeds,
        "same_batches": same_batches,
        "arms": {arm.name: {"settings": arm.settings(), **_figures(found.get(arm.name))} for arm in arms},
        "seed_to_seed_band": spread,
        "claims": [{**asdict(claim), "measured": values} for claim, values in measured],
        "stopped_by": stop.signal,
    }
    path = folder / "experiment.json"
    with atomic_file(path) as file:
        file.write(json.dumps(_finite(document), indent=2, allow_nan=False).encode() + b"\n")
    files = [path, *files]
    if found:
        files = [*ExperimentReport(title, setting, arms, found, spread, measured).write(folder, runs), *files]
    return ExperimentResult(found, seeds, spread, measured, same_batches, files, stop.signal)


def _figures(figures: ArmFigures | None) -> dict[str, Any]:
    return {} if figures is None else {"figures": asdict(figures)}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
