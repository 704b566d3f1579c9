"""The process of one arm: trains when told, writes its telemetry, and ends in order whatever happens to its parent.

Started by :mod:`aegis.evidence.turns` with a JSON file of its settings. Lines come in on stdin and go out on stdout:
``{"run": n}`` trains n steps and is answered with where it stands; ``{"finish": status, "validate": …}`` or the end of
stdin closes everything.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from aegis.evidence import process
from aegis.evidence.arm import Arm
from aegis.evidence.heap import touch_reserve
from aegis.evidence.receipt import Receipt
from aegis.evidence.telemetry import Telemetry
from aegis.evidence.training import ArmTraining, arm_loader
from aegis.train.settings import Settings

__all__ = ["main"]

_ONE_FILE = 1 << 40  # telemetry is an artefact of the receipt, and is not to be cut in parts


def main(config_path: str) -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes where errors go
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    terminated: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: terminated.append(number))

    config = json.loads(Path(config_path).read_text())
    torch.set_num_threads(config["threads"])
    settings = Settings(**config["settings"])
    device = torch.device(config["device"])
    arm = Arm(**config["arm"])
    training = ArmTraining(arm, settings, device=device)
    order = Path(config["order"]) if config["order"] else None
    loader = arm_loader(arm, settings, workers=config["workers"], device=device, order=order)
    receipt = Receipt(
        config["receipt"],
        configuration={name: config[name] for name in ("arm", "settings", "device", "workers", "threads")},
        seeds={"torch": settings.seed},
        datasets={"train": loader.dataset},
        chains={"run": training.chain} if arm.audit == "on" else {},
    )
    telemetry = Telemetry(
        config["telemetry"], loader=loader, interval=config["interval"], max_bytes=_ONE_FILE, replace=True
    )
    with receipt, telemetry:
        # After the model's weights are drawn, so that all arms draw their order from the same state.
        batches = telemetry.watch(training.batches(loader, recorded=order is not None))
        _tell(answers, {"ready": True})
        last = _serve(training, batches, telemetry, receipt, answers, terminated, config["settle"])
        telemetry.close()
        missing = telemetry.stats()["dropped_rows"] + telemetry.stats()["lost_rows"]
        receipt.add_artefact(config["telemetry"], losses=not missing)
        receipt.status = last["finish"]
    result = _result(training, telemetry, validate=bool(last.get("validate")))
    if hasattr(loader, "close"):
        loader.close()
    _tell(answers, result)
    return 0


def _serve(
    training: ArmTraining,
    batches: Iterator[Any],
    telemetry: Telemetry,
    receipt: Receipt,
    answers: Any,
    terminated: list[int],
    settle: int | None,
) -> dict[str, Any]:
    """Trains as told, and returns how to finish."""
    lines = _Lines()
    while True:
        command = lines.next(terminated)
        if "finish" in command:
            return command
        seconds, loss, tokens = 0.0, float("nan"), 0
        for _ in range(command["run"]):
            count, loss = training.step(batches)
            seconds += telemetry.step(tokens=count, loss=loss)
            training.note_batch()
            receipt.step(training.steps, loss)
            if training.steps == settle:
                touch_reserve()
            tokens += count
            if terminated or lines.waiting():  # nothing comes within a turn but the wish to end
                break
        _tell(answers, {"step": training.steps, "seconds": seconds, "tokens": tokens, "loss": loss})


def _result(training: ArmTraining, telemetry: Telemetry, *, validate: bool) -> dict[str, Any]:
    """What only this process knows."""
    return {
        "finished": training.steps,
        "peak_rss_bytes": process.peak_rss(),
        "validation_loss": training.validation_loss() if validate else None,
        "chain": str(training.chain) if training.arm.audit == "on" else None,
        "batches": training.batch_checksum,
        "telemetry": telemetry.stats(),
    }


def _tell(answers: Any, message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except BrokenPipeError:  # the parent is gone, and so is stdin: the next read ends this
        pass


class _Lines:
    """Commands from stdin, unbuffered, so that poll() knows whether more are waiting."""

    def __init__(self) -> None:
        self._buffer = b""
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN | select.POLLHUP)

    def waiting(self) -> bool:
        return bool(self._buffer) or bool(self._poll.poll(0))

    def next(self, terminated: list[int]) -> dict[str, Any]:
        """The next command; to finish at the end of stdin or after a signal."""
        while b"\n" not in self._buffer:
            data = os.read(0, 4096) if not terminated and self._poll.poll(500) else None
            if terminated or data == b"":
                return {"finish": "interrupted"}
            self._buffer += data or b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
