"""examples/speculative.py as its reader runs it, on a pair trained for two steps."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "speculative.py"


def run(folder, *options):
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--mode", "eager", "--prompt", "to be", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_trains_a_pair_once_and_compares(tmp_path):
    for options in (["--steps", "2"], ["--temperature", "0", "--guesses", "3"]):
        result = run(tmp_path, "--tokens", "6", *options)
        assert result.returncode == 0, result.stderr
        assert ("training a target and its draft" in result.stderr) == ("--steps" in options)
        assert "million parameters and a draft of" in result.stdout
        assert "after 2 steps" in result.stdout
        assert "nats a byte" in result.stdout
        assert "to be" in result.stdout
        assert f"of {3 if '--guesses' in options else 4} guesses kept" in result.stdout
    result = run(tmp_path, "--tokens", "252")
    assert result.returncode == 2
    assert "at most the 256 bytes that the model has positions for, got 5 and 252" in result.stderr


def test_a_file_that_is_no_pair_is_an_error_that_says_so(tmp_path):
    (tmp_path / "pair.pt").write_bytes(b"nothing")
    result = run(tmp_path, "--checkpoint", "pair.pt")
    assert result.returncode == 2
    assert "pair.pt: expected a checkpoint" in result.stderr
