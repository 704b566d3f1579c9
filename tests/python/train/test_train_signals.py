"""``aegis train`` told to end: by a service manager, and by a terminal that is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aegis.cli import main
from aegis.evidence import read_receipt, verify_receipt
from aegis.train import trainer as trainer_module
from aegis.train.checkpoint import load_checkpoint
from aegis.train.interruption import interruption

WAIT = 120.0
# A terminal that is the first of its session becomes the one that it hears of. Signals are not ignored, as they are in
# whatever nohup started.
MAIN = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from aegis.cli import main
sys.exit(main(sys.argv[1:]))
"""


def wait_for_steps(process: subprocess.Popen[Any], checkpoint: Path) -> None:
    deadline = time.monotonic() + WAIT
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def started(text: Path, out: Path, **streams: Any) -> Iterator[subprocess.Popen[Any]]:
    """A run that would go on for hours, and has a checkpoint soon."""
    command = [sys.executable, "-c", MAIN, "train", "--preset", "small", "--device", "cpu", "--steps", "1000000"]
    command += ["--block-size", "16", "--batch-size", "2", "--eval-every", "1000000", "--checkpoint-every", "2"]
    command += ["--chain", "--text", str(text), "--out", str(out)]
    with subprocess.Popen(command, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def check_files(out: Path) -> None:
    found = read_receipt(out / "receipt.json")
    assert found["status"] == "interrupted"
    checks = verify_receipt(out / "receipt.json")
    assert [check for check in checks if check.passed is False] == []
    assert {artefact["path"] for artefact in found["artefacts"]} >= {"checkpoint.pt", "loss.csv"}
    steps = len(load_checkpoint(out / "checkpoint.pt")["records"])
    assert found["steps"]["last"] == steps >= 2
    assert (out / "loss.csv").read_text().count("\n") == steps + 1


def test_sigterm_leaves_valid_files_and_says_so(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with started(text, out, **streams) as process:
        wait_for_steps(process, out / "checkpoint.pt")
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 143, errors
    assert "| end to end" in printed
    check_files(out)


def test_a_terminal_that_goes_away_leaves_valid_files(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ours, theirs = os.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with started(text, out, start_new_session=True, **streams) as process:
        os.close(theirs)
        wait_for_steps(process, out / "checkpoint.pt")
        os.close(ours)
        assert process.wait(WAIT) == 128 + signal.SIGHUP
    check_files(out)


def test_compare_ends_on_sigterm_too(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, sent = trainer_module.Trainer.advance, []

    def terminated(self: trainer_module.Trainer, batches: Any) -> Any:
        if self.step == 3 and not sent:
            sent.append(self)
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self, batches)

    monkeypatch.setattr(trainer_module.Trainer, "advance", terminated)
    base = ["train", "--preset", "small", "--device", "cpu", "--text", str(text), "--out", str(tmp_path / "out")]
    assert main([*base, "--compare", "--steps", "20"]) == 143
    assert (tmp_path / "out" / "loss-torch.csv").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_noted_and_handlers_return(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis.train.interruption._leave_terminal", lambda: None)  # which may be that of pytest -s
    passed: list[int] = []
    before = signal.signal(number, lambda got, frame: passed.append(got))
    try:
        with interruption() as stop:
            assert (stop(), stop.status) == (False, 0)
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(number)
            assert (stop(), stop.status) == (True, 128 + number)
            assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        signal.raise_signal(number)
        assert passed == [number]
    finally:
        signal.signal(number, before)


def test_sighup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)
