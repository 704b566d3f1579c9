#!/usr/bin/env python3
"""Check that test files import only what a GPU machine has: the standard library, torch, numpy, pytest and aegis; and
files beside them, for which the same holds. What is asked for by pytest.importorskip may be missing.

tools/gpu_imports.py tests/python/ops/test_extract_batch_cuda.py ...
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

THERE = {"aegis", "numpy", "pytest", "torch", *sys.stdlib_module_names}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            beside = path.with_name(f"{name}.py")
            yield from imports(beside) if beside.exists() else [name]


def main() -> int:
    missing = [(path, name) for path in sys.argv[1:] for name in imports(Path(path)) if name.split(".")[0] not in THERE]
    for path, name in missing:
        print(f"{path} imports {name}, which a GPU machine may not have")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
