"""examples/generate.py as its reader runs it, on a model trained for two steps."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "generate.py"


def run(*arguments, cwd):
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_trains_generates_and_compares(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    options = ["--text", "text.txt", "--steps", "2", "--batch-size", "4", "--out", "out"]
    trained = run("-m", "aegis", "train", *options, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = run(EXAMPLE, "--checkpoint", "out/checkpoint.pt", "--prompt", "to be", "--tokens", 12, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("to be")
    assert "same tokens, 1 x 12 tokens" in result.stdout
