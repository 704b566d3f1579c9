"""examples/documents.py as its reader runs it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "documents.py"


def test_learns_and_keeps_documents_apart_case63():
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--steps", "20"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    first, *_, last = (float(loss) for loss in re.findall(r"loss ([0-9.]+)\n", result.stdout))
    assert last < 0.8 * first
    moved, kept = re.findall(r"by ([0-9.e-]+)", result.stdout)
    assert float(moved) > 0.1
    assert float(kept) < 1e-5
