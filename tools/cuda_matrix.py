#!/usr/bin/env python3
"""Compile every CUDA kernel for every architecture with all warnings as errors; no GPU is needed.

    tools/cuda_matrix.py [--jobs 2] [--all] [--library build/cmake/libaegis.so]

Prints registers, static shared memory and spills of each kernel (the most over its instantiations, or each with
--all), and looks for the instructions that some kernels are made for: in their PTX, and where nvdisasm is on PATH in
their machine code. With --library, looks into a built library instead: is there machine code for every architecture
and PTX of the newest, which later GPUs need? Ends with 'N passed, N failed'.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ["-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror", "-Xptxas=-v,-Werror"]
OWN_NAMES = {"float8_tiles_sm100.cu": {"100": ("100f", "100a")}}
"""Kernels whose instructions want other names of an architecture."""
INSTRUCTIONS = {
    ("float8_tiles.cu", "90a"): {
        "cp.async.bulk.tensor.2d": "UTMALDG",
        "mbarrier.try_wait": "SYNCS",
        "wgmma.mma_async": "QGMMA.64x64x32",
    },
    ("float8_tiles_sm100.cu", "100"): {
        "cp.async.bulk.tensor.2d": "UTMALDG",
        "mbarrier.try_wait": "SYNCS",
        "tcgen05.alloc": "UTCATOMSWS",
        "tcgen05.mma.cta_group::1.kind::f8f6f4": "UTCQMMA",
        "tcgen05.commit": "UTCBAR",
        "tcgen05.ld": "LDTM.x32",
    },
}
"""What the code of a kernel must have, in PTX and in machine code: without, it would compile to nothing."""
FATBIN_MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2  # kinds of entries in it


@dataclass(frozen=True)
class Usage:
    kernel: str  # with its template arguments
    arch: str  # "90a"
    registers: int
    shared: int  # bytes, without the launch's
    spilled: int  # bytes stored and loaded

    @property
    def name(self) -> str:
        return re.sub(r"<.*", "", self.kernel).split("::")[-1].split("(")[0]


def default_architectures() -> list[str]:
    found = re.search(r'AEGIS_CUDA_ARCHITECTURES "([^"]+)"', (ROOT / "cmake" / "cuda.cmake").read_text())
    assert found, "cmake/cuda.cmake: no list of architectures"
    return found[1].split(";")


def sources() -> list[Path]:
    return [*sorted(ROOT.glob("csrc/kernels/cuda/*.cu")), ROOT / "tests/simt/hardware.cu"]


def compile_one(source: Path, arch: str, name: str) -> tuple[bool, str, list[str]]:
    """Whether nvcc accepts the file for `arch`, called `name`; what it said; and which instructions are missing."""
    nvcc = ["nvcc", "-std=c++20", "-O3", f"-I{ROOT}/csrc", f"-I{ROOT}/tests"]
    nvcc += [f"-gencode=arch=compute_{name},code=sm_{name}", str(source)]
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/out.cubin"
        done = subprocess.run([*nvcc, *WARNINGS, "-cubin", "-o", cubin], capture_output=True, text=True)
        accepted, wanted = done.returncode == 0, INSTRUCTIONS.get((source.name, arch), {})
        missing = []
        if accepted and wanted:
            virtual = ["nvcc", *nvcc[1:-2], f"-arch=compute_{name}", nvcc[-1], "-ptx", "-o", f"{folder}/out.ptx"]
            subprocess.run(virtual, check=True, capture_output=True)
            ptx = Path(folder, "out.ptx").read_text()
            missing = [instruction for instruction in wanted if instruction not in ptx]
            if shutil.which("nvdisasm"):
                code = subprocess.run(["nvdisasm", cubin], capture_output=True, text=True, check=True).stdout
                missing += [instruction for instruction in wanted.values() if instruction not in code]
    return accepted, done.stdout + done.stderr, missing


def usage_in(log: str, arch: str) -> list[Usage]:
    """What ptxas -v reports."""
    text = subprocess.run(["c++filt"], input=log, capture_output=True, text=True, check=True).stdout
    found = []
    for part in re.split(r"ptxas info\s+: Compiling entry function ", text)[1:]:
        kernel = re.sub(r"^void ", "", part[1 : part.index("' for ")])
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        assert registers, f"ptxas said nothing about the registers of {kernel}"
        spilled = int(spills[1]) + int(spills[2]) if spills else 0
        found.append(Usage(kernel, arch, int(registers[1]), int(shared[1]) if shared else 0, spilled))
    return found


def print_table(usages: list[Usage], architectures: list[str], every: bool) -> None:
    rows: dict[str, dict[str, list[Usage]]] = defaultdict(lambda: defaultdict(list))
    for usage in usages:
        rows[usage.kernel if every else usage.name][usage.arch].append(usage)
    print("registers / bytes of static shared memory / bytes spilled, the most over a kernel's instantiations\n")
    print("| kernel | n | " + " | ".join(f"sm_{arch}" for arch in architectures) + " |")
    print("|---|--:|" + "---|" * len(architectures))
    for kernel, by_arch in sorted(rows.items()):
        cells = []
        for arch in architectures:
            most = [max(getattr(u, field) for u in by_arch[arch]) for field in ("registers", "shared", "spilled")]
            cells.append(" / ".join(map(str, most)))
        print(f"| {kernel} | {len(by_arch[architectures[0]])} | " + " | ".join(cells) + " |")


def check_sources(architectures: list[str], jobs: int, every: bool) -> list[tuple[str, bool]]:
    if shutil.which("nvcc") is None:
        sys.exit("nvcc: not found on PATH")
    todo = [
        (source, arch, name)
        for source in sources()
        for arch in architectures
        for name in OWN_NAMES.get(source.name, {}).get(arch, (arch,))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda job: compile_one(*job), todo))
    checks, usages = [], []
    for (source, arch, own), (accepted, log, missing) in zip(todo, results, strict=True):
        name = f"{source.relative_to(ROOT)} for sm_{own}"
        checks.append((name, accepted))
        checks += [(f"{name} has no {instruction}", False) for instruction in missing]
        if not accepted:
            print(f"{name}:\n{log}", file=sys.stderr)
            continue
        found = usage_in(log, arch)
        if source.is_relative_to(ROOT / "csrc"):  # the table is of the library's kernels
            usages += found
        checks += [(f"{u.kernel} for sm_{arch} spills {u.spilled} bytes", False) for u in found if u.spilled]
    if all(accepted for accepted, *_ in results):
        print_table(usages, architectures, every)
    return checks


def embedded(library: Path) -> set[tuple[int, int]]:
    """(kind, architecture number) of every entry of every fat binary in the file."""
    data = library.read_bytes()
    found, at = set(), 0
    magic = struct.pack("<I", FATBIN_MAGIC)
    while (at := data.find(magic, at)) >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
            found.add((kind, struct.unpack_from("<I", data, entry + 28)[0]))
            entry += entry_header + entry_size
        at = end
    return found


def check_library(library: Path, architectures: list[str]) -> list[tuple[str, bool]]:
    entries = embedded(library)
    numbers = [int(re.sub(r"\D", "", arch)) for arch in architectures]
    checks = [(f"machine code for sm_{n}", (CUBIN, n) in entries) for n in numbers]
    checks.append((f"PTX for compute_{numbers[-1]} and newer", (PTX, numbers[-1]) in entries))
    for name, there in checks:
        print(f"{'yes' if there else 'NO':<4} {name}")
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", default=";".join(default_architectures()), help="as for CMake")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="a row for each instantiation")
    parser.add_argument("--library", type=Path, help="look into this library instead of compiling")
    options = parser.parse_args()
    architectures = options.architectures.split(";")
    start = time.monotonic()
    if options.library:
        checks = check_library(options.library, architectures)
    else:
        checks = check_sources(architectures, options.jobs, options.all)
        print(f"\n{time.monotonic() - start:.0f} s")
    failed = [name for name, passed in checks if not passed]
    for name in failed:
        print(f"failed: {name}")
    print(f"{len(checks) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
