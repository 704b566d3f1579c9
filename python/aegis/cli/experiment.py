"""``aegis experiment``: matched arms, and the forerunners' claims beside what is measured here."""

from __future__ import annotations

import argparse

from tqdm import tqdm

from aegis.cli.run_options import add_run_options, run_device, run_settings
from aegis.evidence.arm import Arm, parse_arm
from aegis.evidence.experiment_presets import EXPERIMENTS

__all__ = ["register", "run"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "experiment",
        help="train matched arms that differ in one thing, and report what it changes",
        description="Train the Micro-GPT in several arms that share first weights and recorded batches, in turns, each "
        "in a process of its own, over several seeds. Writes telemetry, receipts and a report (Markdown, JSON, PNG): "
        "tokens/s end to end, memory, page faults, and differences of losses beside those from seed to seed.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    presets = "; ".join(f"{name}: {preset.about}" for name, preset in EXPERIMENTS.items())
    which.add_argument("--preset", choices=EXPERIMENTS, help=presets)
    which.add_argument(
        "--arm",
        action="append",
        metavar="[NAME:]KEY=VALUE,…",
        help="an arm, given at least twice, the first being what others are compared with: loader=aegis|torch, "
        "audit=on|off, dtype=float32|bfloat16, master=float32|nearest|stochastic|truncate, tf32=on|off, "
        "step=eager|compiled|graphed",
    )
    parser.add_argument("--steps", type=int, default=200, help="of each arm and seed (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on (default: 3)")
    parser.add_argument(
        "--turn", type=int, default=1, metavar="STEPS", help="steps of a turn; more to compare how loaders keep up"
    )
    parser.add_argument("--warmup", type=int, default=20, metavar="STEPS", help="left out of the figures (default: 20)")
    add_run_options(parser, "aegis-experiment")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the experiment: 0 when done, 1 when arms had different batches, 128 + signal when one ended it early.

    Raises:
        OSError, ValueError: bad input, before training starts.
    """
    from aegis.evidence.experiment_run import experiment

    if args.seeds < 1:
        raise ValueError(f"--seeds: expected at least 1, got {args.seeds}")
    preset = EXPERIMENTS[args.preset] if args.preset else None
    arms = list(preset.arms) if preset else [parse_arm(text, Arm("default")) for text in args.arm]
    for arm in arms:
        arm.check(run_device(args))
    settings = run_settings(args)
    seeds = range(settings.seed, settings.seed + args.seeds)
    print(f"arms: {', '.join(arm.name for arm in arms)}; Ctrl-C ends early and keeps what there is", flush=True)
    with tqdm(total=args.steps * args.seeds * len(arms), unit="step", dynamic_ncols=True) as bar:
        result = experiment(
            settings,
            args.out,
            arms,
            claims=preset.claims if preset else (),
            steps=args.steps,
            seeds=seeds,
            device=str(run_device(args)),
            workers=args.num_workers,
            turn=args.turn,
            warmup=args.warmup,
            title=f"Experiment: {preset.about if preset else ', '.join(arm.name for arm in arms)}",
            on_turn=lambda side: bar.update(min(args.turn, args.steps - (side.steps - 1) // args.turn * args.turn)),
        )
    if result.arms:
        print(f"\n{(args.out / 'report.md').read_text()}")
    else:
        print("no seed was finished")
    for path in result.files:
        if path.stem in ("report", "experiment"):
            print(f"file: {path}")
    print(f"telemetry and receipts of all arms and seeds: {args.out}")
    if result.stopped_by is not None:
        return 128 + result.stopped_by
    return 0 if result.same_batches else 1
