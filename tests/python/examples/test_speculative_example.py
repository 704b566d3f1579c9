"""examples/speculative.py as its reader runs it, on a pair trained for two steps."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "speculative.py"


def test_trains_a_pair_once_and_compares(tmp_path):
    options = ["--steps", "2", "--tokens", "6", "--prompt", "to be"]
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *options]
    for extra in ([], ["--temperature", "0.8"]):
        result = subprocess.run([*command, *extra], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        assert ("the target's loss on unseen text" in result.stdout) == (not extra)
        assert "to be" in result.stdout
        assert "of 4 guesses kept" in result.stdout
    assert (tmp_path / "demo" / "pair" / "checkpoint.pt").exists()
