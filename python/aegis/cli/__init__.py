"""The ``aegis`` command: a module a subcommand, with ``register(subparsers)`` and ``run(args)``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aegis import __version__
from aegis.cli import bench, doctor, experiment, inspect, pack, run, soak, train, verify

__all__ = ["main"]

_COMMANDS = [train, soak, experiment, run, verify, pack, inspect, bench, doctor]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status, 2 for bad input, 130 after Ctrl-C.

    What a user can mend (a path, an option, a file's contents) is told in one line on stderr.
    """
    parser = argparse.ArgumentParser(prog="aegis", description="Training batches from flat, aligned memory.")
    parser.add_argument("--version", action="version", version=f"aegis {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.register(subparsers)
    args = parser.parse_args(argv)
    if args.command == "run":  # errors of the user's script are Python's to tell
        return run.run(args)
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError) as error:
        print(f"aegis {args.command}: error: {error}", file=sys.stderr)
        return 2
