#!/usr/bin/env python3
"""Break the CUDA kernels in known ways and see whether their tests on the SIMT executor notice.

    cmake -S . -B build/cmake -DAEGIS_TESTS=ON && cmake --build build/cmake --target all aegis_simt_sanitized
    tools/simt_mutations.py [--build build/cmake] [--jobs 2] [--only transpose]

Each fault is one textual change in a copy of a kernel; the kernel's test is compiled against the copy, first
instrumented for races, then, if that passes, with AddressSanitizer. A fault is caught when a test fails; one that
does not compile, or whose text is not in the kernel any more, is a mistake in simt_faults.py and counts as missed.
Succeeds when all are caught.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from simt_faults import FAULTS, Fault, test_of, with_fault

ROOT = Path(__file__).resolve().parent.parent
TEST_SECONDS = 300  # a run without an end is caught too


@dataclass(frozen=True)
class Builder:
    """Compiles and runs a kernel's test; what it needs was written by cmake/simt.cmake."""

    compiler: str
    races: str
    executor: str
    sanitized: str
    objects: list[str]
    libraries: list[str]
    includes: list[str]

    @classmethod
    def read(cls, build: Path) -> Builder:
        path = build / "simt_mutations.txt"
        if not path.exists():
            sys.exit(f"{path}: not found; configure with -DAEGIS_TESTS=ON and build first")
        compiler, executors, objects, libraries, includes = path.read_text().splitlines()[:5]
        return cls(
            compiler,
            *executors.split(";"),
            objects.split(";"),
            libraries.split(";"),
            [i for i in includes.split(";") if i],
        )

    def run(self, test: Path, overlay: Path, variant: str) -> tuple[bool, str]:
        """Whether the test passes, and the first line that says why not."""
        program = overlay / f"test_{variant}"
        sanitize = "-fsanitize=address,undefined"
        flags = {"races": ["-fsanitize=thread"], "sanitized": [sanitize, "-fno-sanitize-recover=all"]}[variant]
        folders = [overlay / "csrc", overlay / "tests", ROOT / "csrc", ROOT / "tests", *self.includes]
        includes = [f"-I{folder}" for folder in folders]
        source = [self.compiler, "-std=c++20", "-O1", "-w", *flags, *includes, "-c", str(test)]
        executor = {"races": [self.races, self.executor], "sanitized": [self.sanitized, sanitize]}[variant]
        link = [self.compiler, f"{program}.o", *self.objects, *executor, *self.libraries]
        for command in ([*source, "-o", f"{program}.o"], [*link, "-o", str(program)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                return True, f"does not compile: {(errors or [done.stderr])[0]}"
        try:
            command = [str(program), "--gtest_fail_fast"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return False, f"no end in {TEST_SECONDS} s"
        return done.returncode == 0, reason_in(done.stdout + done.stderr)


def reason_in(output: str) -> str:
    """The executor's words where there are some, else what failed."""
    marks = ("race: ", "unwritten: ", "outside: ", "misaligned: ", "barrier: ", "grid: ", "ERROR: ", "runtime error: ")
    lines = output.splitlines()
    for line in lines:
        for mark in marks:
            if mark in line:
                return line[line.index(mark) :]
    return "wrong result" if any("FAILED" in line for line in lines) else "stopped"


def try_fault(builder: Builder, fault: Fault | None, test: str) -> tuple[bool, str]:
    """Whether the tests failed, and why. Without a fault, the kernels as they are."""
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder)
        if fault:
            broken = with_fault((ROOT / fault.file).read_text(), fault)
            if broken is None:
                return False, f"not in {Path(fault.file).name} any more: {fault.old}"
            copy = overlay / fault.file
            copy.parent.mkdir(parents=True)
            copy.write_text(broken)
        for variant in ("races", "sanitized"):
            passes, reason = builder.run(ROOT / test, overlay, variant)
            if not passes:
                return True, reason
            if reason.startswith("does not compile"):
                return False, reason
        return False, "all tests pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cmake", help="a build with AEGIS_TESTS=ON")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at a time")
    parser.add_argument("--only", default="", help="only faults in files whose name holds this")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in Path(fault.file).name]
    if not faults:
        sys.exit(f"--only: expected part of a file's name that has faults, got {options.only}")
    builder = Builder.read(options.build)

    tests = sorted({test_of(fault) for fault in faults})
    with ThreadPoolExecutor(options.jobs) as pool:
        for test, (failed, reason) in zip(
            tests, pool.map(lambda test: try_fault(builder, None, test), tests), strict=True
        ):
            if failed or reason != "all tests pass":
                sys.exit(f"{test} does not pass without a fault: {reason}")

    print(f"{'kernel':<26} {'fault':<44} {'':<6} found by")
    caught = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, (found, reason) in zip(
            faults, pool.map(lambda fault: try_fault(builder, fault, test_of(fault)), faults), strict=True
        ):
            caught += found
            kernel = Path(fault.file).name
            print(f"{kernel:<26} {fault.what:<44} {'caught' if found else 'MISSED'} {reason[:110]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
