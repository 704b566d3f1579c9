"""examples/speculative.py as its reader runs it, on a pair trained for two steps."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "speculative.py"
OPTIONS = ["--mode", "eager", "--prompt", "to be"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a first run, and what it printed."""
    folder = tmp_path_factory.mktemp("example")
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *OPTIONS, "--steps", "2", "--tokens", "6"]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def main(trained, monkeypatch):
    """A later run in that folder."""
    spec = importlib.util.spec_from_file_location("speculative_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.chdir(trained[0])

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *OPTIONS, *options])
        example.main()

    return run


def test_trains_a_pair_and_compares(trained):
    folder, result = trained
    assert result.returncode == 0, result.stderr
    assert "training a target and its draft" in result.stderr
    assert "million parameters and a draft of" in result.stdout
    assert "after 2 steps" in result.stdout
    assert "nats a byte" in result.stdout
    assert "to be" in result.stdout
    assert "of 4 guesses kept" in result.stdout
    assert (folder / "demo" / "pair" / "checkpoint.pt").exists()


def test_takes_what_was_trained(main, capsys):
    main("--tokens", "6", "--temperature", "0", "--guesses", "3")
    shown = capsys.readouterr()
    assert "training" not in shown.err
    assert "after 2 steps" in shown.out
    assert "of 3 guesses kept" in shown.out


def test_what_does_not_fit_is_an_error_that_says_so(main, capsys, tmp_path):
    (tmp_path / "pair.pt").write_bytes(b"nothing")
    for options, message in (
        (["--tokens", "252"], "at most the 256 bytes that the model has positions for, got 5 and 252"),
        (["--prompt", ""], "expected a prompt and tokens"),
        (["--tokens", "0"], "expected a prompt and tokens"),
        (["--temperature", "-1"], "--temperature: expected 0 or more, got -1.0"),
        (["--guesses", "0"], "--guesses: expected at least 1, got 0"),
        (["--checkpoint", str(tmp_path / "pair.pt")], "pair.pt: expected a checkpoint"),
    ):
        with pytest.raises(SystemExit) as raised:
            main(*options)
        assert raised.value.code == 2
        assert message in capsys.readouterr().err
