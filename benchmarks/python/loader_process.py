"""A loader in a process of its own, that takes batches when it is told to and is stopped in between.

    python benchmarks/python/loader_process.py LOADER TOKENS DESCRIPTOR

is what :class:`LoaderProcess` starts, under any interpreter that has torch, numpy and the loader's package.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT = 120.0
"""Seconds to wait for a loader that starts or takes its turn."""


class LoaderError(Exception):
    """Why a loader has no figures, in one line."""

    def __init__(self, reason: str) -> None:
        line = re.sub(r"(?:/[^/\s'\"]+)+/", "", " ".join(reason.split()))  # folders of a machine say nothing to others
        super().__init__(line if len(line) < 200 else f"{line[:200]} ...")


class LoaderProcess:
    """One of ``peers.LOADERS``, over a file of the tokens 0, 1, 2, ... modulo 65,536.

    Threads and workers of a loader go on prefetching when its turn is over, which would slow the next one down. So the
    process group is stopped by a signal until its next turn.

    Attributes:
        versions: of its packages, known after the first turn.
    """

    def __init__(self, name: str, tokens: Path, python: str = sys.executable) -> None:
        self.versions: dict[str, str] = {}
        self._command = [python, "-W", "ignore", __file__, name, str(tokens)]
        self._environment = {**os.environ, "TMPDIR": str(tokens.parent)}  # its files go when the tokens go
        self._log = tokens.with_name(f"{name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection

    def turn(self, seconds: float) -> float:
        """Seconds a batch; the first turn starts the process, which checks its first batch.

        Raises:
            LoaderError: it failed, its batches are wrong, its process ended, or it said nothing for ``LIMIT`` seconds.
        """
        if self._process is None:
            self._start()
        else:
            self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # _answer() says what became of the process
            self._connection.send(seconds)
        taken: float = self._answer()
        self._signal(signal.SIGSTOP)
        return taken

    def end(self) -> None:
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        with self._connection, contextlib.suppress(OSError):
            self._connection.send(None)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs, self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    # Not a session: within one, the kernel ends a stopped group whose parent is gone.
                    process_group=0,
                )
            except OSError as error:
                raise LoaderError(str(error)) from error
        self.versions = self._answer()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _answer(self) -> Any:
        assert self._process is not None
        try:
            if not self._connection.poll(LIMIT):
                raise LoaderError(f"no answer within {LIMIT:.0f} s")
            failed, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            said = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise LoaderError(f"its process ended with status {self._process.returncode}: {said[0]}") from None
        if failed:
            raise LoaderError(answer)
        return answer


def take_turns(
    loaders: dict[str, LoaderProcess], rounds: int, seconds: float, optional: Collection[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds a batch of each loader, and why the others have none. In each round another one is first.

    Raises:
        LoaderError: of a loader that is not ``optional``.
    """
    turns: dict[str, list[float]] = {name: [] for name in loaders}
    left_out: dict[str, str] = {}
    try:
        for number in range(-1, rounds):  # the first, in which processes start and check, does not count
            names = [name for name in loaders if name not in left_out]
            first = number % len(names)
            for name in names[first:] + names[:first]:
                try:
                    taken = loaders[name].turn(seconds)
                except LoaderError as error:
                    if name not in optional:
                        raise
                    left_out[name] = str(error)
                    loaders[name].end()
                else:
                    turns[name] += [taken] if number >= 0 else []
    finally:
        for loader in loaders.values():
            loader.end()
    measured = {name: statistics.median(turns[name]) for name in loaders if name not in left_out}
    return measured, {name: left_out[name] for name in loaders if name in left_out}


def check(batches: Iterator[Any]) -> None:
    """Takes a batch, whose rows must be windows of the file, each from another place, and targets one token later."""
    import peers
    import torch

    x, y = (torch.as_tensor(side) for side in next(batches))
    if not x.shape == y.shape == (peers.BATCH, peers.BLOCK):
        raise ValueError(f"batches of {tuple(x.shape)} and {tuple(y.shape)}, not {peers.BATCH} × {peers.BLOCK}")
    if not x.dtype == y.dtype == torch.int64:
        raise ValueError(f"batches of {x.dtype} and {y.dtype}, not int64")
    places = x[:, :1] + torch.arange(peers.BLOCK)
    if not (x.equal(places % 65536) and y.equal((places + 1) % 65536)):
        raise ValueError("rows are not windows of the file")
    if len(set(x[:, 0].tolist())) < peers.BATCH // 2 or (x[1:, 0] > x[:-1, 0]).all():
        raise ValueError("rows are not shuffled")


def seconds_per_batch(batches: Iterator[Any], measure: float) -> float:
    """Over ``measure`` seconds, after half as many that are not counted: they use up what was prefetched."""
    until = time.perf_counter() + measure / 2
    while time.perf_counter() < until:
        next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < measure:
        next(batches)
        count += 1
    return (time.perf_counter() - began) / count


def serve(name: str, tokens: Path, connection: Connection) -> None:
    import peers
    import torch

    torch.set_num_threads(1)
    batches = peers.LOADERS[name](tokens)
    check(batches)
    packages = ["torch", *([peers.PACKAGES[name]] if name in peers.PACKAGES else [])]
    connection.send((False, {package: importlib.metadata.version(package) for package in packages}))
    for measure in iter(connection.recv, None):
        connection.send((False, seconds_per_batch(batches, measure)))


if __name__ == "__main__":
    with Connection(int(sys.argv[3])) as parent:
        try:
            serve(sys.argv[1], Path(sys.argv[2]), parent)
        except Exception as error:
            parent.send((True, f"{type(error).__name__}: {error}"))
