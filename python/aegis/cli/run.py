"""``aegis run``: a Python script, unchanged, with aegis in place of torch's DataLoader, or with another allocator."""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from aegis.data import patch
from aegis.runtime import ALLOCATORS, AllocatorNotFound, active_allocator, allocator_command

__all__ = ["register", "run"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "run",
        help="run a Python script with aegis in torch's place, or with another allocator",
        description="Run a script, or with -m a module, as python would: arguments, exit status and tracebacks are "
        "the same. Options of aegis come before it.",
        usage="%(prog)s [-h] [--loader] [--verbose] [--allocator NAME [OPTIONS OF IT]] (SCRIPT | -m MODULE) "
        "[ARGUMENT ...]",
    )
    parser.add_argument("--loader", action="store_true", help="deliver the batches of torch's DataLoader through aegis")
    parser.add_argument("--verbose", action="store_true", help="say at the end, on stderr, what aegis delivered")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    allocator = parser.add_argument_group("allocator", "what malloc is, in this process and those it starts")
    allocator.add_argument("--allocator", choices=ALLOCATORS, help="instead of the system's")
    allocator.add_argument("--large-pages", action="store_true", help="of 2 MB (mimalloc, jemalloc)")
    allocator.add_argument(
        "--purge-delay", type=int, metavar="MS", help="keep freed pages so long (mimalloc, jemalloc)"
    )
    allocator.add_argument(
        "--reserve-huge-pages", type=int, metavar="COUNT", help="of 1 GiB, which the system must have (mimalloc)"
    )
    allocator.add_argument("--arenas", type=int, metavar="COUNT", help="that threads share (jemalloc)")
    # One argument for both: a "--" that follows SCRIPT would be argparse's otherwise.
    parser.add_argument("script", nargs=argparse.PARSER, metavar="SCRIPT", help="and its arguments")
    parser.set_defaults(run=run)


# Tells the process that is started with another allocator which one that should be.
_WANTED = "AEGIS_RUN_ALLOCATOR"


def run(args: argparse.Namespace) -> int:
    """Run it; 0 when it comes to its end, 2 where there is no such file. Its exceptions pass through."""
    script: str = args.script[0]
    if not args.module and not os.path.exists(script):
        print(f"aegis run: error: can't open file {script!r}: no such file", file=sys.stderr)
        return 2
    if args.allocator:
        return _start_again(args)
    wanted = os.environ.pop(_WANTED, None)
    if wanted is not None and active_allocator().name != wanted:
        print(f"aegis run: error: expected {wanted} to be in force, got {active_allocator()}", file=sys.stderr)
        return 2
    sys.argv = args.script
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if args.module else os.path.dirname(os.path.realpath(script))
    try:
        with patch.patch_torch() if args.loader else nullcontext():
            if args.module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                # Absolute, as python sets __file__; runpy sets sys.argv[0] to the same.
                runpy.run_path(os.path.join(os.getcwd(), script), run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        trace = _of_script(error.__traceback__)
        if args.module and isinstance(error, ImportError) and trace is None:
            print(f"aegis run: error: {error}", file=sys.stderr)
            return 1
        _hide_frames(error, trace)
        raise
    finally:
        if args.verbose:
            counts = patch.stats()
            paths = ", ".join(f"{path} {count:,}" for path, count in counts.items())
            print(f"aegis run: {sum(counts.values()):,} batches delivered: {paths}", file=sys.stderr)
    return 0


def _start_again(args: argparse.Namespace) -> int:
    """Goes on as a process with another allocator, which can only be chosen at the start. 2 where that cannot be."""
    try:
        command = allocator_command(
            args.script[0],
            args.allocator,
            args.script[1:],
            large_pages=args.large_pages,
            purge_delay_ms=args.purge_delay,
            reserve_huge_pages=args.reserve_huge_pages,
            arenas=args.arenas,
        )
    except (AllocatorNotFound, ValueError) as error:
        print(f"aegis run: error: {error}", file=sys.stderr)
        return 2
    options = ["--loader"] * args.loader + ["--verbose"] * args.verbose + ["-m"] * args.module
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    argv = [sys.executable, *flags, "-m", "aegis", "run", *options, *args.script]
    sys.stdout.flush()
    os.execve(sys.executable, argv, {**command.environment(), _WANTED: args.allocator})


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback below :func:`run` and runpy; None for an error before the script's first line."""
    while trace is not None and trace.tb_frame.f_code is not run.__code__:
        trace = trace.tb_next
    if trace is not None:
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in ("runpy", "importlib._bootstrap"):
        trace = trace.tb_next
    return trace


def _hide_frames(error: BaseException, trace: TracebackType | None) -> None:
    """Python prints ``error``, or the script's own hook does, with ``trace`` instead of the way through aegis.

    The exit status, and the signal after Ctrl-C, are then Python's too.
    """
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], raised: BaseException, raised_at: TracebackType | None) -> Any:
        if raised is error:
            raised_at = trace
            raised = raised.with_traceback(trace)
        hook(kind, raised, raised_at)

    sys.excepthook = excepthook
