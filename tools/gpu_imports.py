#!/usr/bin/env python3
"""Check that test files import only what a GPU machine has: the standard library, torch, numpy, pybind11, pytest and
aegis. The conftest.py files above them, and modules of this repository that they import, are looked at too.

    tools/gpu_imports.py tests/python/ops/test_extract_batch_cuda.py ...
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

THERE = {"aegis", "numpy", "pybind11", "pytest", "torch", *sys.stdlib_module_names}


def imports(path: Path) -> Iterator[str]:
    """First names of the modules that a file imports, at its top or inside of functions."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def beside(path: Path, name: str) -> Path | None:
    """The module of that name in the file's folder or one above it, if there is one."""
    candidates = (folder / f"{name}.py" for folder in path.parents)
    return next((candidate for candidate in candidates if candidate.exists()), None)


def main() -> int:
    tests = [Path(argument) for argument in sys.argv[1:]]
    above = {folder / "conftest.py" for test in tests for folder in test.parents}
    waiting = [*tests, *sorted(path for path in above if path.exists())]
    seen: set[Path] = set()
    missing = 0
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path):
            if name in THERE:
                continue
            if module := beside(path, name):
                waiting.append(module)
            else:
                print(f"{path} imports {name}, which a GPU machine may not have")
                missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
