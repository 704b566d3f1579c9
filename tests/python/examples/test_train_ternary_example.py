"""examples/train_ternary.py as its reader runs it, for a few steps."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_ternary.py"


def test_trains_both_ways_and_packs(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "text.txt", "--steps", "30"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    dense, ternary, packed = map(float, re.search(r"float (\S+), ternary (\S+), packed (\S+)", result.stdout).groups())
    assert dense < 3.5  # 5.5 at the start
    assert ternary < dense + 0.5
    assert abs(packed - ternary) < 0.05
    before, after = re.search(r"layers: (\S+) bytes, then (\S+)", result.stdout).groups()
    assert int(after.replace(",", "")) * 16 == int(before.replace(",", ""))
