"""The GPU script's plan, and its benchmarks' code on the CPU: what can be tried without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
GPU_BENCHES = ROOT / "benchmarks" / "python" / "gpu"


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, **options)


def test_dry_run_names_only_files_that_exist():
    done = run("tools/gpu_check.sh", "--dry-run")
    assert done.returncode == 0, done.stdout
    assert "benchmarks/python/gpu/run.py" in done.stdout
    assert "tests/python/ops/test_extract_batch_cuda.py" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed")


@pytest.mark.parametrize("part", ["build", "test", "bench"])
def test_parts_are_planned_alone(part):
    done = run("tools/gpu_check.sh", part, "--dry-run")
    assert done.returncode == 0, done.stdout
    assert ("cmake --build" in done.stdout) == (part == "build")
    assert ("pytest" in done.stdout) == (part == "test")
    assert ("benchmarks/python" in done.stdout) == (part == "bench")


def test_unknown_part_is_refused():
    done = run("tools/gpu_check.sh", "everything")
    assert done.returncode == 2
    assert done.stderr == "gpu_check: expected build, test, bench or --dry-run, got everything\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    done = run("tools/gpu_check.sh")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr == "gpu_check: expected a GPU, found none (nvidia-smi lists no device)\n"
    bench = run(sys.executable, GPU_BENCHES / "run.py")
    assert bench.returncode == 3
    assert bench.stdout.count("\n") == 1


def test_benchmarks_run_on_the_cpu(tmp_path):
    done = run(sys.executable, GPU_BENCHES / "run.py", "--device", "cpu", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {row["status"] for row in rows} <= {"passed", "not built yet"}
    training = [row for row in rows if row["bench"].startswith("training")]
    ours = ["aegis", "aegis, device", "aegis, narrow", "aegis, resident", "resident synthetic"]
    assert [row["name"] for row in training] == ["torch DataLoader", *ours, *(f"graph: {name}" for name in ours)]
    assert all(row["values"]["tokens_per_s"] > 0 for row in training)
    passed = sum(row["status"] == "passed" for row in rows)
    assert done.stdout.splitlines()[-1] == f"{passed} passed, 0 failed"
    assert "| torch DataLoader |" in (tmp_path / "gpu.md").read_text()


def test_imports_that_a_gpu_machine_lacks_are_named(tmp_path):
    bad = tmp_path / "test_x_cuda.py"
    bad.write_text("import torch\nfrom hypothesis import given\n")
    done = run(sys.executable, "tools/gpu_imports.py", bad)
    assert done.returncode == 1
    assert "imports hypothesis" in done.stdout
