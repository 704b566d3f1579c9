"""``aegis verify``: whether files and runs are still what a receipt says."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from aegis.evidence.environment import host, versions
from aegis.evidence.receipt_file import read_receipt
from aegis.evidence.verify import Check, verify_receipt

__all__ = ["register", "run"]

_MARKS = {True: "ok", False: "FAILED", None: "not checked"}
_HOST = ("machine", "processor", "isa", "torch_threads", "accelerator")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "verify",
        help="check a receipt, its data and its artefacts; with --replay, do the first steps again",
        description="Check that a receipt agrees with itself, and that data and artefacts are those it was written "
        "for. Exit status 1 when something is not, 2 when the file is no receipt. It finds accidents and careless "
        "edits: whoever can run the code can also write a receipt to match.",
    )
    parser.add_argument("receipt", type=Path, metavar="RECEIPT")
    parser.add_argument(
        "--replay", type=int, metavar="N", help="do the first N steps of an aegis train --chain run again"
    )
    parser.add_argument("--feed-only", action="store_true", help="with --replay: take the batches, train nothing")
    parser.add_argument("--json", action="store_true", help="print a JSON list, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each check; 1 if any failed.

    Raises:
        OSError, ValueError: the file is missing or no receipt, or the run cannot be done again.
    """
    if args.feed_only and args.replay is None:
        raise ValueError("--feed-only: expected only together with --replay")
    checks = verify_receipt(args.receipt)
    if args.replay is not None:
        checks += _replayed(args)
    if args.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            print(_printable(f"{_MARKS[check.passed]:>11}  {check.name}: {check.detail}"))
    failed = sum(check.passed is False for check in checks)
    if failed:
        print(f"aegis verify: {failed} of {len(checks)} checks failed", file=sys.stderr)
    return int(failed > 0)


def _printable(text: str) -> str:
    """What a receipt says may move the cursor, or be no Unicode at all."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _replayed(args: argparse.Namespace) -> list[Check]:
    from aegis.train.receipt import LOSSES, replay

    with tqdm(total=args.replay, unit="step", dynamic_ncols=True, mininterval=0.5, leave=False) as bar:
        again = replay(args.receipt, args.replay, feed_only=args.feed_only, on_step=lambda step: bar.update())
    checks = []
    for name in again.chains:
        difference = again.difference(name)
        if difference is None:
            detail = f"the same values up to step {again.compared[name]}"
        else:
            detail = difference + (_elsewhere(args.receipt) if name == LOSSES else "")
        checks.append(Check(f"replay of {name}", difference is None, detail))
    return checks


def _elsewhere(receipt: Path) -> str:
    """What is not as it was when the receipt was written, and may well be the reason."""
    record = read_receipt(receipt)
    here: dict[str, Any] = {**versions(), **{name: host()[name] for name in _HOST}}
    then: dict[str, Any] = {**record["versions"], **record["host"]}
    changed = [f"{name} {then.get(name)} then, {now} now" for name, now in here.items() if then.get(name) != now]
    return f" (losses depend on the machine: {'; '.join(changed)})" if changed else ""
