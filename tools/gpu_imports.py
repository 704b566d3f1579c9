#!/usr/bin/env python3
"""Check that test files, and the conftest.py files above them, import only what a GPU machine has: the standard
library, torch, numpy, pybind11, pytest and aegis.

tools/gpu_imports.py tests/python/ops/test_extract_batch_cuda.py ...
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

THERE = {"aegis", "numpy", "pybind11", "pytest", "torch", *sys.stdlib_module_names}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def main() -> int:
    tests = [Path(argument) for argument in sys.argv[1:]]
    shared = {folder / "conftest.py" for test in tests for folder in test.parents}
    files = [*tests, *sorted(path for path in shared if path.exists())]
    missing = [(path, name) for path in files for name in imports(path) if name.split(".")[0] not in THERE]
    for path, name in missing:
        print(f"{path} imports {name}, which a GPU machine may not have")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
