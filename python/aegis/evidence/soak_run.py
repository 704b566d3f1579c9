"""A long run through aegis and the same one through torch's DataLoader, watched step by step."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import aegis
from aegis.evidence.arm import Arm
from aegis.evidence.heap import RESERVE
from aegis.evidence.soak_figures import Columns, SoakFigures, figures, same_losses
from aegis.evidence.soak_report import SoakReport
from aegis.evidence.telemetry_file import read_telemetry
from aegis.evidence.training import check_data
from aegis.evidence.turns import QUIET_MALLOC, Plan, Side, take_turns
from aegis.files import atomic_file
from aegis.train.interruption import interruption
from aegis.train.settings import Settings

__all__ = ["SoakResult", "soak"]

LOADERS = {"aegis": "aegis.FlatArenaDataLoader", "torch": "torch.utils.data.DataLoader"}


@dataclass(frozen=True)
class SoakResult:
    """What :func:`aegis.evidence.soak` found and wrote.

    Attributes:
        sides: figures of each loader; without those that did not finish a step.
        first_difference: the first step at which losses differ in any bit; None where none does.
        common_steps: steps compared.
        same_chains: whether steps, losses and whole batches hash to the same; None where the two did not end at the
            same step, or there is one.
        files: written.
        stopped_by: the signal that ended the run early, or None.
    """

    sides: dict[str, SoakFigures]
    first_difference: int | None
    common_steps: int
    same_chains: bool | None
    files: list[Path]
    stopped_by: int | None


def soak(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    minutes: float | None = None,
    steps: int | None = None,
    loaders: Sequence[str] = ("aegis", "torch"),
    device: str = "cpu",
    workers: int = 1,
    turn: int = 25,
    warmup: int = 100,
    interval: float = 1.0,
    quiet_malloc: bool = True,
    on_turn: Callable[[Side], None] = lambda side: None,
) -> SoakResult:
    """Trains the Micro-GPT through each loader, with the same data, order, seeds and first weights.

    Each loader has a fresh process, so that memory and faults are its own, and the processes train in turns of ``turn``
    steps, first one and then the other first, so that all meet the same moods of the machine and end at the same step.
    While one trains the others sleep, except for what their loaders still prefetch.

    Ctrl-C, SIGTERM and SIGHUP end the run early, with all files in order; a second one ends it at once.

    Args:
        settings: of model and data, as ``aegis train`` has them; ``steps`` there is not looked at.
        folder: for the files: telemetry (CSV) and a receipt for each loader, ``soak.json``, ``report.md``,
            ``report.png`` (where matplotlib is installed) and ``report.html``, which needs no other file. Older files
            are replaced.
        minutes: of training for each loader, at least: all end at the same step, once the fastest has trained so long.
        steps: for each loader, in place of ``minutes`` or as its bound.
        loaders: of "aegis" and "torch".
        device: that models train on.
        workers: filler threads (aegis) or worker processes (torch).
        turn: steps.
        warmup: steps that figures leave out; of shorter runs, half.
        interval: of telemetry's samples, in seconds.
        quiet_malloc: start the processes with glibc's malloc told to keep what is freed, and have a reserve of the heap
            made resident during the warm-up.
        on_turn: called after each turn.

    Raises:
        ValueError: a number out of its range, or neither ``minutes`` nor ``steps``.
        OSError: data or folder cannot be used.
        ChildProcessError: a training process failed.
    """
    if minutes is None and steps is None:
        raise ValueError("minutes, steps: expected at least one of them")
    for name, value in (("minutes", minutes), ("steps", steps), ("turn", turn), ("interval", interval)):
        if value is not None and not value > 0:
            raise ValueError(f"{name}: expected a number above 0, got {value}")
    for name, number in (("warmup", warmup), ("workers", workers)):
        if number < 0:
            raise ValueError(f"{name}: expected at least 0, got {number}")
    if not loaders or len(set(loaders)) < len(loaders) or not set(loaders) <= set(LOADERS):
        raise ValueError(f"loaders: expected different ones of {', '.join(LOADERS)}, got {list(loaders)}")
    check_data(settings)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        settings=settings,
        folder=folder,
        device=device,
        workers=workers,
        interval=interval,
        quiet_malloc=quiet_malloc,
        settle=max(1, min(20, warmup // 2)),
    )
    with interruption() as stop:
        sides = [Side(Arm(name, loader=name, audit="on"), plan) for name in loaders]

        def done() -> bool:
            return minutes is not None and min(side.seconds for side in sides) >= minutes * 60.0

        take_turns(sides, turn, done=done, stop=stop, on_turn=on_turn, steps=steps)
        return _conclude(plan, sides, warmup, turn, stop.signal)


def _conclude(plan: Plan, sides: Sequence[Side], warmup: int, turn: int, stopped_by: int | None) -> SoakResult:
    columns = {side.arm.name: read_telemetry(side.telemetry) for side in sides}
    columns = {name: table for name, table in columns.items() if len(table["step"])}
    peaks = {side.arm.name: float(side.result["peak_rss_bytes"]) for side in sides}
    found = {name: figures(table, warmup, peaks[name]) for name, table in columns.items()}
    same_end = len(sides) == 2 and sides[0].steps == sides[1].steps
    same_chains = sides[0].result["chain"] == sides[1].result["chain"] if same_end else None
    common, different = (0, None) if len(columns) < 2 else same_losses(*columns.values())
    files = [plan.folder / "soak.json", *(path for side in sides for path in (side.telemetry, side.receipt))]
    summary = {
        "setting": vars(plan.settings),
        "sides": {name: side.plain() for name, side in found.items()},
        "results": {side.arm.name: side.result for side in sides},
        "common_steps": common,
        "first_difference": different,
        "same_chains": same_chains,
        "stopped_by": stopped_by,
    }
    with atomic_file(files[0]) as file:
        file.write(json.dumps(summary, indent=2).encode() + b"\n")
    if found:
        title = "Soak: " + " and ".join(LOADERS[name] for name in found)
        report = SoakReport(
            title=title,
            setting=_setting(plan, turn, stopped_by),
            verdicts=_verdicts(found, common, different, same_chains, sides),
            sides=found,
        )
        files = [*report.write(plan.folder, *_pictures(columns, warmup, title)), *files]
    return SoakResult(found, different, common, same_chains, files, stopped_by)


def _setting(plan: Plan, turn: int, stopped_by: int | None) -> list[str]:
    settings = plan.settings
    where = f"{plan.threads} threads of torch" if plan.device == "cpu" else torch.cuda.get_device_name(plan.device)
    text = [
        f"Micro-GPT '{settings.preset}', batches of {settings.batch_size} x {settings.block_size} tokens, seed "
        f"{settings.seed}, {plan.workers} filler thread(s) or worker process(es), on {plan.device} ({where}, "
        f"{platform.machine()}, {os.cpu_count()} processors; aegis {aegis.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}).",
        f"Each loader trains in a process of its own, in turns of {turn} steps; both take the same windows in the "
        "order of torch's shuffle from the same first weights, and hash every batch and loss.",
    ]
    if plan.quiet_malloc:
        names = " and ".join(f"{name}={value}" for name, value in QUIET_MALLOC.items())
        text.append(
            f"The processes were started with {names}, unless the environment said otherwise, and made "
            f"{RESERVE >> 20} MiB at the end of the heap resident after {plan.settle} steps: a step whose blocks lie "
            "further apart than those of the last finds room there."
        )
    if stopped_by is not None:
        text.append(f"The run was ended early by signal {stopped_by}.")
    return text


def _verdicts(
    found: dict[str, SoakFigures],
    common: int,
    different: int | None,
    same_chains: bool | None,
    sides: Sequence[Side],
) -> list[str]:
    verdicts = []
    if len(found) == 2:
        if different is not None:
            verdicts.append(f"Losses differ, first at step {different:,}.")
        else:
            verdicts.append(f"Losses are bit-identical at all {common:,} steps that both did.")
        if same_chains is not None:
            same = f"the same ({sides[0].result['chain']})" if same_chains else "not the same"
            verdicts.append(f"The integrity chains over steps, losses and whole batches are {same}.")
    for name, measured in found.items():
        for what, value in (
            ("anonymous RSS", measured.rss_drift),
            ("VmData", measured.vm_data_drift),
            ("the heap in use", measured.heap_drift),
        ):
            if value.margin == float("inf"):
                continue
            low, high = value.change - value.margin, value.change + value.margin
            where = "within" if max(-low, high) <= 1e6 else "not shown to be within"
            span = f"95 %: {low / 1e6:+.3f} to {high / 1e6:+.3f} MB"
            verdicts.append(f"{name}: the drift of {what} is {where} ±1 MB ({span}).")
        verdicts.append(f"{name}: {measured.minor_faults:.3f} minor page faults a batch.")
    for side in sides:
        missing = side.result["telemetry"]["dropped_rows"] + side.result["telemetry"]["lost_rows"]
        if missing:
            verdicts.append(f"{side.arm.name}: {missing:,} rows of telemetry are missing.")
    return verdicts


def _pictures(columns: Mapping[str, Columns], warmup: int, title: str) -> tuple[bytes | None, dict[str, bytes]]:
    """All panels in one, and each by itself; none without matplotlib."""
    from aegis.evidence.soak_plot import PANELS, draw

    try:
        whole = draw(PANELS, columns, warmup, title)
    except ModuleNotFoundError:
        return None, {}
    return whole, {panel.title: draw([panel], columns, warmup) for panel in PANELS}
