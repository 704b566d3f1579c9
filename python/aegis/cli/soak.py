"""``aegis soak``: a long run through aegis and the same one through torch's DataLoader, watched step by step."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from tqdm import tqdm

from aegis.cli.run_options import add_run_options, run_device, run_settings

if TYPE_CHECKING:
    from aegis.evidence.turns import Side

__all__ = ["register", "run"]

_LOADERS = ("aegis", "torch")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "soak",
        help="train for long through aegis and through torch's DataLoader, and report what drifts",
        description="Train the Micro-GPT through aegis and through torch's DataLoader, in turns, each in a process of "
        "its own: same model, data, order and seeds. Writes telemetry (CSV), receipts and a report (Markdown, PNG, one "
        "page of HTML): throughput, latencies, memory, page faults over time, and their drift. Ctrl-C and SIGTERM end "
        "early and leave all files in order.",
    )
    parser.add_argument("--minutes", type=float, help="of training, for each loader (default: 2, without --steps)")
    parser.add_argument("--steps", type=int, help="for each loader, in place of --minutes or as a bound")
    parser.add_argument("--loader", choices=_LOADERS, help="only this one (default: both)")
    parser.add_argument("--turn", type=int, default=25, metavar="STEPS", help="steps of a turn (default: 25)")
    parser.add_argument(
        "--warmup", type=int, default=100, metavar="STEPS", help="steps that the figures leave out (default: 100)"
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between samples of memory (default: 1)"
    )
    parser.add_argument(
        "--stock-malloc", action="store_true", help="leave malloc as it is: no keeping of what is freed, no reserve"
    )
    add_run_options(parser, "aegis-soak")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Soak as told: 0 when done, 1 when losses or batches differ, 128 + signal when one ended it early.

    Raises:
        OSError, ValueError: bad input, before training starts.
    """
    from aegis.evidence.soak_run import soak

    minutes = 2.0 if args.minutes is None and args.steps is None else args.minutes
    settings = run_settings(args)
    loaders = [args.loader] if args.loader else list(_LOADERS)
    print(f"training through {' and '.join(loaders)}; Ctrl-C ends early and keeps what there is", flush=True)
    with _Progress(args.steps, minutes, len(loaders)) as show:
        result = soak(
            settings,
            args.out,
            minutes=minutes,
            steps=args.steps,
            loaders=loaders,
            device=str(run_device(args)),
            workers=args.num_workers,
            turn=args.turn,
            warmup=args.warmup,
            interval=args.interval,
            quiet_malloc=not args.stock_malloc,
            on_turn=show,
        )
    report = args.out / "report.md"
    if result.sides:
        print(f"\n{report.read_text()}")
    else:
        print("no step was finished")
    print("\n".join(f"file: {path}" for path in result.files))
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    return 0 if result.first_difference is None and result.same_chains is not False else 1


class _Progress:
    """A bar over the steps or the seconds of training of all sides."""

    def __init__(self, steps: int | None, minutes: float | None, sides: int) -> None:
        self._by_steps = steps is not None
        total = (steps or 0) if self._by_steps else (minutes or 0.0) * 60.0
        self._done: dict[str, float] = {}
        self._bar = tqdm(
            total=round(total * sides) if math.isfinite(total) else None,
            unit="step" if self._by_steps else "s",
            dynamic_ncols=True,
        )

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, side: Side) -> None:
        self._done[side.arm.name] = side.steps if self._by_steps else side.seconds
        self._bar.n = round(sum(self._done.values()))
        self._bar.set_postfix_str(f"{side.arm.name}: step {side.steps:,}, loss {side.loss:.3f}")

    def __exit__(self, *error: object) -> None:
        self._bar.close()
