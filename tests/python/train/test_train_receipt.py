"""The receipt of ``aegis train``: what it holds, and the run done again from it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aegis.cli import main
from aegis.evidence import read_receipt, verify_receipt
from aegis.evidence.receipt_file import seal
from aegis.runtime import precision
from aegis.train import trainer as trainer_module
from aegis.train.receipt import replay


@pytest.fixture
def command(text: Path, tmp_path: Path) -> Callable[..., int]:
    """Runs ``aegis train`` on the tiny text into ``tmp_path/out``."""
    base = ["train", "--preset", "small", "--device", "cpu", "--text", str(text), "--out", str(tmp_path / "out")]
    return lambda *more: main([*base, *more])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "receipt.json"


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: drawing takes longer than these runs."""

    def draw(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("aegis.train.curve.draw_curve", draw)


def failures(path: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify_receipt(path) if check.passed is False}


def chains(path: Path) -> dict[str, Any]:
    return {name: chain["end"] for name, chain in read_receipt(path)["chains"].items()}


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document)))


pytestmark = pytest.mark.usefixtures("no_picture")


@pytest.mark.parametrize("loader", ["aegis", "torch"])
def test_run_can_be_verified_and_done_again(
    command: Callable[..., int], path: Path, loader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--steps", "12", "--chain", "--loader", loader, "--num-workers", "1") == 0
    found = read_receipt(path)
    assert (found["status"], found["steps"]) == ("complete", {"first": 1, "last": 12, "every": 1})
    assert found["counters"]["end"]["steps"] == 12
    names = {artefact["path"] for artefact in found["artefacts"]}
    assert names == {"train.bin", "val.bin", "loss.csv", "checkpoint.pt"}
    assert [data["name"] for data in found["data"]] == ["train", "validation"]
    capsys.readouterr()
    assert main(["verify", str(path), "--replay", "12"]) == 0
    assert main(["verify", str(path), "--replay", "5", "--feed-only"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("replay of batches: the same values up to step 12") == 1
    assert printed.count("replay of losses: the same values up to step 12") == 1
    assert printed.count("replay of batches: the same values up to step 5") == 1
    assert printed.count("replay of losses") == 1


def test_replay_names_the_step_whose_batch_or_loss_differs(
    command: Callable[..., int], path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--steps", "12", "--chain", "--seed", "3") == 0
    data = np.fromfile(path.parent / "train.bin", np.uint8)
    data[4096:-4096] ^= 1  # where the fingerprint does not look
    data.tofile(path.parent / "train.bin")
    capsys.readouterr()
    assert main(["verify", str(path), "--replay", "6", "--json"]) == 1
    told = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    wrong = {name for name, check in told.items() if check["passed"] is False}
    assert wrong == {"artefact train.bin", "replay of batches", "replay of losses"}
    assert told["replay of batches"]["detail"].startswith("the first difference is at step 1: expected ")

    data[4096:-4096] ^= 1
    data.tofile(path.parent / "train.bin")
    advance = trainer_module.Trainer.advance

    def disturbed(self: trainer_module.Trainer, batches: Any) -> Any:
        if self.step == 4:
            with torch.no_grad():
                next(self.model.parameters()).mul_(1.01)
        return advance(self, batches)

    monkeypatch.setattr(trainer_module.Trainer, "advance", disturbed)
    again = replay(path, 8)
    assert again.difference("batches") is None
    assert str(again.difference("losses")).startswith("the first difference is at step 5: expected ")
    reseal(path, lambda document: document["host"].update(isa="other"))
    main(["verify", str(path), "--replay", "8"])
    assert "(losses depend on the machine: isa other then, " in capsys.readouterr().out


def test_resumed_run_ends_with_the_chains_of_the_unbroken_one(
    command: Callable[..., int],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("--steps", "20", "--chain") == 0
    whole = chains(path)
    advance = trainer_module.Trainer.advance

    def interrupted(self: trainer_module.Trainer, batches: Any) -> Any:
        if self.step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "advance", interrupted)
        assert command("--steps", "20", "--chain") == 130
    found = read_receipt(path)
    assert (found["status"], found["steps"]["last"]) == ("interrupted", 9)
    assert failures(path) == {}
    again = replay(path, 9)
    assert [again.difference(name) for name in again.chains] == [None, None]
    resume = ["train", "--device", "cpu", "--out", str(path.parent), "--resume", str(path.parent / "checkpoint.pt")]
    assert main(resume) == 0
    assert chains(path) == whole
    assert read_receipt(path)["steps"]["first"] == 10
    assert failures(path) == {}
    assert main(["verify", str(path), "--replay", "3"]) == 2
    assert "aegis verify: error: receipt: expected a run from step 1 on, got one that was resumed at step 10" in (
        capsys.readouterr().err
    )
    assert command("--steps", "5") == 0  # without chains
    assert main([*resume, "--steps", "9", "--chain"]) == 2
    assert "--chain: expected with --resume only where the run began with it" in capsys.readouterr().err
    assert main(["verify", str(path), "--replay", "3"]) == 2
    assert "receipt: expected the chains batches, losses, got []" in capsys.readouterr().err


def test_second_ctrl_c_and_an_error_leave_a_receipt_that_says_so(
    command: Callable[..., int], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = trainer_module.Trainer.advance

    def stuck(self: trainer_module.Trainer, batches: Any) -> Any:
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, batches)

    def failing(self: trainer_module.Trainer, batches: Any) -> Any:
        if self.step == 3:
            raise ValueError("of the data")
        return advance(self, batches)

    for broken, status, rc, last in ((stuck, "interrupted", 130, 2), (failing, "failed", 2, 3)):
        monkeypatch.setattr(trainer_module.Trainer, "advance", broken)
        assert command("--steps", "8", "--chain") == rc
        found = read_receipt(path)
        assert (found["status"], found["steps"]["last"]) == (status, last)
        assert failures(path) == {}


def test_disk_that_is_full_at_the_end_is_told_and_keeps_the_other_files(
    command: Callable[..., int], path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aegis.evidence.receipt import Receipt

    write, limits = Receipt.write, resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(self: Receipt, status: str | None = None) -> None:
        if self.status != "running":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            write(self, status)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(Receipt, "write", full)
    assert command("--steps", "4", "--chain") == 2
    assert "aegis train: error: [Errno 27] File too large" in capsys.readouterr().err
    assert {file.name for file in path.parent.iterdir()} >= {"checkpoint.pt", "loss.csv"}
    assert not [file for file in path.parent.iterdir() if file.name.startswith(".")]
    assert read_receipt(path)["status"] == "running"


def test_receipt_that_cannot_be_written_ends_the_run_before_step_0(
    command: Callable[..., int], path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path.mkdir(parents=True)
    monkeypatch.setattr(trainer_module.Trainer, "advance", lambda *_: pytest.fail("a step was made"))
    assert command("--steps", "4") == 2
    assert str(path) in capsys.readouterr().err


def test_tf32_is_set_for_the_run_and_recorded(command: Callable[..., int], path: Path) -> None:
    before = precision()
    for option, wanted in (("--tf32", True), ("--no-tf32", False)):
        assert command("--steps", "2", option) == 0
        found = read_receipt(path)
        assert found["configuration"]["tf32"] is wanted
        assert (found["precision"]["start"]["cuda.matmul"] == "tf32") is wanted
        assert precision() == before


def test_run_may_be_moved_and_its_paths_are_those_of_the_folder(
    command: Callable[..., int], path: Path, tmp_path: Path
) -> None:
    assert command("--steps", "4", "--chain") == 0
    shutil.move(path.parent, tmp_path / "moved")
    moved = tmp_path / "moved" / "receipt.json"
    assert failures(moved) == {}
    assert replay(moved, 4).compared == {"batches": 4, "losses": 4}


def settings_of(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["configuration"]["settings"].update(changes)


EDITS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda d: d["configuration"].update(program="x"), "expected a receipt of aegis train, got one of 'x'"),
    (lambda d: d["configuration"].pop("tf32"), "configuration: expected program, settings, device"),
    (lambda d: d["configuration"].update(num_workers="1"), "expected num_workers to be int, got '1'"),
    (lambda d: d["configuration"].update(num_workers=10**9), "expected 0 to 1024 workers, got 1000000000"),
    (lambda d: d["configuration"].update(device="nowhere"), "expected the device cpu or cuda, got 'nowhere'"),
    (settings_of(steps="x"), "expected steps to be int, got 'x'"),
    (settings_of(more=1), "configuration.settings: expected data"),
    (settings_of(preset="huge"), "expected a preset and a loader"),
    (settings_of(block_size=10**15), "1000000000000000"),
    (settings_of(batch_size=0), "batch_size: expected at least 1, got 0"),
    (settings_of(vocab_size=10**13), "replay: the run cannot be set up again"),
    (settings_of(seed=2**70), "Overflow"),
    (lambda d: d["data"].pop(0), "expected one file of data called 'train' in the receipt, got None"),
]


def test_replay_of_a_receipt_edited_by_hand_or_of_other_steps_is_refused(
    command: Callable[..., int], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--steps", "2", "--chain") == 0
    good = path.read_text()
    for change, message in EDITS:
        reseal(path, change)
        assert main(["verify", str(path), "--replay", "1"]) == 2, message
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("aegis verify: error: "), error
        assert message in error
        path.write_text(good)
    for steps in (0, -1, 3):
        with pytest.raises(ValueError, match=f"replay: expected 1 to 2 steps, got {steps}"):
            replay(path, steps)
    assert main(["verify", str(path), "--feed-only"]) == 2
    assert "--feed-only: expected only together with --replay" in capsys.readouterr().err
