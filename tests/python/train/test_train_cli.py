from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aegis.cli import main
from aegis.evidence import read_receipt
from aegis.train import trainer as trainer_module
from aegis.train.checkpoint import load_checkpoint

SMALL = ["--preset", "small", "--device", "cpu"]


@pytest.fixture
def command(text: Path, tmp_path: Path) -> Callable[..., int]:
    """Runs ``aegis train`` on the tiny text into ``tmp_path/out``."""
    base = ["train", *SMALL, "--text", str(text), "--out", str(tmp_path / "out")]
    return lambda *more: main([*base, *more])


def losses(path: Path) -> list[str]:
    return [line.split(",")[2] for line in path.read_text().splitlines()[1:]]


def test_train_writes_tokens_curve_and_checkpoint_and_ends_with_the_table(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--steps", "12", "--num-workers", "1") == 0
    out = tmp_path / "out"
    written = {"train.bin", "val.bin", "loss.csv", "loss.png", "checkpoint.pt", "receipt.json"}
    assert {path.name for path in out.iterdir()} == written
    assert len(losses(out / "loss.csv")) == 12
    artefacts = {artefact["path"] for artefact in read_receipt(out / "receipt.json")["artefacts"]}
    assert artefacts == written - {"receipt.json"}
    printed = capsys.readouterr()
    assert printed.out.startswith("text: 1 files of --text, every byte a token\n")
    assert printed.out.index("| end to end") < printed.out.index("share of the step spent waiting")
    assert str(out / "loss.png") in printed.out
    assert "12/12" in printed.err
    assert command("--steps", "12", "--num-workers", "1") == 0  # again, harmlessly


def test_compare_finds_every_loss_identical(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--compare", "--steps", "12") == 0
    printed = capsys.readouterr().out
    assert "losses: bit-identical at all 12 steps, validation included" in printed
    assert printed.count(" tokens/s |") == 2
    assert losses(tmp_path / "out" / "loss-aegis.csv") == losses(tmp_path / "out" / "loss-torch.csv")


def test_compare_reports_the_first_difference(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance = trainer_module.Trainer.advance
    made: list[object] = []

    def disturbed(self: trainer_module.Trainer, batches: object) -> object:
        if self not in made:
            made.append(self)
        if self is made[-1] and len(made) == 2 and self.step == 5:
            with torch.no_grad():
                next(self.model.parameters()).mul_(1.01)
        return advance(self, batches)

    monkeypatch.setattr(trainer_module.Trainer, "advance", disturbed)
    assert command("--compare", "--steps", "12") == 1
    assert "losses differ, first at step 6: aegis " in capsys.readouterr().out


def test_ctrl_c_saves_what_there_is_and_resume_goes_on(
    command: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("--steps", "20") == 0
    whole = losses(tmp_path / "out" / "loss.csv")
    advance = trainer_module.Trainer.advance

    def interrupted(self: trainer_module.Trainer, batches: object) -> object:
        if self.step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, batches)

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "advance", interrupted)
        assert command("--steps", "20") == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert "| end to end" in capsys.readouterr().out
    checkpoint = tmp_path / "out" / "checkpoint.pt"
    assert losses(tmp_path / "out" / "loss.csv") == whole[:9]
    resume = ["train", "--device", "cpu", "--resume", str(checkpoint), "--out", str(tmp_path / "out")]
    assert main(resume) == 0
    assert losses(tmp_path / "out" / "loss.csv") == whole
    assert main(resume) == 2
    assert "--steps: expected more than the 20 already done, got 20" in capsys.readouterr().err


def test_second_ctrl_c_ends_at_once(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stuck(self: trainer_module.Trainer, batches: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("unreachable: the second signal raises")

    monkeypatch.setattr(trainer_module.Trainer, "advance", stuck)
    assert command("--steps", "20") == 130
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def test_checkpoints_in_between(command: Callable[..., int], tmp_path: Path) -> None:
    seen = []
    out = tmp_path / "out" / "checkpoint.pt"
    advance = trainer_module.Trainer.advance

    def watched(self: trainer_module.Trainer, batches: object) -> object:
        seen.append(len(load_checkpoint(out)["records"]) if out.exists() else 0)
        return advance(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "advance", watched)
        assert command("--steps", "10", "--checkpoint-every", "4") == 0
    assert seen == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]


def test_a_token_file_of_wider_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.bin"
    (torch.arange(3000) % 700).to(torch.int32).numpy().astype("uint16").tofile(path)
    base = ["train", *SMALL, "--data", str(path), "--dtype", "uint16", "--steps", "3", "--out", str(tmp_path)]
    assert main(base) == 2
    assert "--vocab-size: expected a number for data that is not uint8, got none" in capsys.readouterr().err
    assert main([*base, "--vocab-size", "600"]) == 2
    assert "vocab_size: expected ids below 600, got " in capsys.readouterr().err
    assert main([*base, "--vocab-size", "700", "--val-data", str(path)]) == 0
    assert main([*base, "--vocab-size", "700"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "/no/such/file"], "text: expected a file or a folder, got /no/such/file"),
        (["--data", "/no/such/file", "--dtype", "uint8"], "/no/such/file"),
        (["--num-workers", "-1"], "--num-workers: expected at least 0, got -1"),
        (["--val-data", "x"], "--val-data: expected only together with --data"),
        (["--dtype", "uint16"], "--dtype: expected only together with --data"),
        (["--compare", "--resume", "x"], "--resume: expected no such option with --compare"),
        (["--resume", "/no/such/checkpoint"], "/no/such/checkpoint"),
        (["--checkpoint-every", "0"], "--checkpoint-every: expected at least 1, got 0"),
        (["--chain", "--chain-every", "0"], "--chain-every: expected at least 1, got 0"),
        (["--chain-every", "5"], "--chain-every: expected only together with --chain"),
        (["--compare", "--chain"], "--chain: expected no such option with --compare"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
        (["--steps", "0"], "steps: expected at least 1, got 0"),
        (["--block-size", "10000000"], "10000000"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not {"--text", "--data"} & set(arguments):
        arguments = [*arguments, "--text", str(text)]
    assert main(["train", *SMALL, "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("aegis train: error: ")
    assert message in error
    assert error.count("\n") == 1
