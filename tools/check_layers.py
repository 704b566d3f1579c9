"""Check the rules of the source tree that no compiler checks; prints each breach, exit status 1 if any.

Only csrc/ops includes torch. Nothing includes the Python module's headers, and only the operators their own. Every
source is listed in CMake, and nothing is globbed. Every CUDA kernel has a test on the SIMT executor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
SOURCES = {".cpp", ".cu", ".cc"}
# Core and kernels are one library and know each other; the operators and the Python module stand above it, apart.
PRIVATE = {"ops": "ops/", "python": "python/"}


def include_breaches() -> Iterator[str]:
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        layer = path.relative_to(ROOT / "csrc").parts[0]
        for header in INCLUDE.findall(path.read_text()):
            if layer != "ops" and TORCH.match(header):
                yield f"{path.relative_to(ROOT)}: includes {header}; only csrc/ops may include torch"
            for owner, prefix in PRIVATE.items():
                if layer != owner and header.startswith(prefix):
                    yield f"{path.relative_to(ROOT)}: includes {header}; only csrc/{owner} may"


def cmake_text() -> str:
    """All of the project's CMake code, comments removed."""
    files = [ROOT / "CMakeLists.txt", *sorted((ROOT / "cmake").glob("*.cmake"))]
    return "\n".join(re.sub(r"#.*", "", path.read_text()) for path in files)


def list_breaches() -> Iterator[str]:
    text = cmake_text()
    if re.search(r"\bfile\s*\(\s*GLOB", text, re.IGNORECASE):
        yield "CMake: sources are globbed; list them"
    words = set(re.split(r"[\s()\";]+", text))
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in SOURCES and not listed(path.relative_to(ROOT), words):
            yield f"{path.relative_to(ROOT)}: not listed in CMake"
    for folder in ("tests", "benchmarks"):
        for path in sorted((ROOT / folder / "cpp").rglob("*.cpp")):
            if not listed(path.relative_to(ROOT), words):
                yield f"{path.relative_to(ROOT)}: not listed in CMake"


def untested_kernels() -> Iterator[str]:
    tested = set(re.findall(r"aegis_simt_test\((\w+)", cmake_text()))
    for path in sorted((ROOT / "csrc" / "kernels" / "cuda").glob("*.cu")):
        if path.stem not in tested:
            yield f"{path.relative_to(ROOT)}: no aegis_simt_test({path.stem}) in cmake/simt.cmake"


def listed(path: Path, words: set[str]) -> bool:
    """By its path; a kernel by its name (AEGIS_KERNELS); a test by its folder and name (aegis_test)."""
    if path.as_posix() in words:
        return True
    parts = path.parts
    if parts[:2] == ("csrc", "kernels") and parts[2] in ("scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16"):
        return path.stem in words
    if parts[1] == "cpp":
        name = re.sub(r"^(test|bench)_", "", path.stem)
        return "/".join((*parts[2:-1], name)) in words
    return False


def main() -> int:
    breaches = [*include_breaches(), *list_breaches(), *untested_kernels()]
    print("\n".join(breaches) or "layers: all includes and source lists are as they should be")
    return 1 if breaches else 0


sys.exit(main())
