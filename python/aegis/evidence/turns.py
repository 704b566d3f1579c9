"""Arms in fresh processes that train in turns, so that each has its own memory and all the same machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from aegis.evidence.arm import Arm
from aegis.train.settings import Settings

__all__ = ["QUIET_MALLOC", "Plan", "Side", "take_turns"]


QUIET_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Settings of glibc's malloc, read when a process starts, by which it keeps what is freed: otherwise it gives the
activations of every step back to the kernel and faults them in again at the next, thousands of pages each time. 32 MiB
is the most that glibc takes as the size from which blocks are mapped one by one. The pad is what the heap takes beyond
what is asked for; :func:`aegis.evidence.heap.touch_reserve` makes half of it resident during the warm-up."""


@dataclass(frozen=True)
class Plan:
    """What all sides have in common.

    Attributes:
        folder: for their files: ``telemetry-NAME.csv``, ``receipt-NAME.json``, and ``side-NAME.log`` where one had
            something to say.
        order: a ``.npy`` file of sample numbers, or None for the shuffle of torch's generator.
        interval: of telemetry, in seconds.
        quiet_malloc: start the processes with :data:`QUIET_MALLOC`, and have them touch a reserve of the heap.
        settle: after this many steps; it belongs into the warm-up.
        threads: of torch, in each.
    """

    settings: Settings
    folder: Path
    device: str
    workers: int
    interval: float = 1.0
    order: Path | None = None
    quiet_malloc: bool = True
    settle: int = 20
    threads: int = field(default_factory=torch.get_num_threads)


class Side:
    """One arm's process, waiting for its turn.

    Attributes:
        steps: done so far.
        seconds: spent in them.
        tokens: in their batches.
        loss: of the last.
        result: what the process said last of all; empty before.
    """

    def __init__(self, arm: Arm, plan: Plan, label: str = "") -> None:
        self.arm = arm
        self.steps = self.tokens = 0
        self.seconds = 0.0
        self.loss = float("nan")
        self.result: dict[str, Any] = {}
        name = label or arm.name
        self.telemetry = plan.folder / f"telemetry-{name}.csv"
        self.receipt = plan.folder / f"receipt-{name}.json"
        self._log = plan.folder / f"side-{name}.log"
        self._config = plan.folder / f".side-{name}.json"
        self._config.write_text(json.dumps(_config(arm, plan, self.telemetry, self.receipt)))
        # Threads of OpenMP that spin while they wait would take the processor from the side whose turn it is.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **(QUIET_MALLOC if plan.quiet_malloc else {}), **os.environ}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aegis.evidence.side", str(self._config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which ends its sides in order
                bufsize=0,
            )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, stop: Callable[[], bool]) -> None:
        self._answer(stop)

    def run(self, steps: int, stop: Callable[[], bool]) -> None:
        """Trains that many steps, fewer when ``stop()`` says so.

        Raises:
            ChildProcessError: the process failed; with the last line that it wrote.
        """
        self._send({"run": steps})
        answer = self._answer(stop)
        if "step" in answer:
            self.steps = answer["step"]
            self.seconds += answer["seconds"]
            self.tokens += answer["tokens"]
            self.loss = answer["loss"]
        else:  # it was told to end by somebody else
            self.result = answer

    def finish(self, *, status: str, validate: bool = False) -> None:
        """Has the process close its files and end; ``status`` is for its receipt."""
        self._send({"finish": status, "validate": validate})
        while "finished" not in self.result:
            self.result = self._answer(lambda: False)
        self._end()

    def kill(self) -> None:
        """Ends the process at once, where it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._config.unlink(missing_ok=True)
        if self._log.exists() and self._log.stat().st_size == 0:
            self._log.unlink()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _answer() says what became of the process
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def _answer(self, stop: Callable[[], bool]) -> dict[str, Any]:
        assert self._process.stdout is not None
        told = False
        while b"\n" not in self._buffer:
            if stop() and not told:
                told = True
                self._send({"finish": "interrupted"})
            if select.select([self._process.stdout], [], [], 0.2)[0]:
                data = os.read(self._process.stdout.fileno(), 65536)
                self._buffer += data
                if data:
                    continue
                self._process.wait()
            if self._process.poll() is not None:
                status = self._process.returncode
                raise ChildProcessError(f"{self.arm.name}: the process ended with {status}: {self._said()}")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


def _config(arm: Arm, plan: Plan, telemetry: Path, receipt: Path) -> dict[str, Any]:
    return {
        "arm": asdict(arm),
        "settings": asdict(plan.settings),
        "device": plan.device,
        "workers": plan.workers,
        "threads": plan.threads,
        "interval": plan.interval,
        "settle": plan.settle if plan.quiet_malloc else None,
        "order": str(plan.order) if plan.order else None,
        "telemetry": str(telemetry),
        "receipt": str(receipt),
    }


def take_turns(
    sides: Sequence[Side],
    turn: int,
    *,
    done: Callable[[], bool],
    stop: Callable[[], bool],
    on_turn: Callable[[Side], None] = lambda side: None,
    steps: int | None = None,
    validate: bool = False,
) -> None:
    """Has each side train ``turn`` steps, with another one first in every round, until ``done()`` or ``stop()``.

    Of three and more, none has two turns on end. Were the order reversed instead, all but those in the middle would,
    and find their memory still in the caches.

    ``done`` is asked between rounds, so that all sides end at the same step; after ``stop`` they may not. However this
    ends, the processes have closed their files and are gone.

    Args:
        steps: at most so many.
        validate: let each take its validation loss at the end.

    Raises:
        ChildProcessError: a process failed.
    """
    order = list(sides)
    try:
        for side in order:
            side.wait_ready(stop)
        while not done() and not stop():
            count = turn if steps is None else min(turn, steps - max(side.steps for side in order))
            if count <= 0:
                break
            for side in order:
                if not stop():
                    side.run(count, stop)
                    on_turn(side)
                    if side.result and not stop():
                        raise ChildProcessError(f"{side.arm.name}: the process was told to end by a signal")
            order.append(order.pop(0))
        for side in sides:
            side.finish(status="interrupted" if stop() else "complete", validate=validate and not stop())
    finally:
        _end_all(sides)


def _end_all(sides: Sequence[Side]) -> None:
    """After an exception some still run: the end of stdin lets them close their files."""
    for side in sides:
        if side._process.poll() is None:
            with contextlib.suppress(OSError):
                side.finish(status="interrupted")
        side.kill()
