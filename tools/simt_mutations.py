#!/usr/bin/env python3
"""Break the CUDA kernels in known ways and see whether their tests on the SIMT executor notice.

    cmake -S . -B build/cmake -DAEGIS_TESTS=ON && cmake --build build/cmake
    tools/simt_mutations.py [--build build/cmake] [--jobs 2] [--only transpose]

Each fault is one textual change in a copy of a kernel; the kernel's test is compiled against the copy, first
instrumented for races, then, if that passes, with AddressSanitizer. A fault is caught when a test fails; one that
does not compile is a mistake in this file and counts as missed. Succeeds when at least 90 % are caught.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = 0.9
TEST_SECONDS = 300  # a run without an end is caught too


@dataclass(frozen=True)
class Fault:
    file: str
    what: str
    old: str
    new: str
    nth: int = 1  # which occurrence of `old`


EXTRACT, GATHER, SCALED = (
    f"csrc/kernels/cuda/{name}.cuh" for name in ("extract_batch", "gather_records", "gather_records_scaled")
)
TERNARY = "csrc/kernels/cuda/ternary_linear.cuh"
TERNARY_LAUNCH = TERNARY.removesuffix("h")
QUANTIZE8, LINEAR8 = (f"csrc/kernels/cuda/float8_{name}.cuh" for name in ("quantize", "linear"))
QUANTIZE8_LAUNCH = QUANTIZE8.removesuffix("h")
TILES8, TILES8_SM100 = (f"csrc/kernels/cuda/float8_tiles{suffix}.h" for suffix in ("", "_sm100"))
TMA, TERNARY_TILES = "csrc/kernels/cuda/tma.h", "csrc/kernels/cuda/ternary_tiles.cuh"
BFLOAT16 = "csrc/kernels/cuda/to_bfloat16_rne.cuh"
EXTRACT_LAUNCH = EXTRACT.removesuffix("h")
WIDEST_WORD = "csrc/kernels/cuda/widest_word.h"
ARGMAX, COMPACT, GEMV, HISTOGRAM, TRANSPOSE = (
    f"tests/simt/kernels/{name}.cuh" for name in ("argmax", "compact", "gemv", "histogram", "transpose")
)
BARRIER = "__syncthreads();"

FAULTS = [
    Fault(EXTRACT, "<= for <: window past the end", "offset < tokens", "offset <= tokens"),
    Fault(EXTRACT, "< for <=: first window refused", "0 <= offset", "0 < offset"),
    Fault(EXTRACT, "swapped index: row from x", "row = blockIdx.y", "row = blockIdx.x"),
    Fault(EXTRACT, "rows skipped", "row += gridDim.y", "row += gridDim.y + 1"),
    Fault(EXTRACT, "<= for <: a column too many", "i < job.block_size", "i <= job.block_size"),
    Fault(EXTRACT, "targets not shifted", "offset + i + 1]", "offset + i]"),
    Fault(EXTRACT, "swapped index: column-major", "row * job.block_size + i", "row + i * job.batch"),
    Fault(EXTRACT, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(EXTRACT, "wrong fill", "int64_t{-1}", "int64_t{0}"),
    Fault(EXTRACT_LAUNCH, "missing tail", "job.block_size + kExtractThreads - 1", "job.block_size"),
    Fault(EXTRACT_LAUNCH, "grid not limited", "std::min(job.batch, kMaxGridY)", "job.batch"),
    Fault(GATHER, "<= for <: a row too many", "asked < rows", "asked <= rows"),
    Fault(GATHER, "row's bytes for its stride", "index * job.row_stride", "index * job.row_bytes"),
    Fault(GATHER, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(WIDEST_WORD, "alignment check too weak", "all % 16", "all % 8"),
    Fault(SCALED, "wrong channel", "channel * size", "row * size"),
    Fault(SCALED, "channels of one row only", "job.batch * job.channels", "job.batch"),
    Fault(TERNARY, "removed barrier: before the warps' values", BARRIER, ""),
    Fault(TERNARY, "wrong order of activations", "i % 4 * 4 + i % 16 / 4", "i % 16"),
    Fault(TERNARY, "<= for <: past the end of x", "i < job.k && !nothing", "i <= job.k && !nothing"),
    Fault(TERNARY, "padding unwritten", "i < ternary_cuda_padded(job.k)", "i < job.k"),
    Fault(TERNARY, "a warp too few", "warp < kTernaryThreads / 32", "warp < kTernaryThreads / 32 - 1"),
    Fault(TERNARY, "subnormals not enlarged", "0x1p100f", "1.0f"),
    Fault(TERNARY, "digits of another place", "digits >> 4", "digits >> 2"),
    Fault(TERNARY, "codes of 11 pass", "if (!valid)", "if (false)"),
    Fault(TERNARY, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1", 2),
    Fault(TERNARY, "<= for <: a row too many", "lane == 0 && row + r < job.rows", "lane == 0 && row + r <= job.rows"),
    Fault(TERNARY_LAUNCH, "missing tail", "job.n + kWarps - 1", "job.n"),
    Fault(QUANTIZE8, "removed barrier: before the maxima", BARRIER, "", 2),
    Fault(QUANTIZE8, "removed barrier: between turns", BARRIER, ""),
    Fault(QUANTIZE8, "barrier only for some threads", BARRIER, "if (lane < 32) __syncthreads();"),
    Fault(QUANTIZE8, "infinities counted", "if (magnitude <= 0x1.fffffep127f) ", ""),
    Fault(QUANTIZE8, "wrong lane", "mask = 16", "mask = 8"),
    Fault(QUANTIZE8, "rows packed without padding", "row * float8_spread_stride(job.k)", "row * job.k"),
    Fault(QUANTIZE8_LAUNCH, "teams counted as threads", "(all + teams - 1) / teams", "all / teams"),
    Fault(LINEAR8, "alignment check too weak", "% sizeof(Float8Pack) == 0", "% 1 == 0"),
    Fault(LINEAR8, "read past the end", "j < count ? e4m3", "j <= count ? e4m3"),
    Fault(LINEAR8, "group of another block", "at / kFloat8Block : 0", "at / 64 : 0"),
    Fault(LINEAR8, "row's scale for all", "source * job.groups + group", "group"),
    Fault(LINEAR8, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(LINEAR8, "row too many written", "lane == 0 && row < job.rows", "lane == 0"),
    Fault(TERNARY_TILES, "removed barrier: before a piece is read", BARRIER, ""),
    Fault(TERNARY_TILES, "removed barrier: before valid is read", BARRIER, "", 2),
    Fault(TERNARY_TILES, "one piece for both turns", "now ^= 1", "now ^= 0"),
    Fault(TERNARY_TILES, "<= for <: a word too many", "word >= words", "word > words"),
    Fault(TERNARY_TILES, "<= for <: a column too many", "column + at < job.n", "column + at <= job.n"),
    Fault(TERNARY_TILES, "rows of a of another half", "part % 2 * 8", "part / 2 * 8"),
    Fault(TERNARY_TILES, "sums of another lane", "lane % 4 * 2", "lane % 2 * 2"),
    Fault(TERNARY_TILES, "code of 11 of another column", "1u << i", "1u"),
    Fault(TERNARY_TILES, "columns fastest", "tile % down * kTernaryTile", "tile / down * kTernaryTile"),
    Fault(TMA, "swizzle by the wrong rows", "offset >> 7 & 7", "offset >> 8 & 7"),
    Fault(TMA, "unaligned maps", "stride % 16 == 0", "stride % 8 == 0"),
    Fault(TILES8_SM100, "stride of four rows", "1024 >> 4", "512 >> 4"),
    Fault(TILES8_SM100, "WGMMA's swizzle mode", "kSwizzle128 = 2", "kSwizzle128 = 1"),
    Fault(TILES8_SM100, "shape: columns for rows", "kN >> 3", "kN >> 4"),
    Fault(TILES8_SM100, "parity of another turn", "k / slots % 2", "k % 2"),
    Fault(TILES8_SM100, "sums share columns", "slot * kN + column", "slot + column"),
    Fault(TILES8_SM100, "lanes of one warp for all", "static_cast<uint32_t>(warp) * 32 << 16", "0u"),
    Fault(TILES8, "stride of four rows", "1024 >> 4", "512 >> 4"),
    Fault(TILES8, "sums of another thread", "lane % 4 * 2", "lane % 2 * 2"),
    Fault(TILES8, "parity of another turn", "k / kTileStages % 2", "k % 2"),
    Fault(TILES8, "columns fastest", "block % down * tile_rows", "block / down * tile_rows"),
    Fault(BFLOAT16, "<= for <: an element too many", "i < job.count", "i <= job.count"),
    Fault(BFLOAT16, "strides swapped", "at * job.out_strides[d]", "at * job.x_strides[d]"),
    Fault(BFLOAT16, "outermost dimension left out", "from += rest * job.x_strides[0]", "from += rest"),
    Fault(BFLOAT16, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(ARGMAX, "removed barrier: before the totals", BARRIER, ""),
    Fault(ARGMAX, "removed barrier: between rows", BARRIER, "", 2),
    Fault(ARGMAX, "wrong lane", "delta = 16", "delta = 8"),
    Fault(ARGMAX, "ties to the last", "other_index < index", "other_index > index"),
    Fault(ARGMAX, "<= for <: a warp too many", "threadIdx.x < kWarps", "threadIdx.x <= kWarps"),
    Fault(ARGMAX, "wrong shared size", "bests, [kWarps]", "bests, [kWarps - 1]"),
    Fault(COMPACT, "inclusive for exclusive scan", "(1u << lane) - 1", "(2u << lane) - 1"),
    Fault(COMPACT, "removed barrier: between tiles", BARRIER, "", 2),
    Fault(COMPACT, "<= for <: own warp counted", "other < warp", "other <= warp"),
    Fault(COMPACT, "<= for <: read past the end", "at < count", "at <= count"),
    Fault(COMPACT, "barrier only for some threads", BARRIER, "if (value >= 0) __syncthreads();"),
    Fault(TRANSPOSE, "removed barrier", BARRIER, ""),
    Fault(TRANSPOSE, "wrong stride", "tile[x * (kTile + 1) + y]", "tile[x * kTile + y]"),
    Fault(TRANSPOSE, "wrong shared size", "kTile * (kTile + 1) * sizeof", "kTile * kTile * sizeof"),
    Fault(TRANSPOSE, "missing tail check", " && left + x < columns", ""),
    Fault(GEMV, "missing tail", "i = quads * 16 + lane", "i = columns"),
    Fault(GEMV, "swapped operands", "__dp4a(a.z, b.z", "__dp4a(a.z, b.w"),
    Fault(GEMV, "alignment check too weak", "address % 16", "address % 1"),
    Fault(GEMV, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(HISTOGRAM, "atomic replaced by +=", "atomicAdd(&mine[tokens[i]], 1u)", "mine[tokens[i]] += 1u"),
    Fault(HISTOGRAM, "removed barrier: before counting", BARRIER, ""),
    Fault(HISTOGRAM, "removed barrier: after counting", BARRIER, "", 2),
    Fault(HISTOGRAM, "<= for <: a bin too many", "tokens[i] < bin_count", "tokens[i] <= bin_count"),
]


def replace_nth(text: str, old: str, new: str, nth: int) -> str:
    at = -1
    for _ in range(nth):
        at = text.index(old, at + 1)
    return text[:at] + new + text[at + len(old) :]


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


def try_fault(builder: Builder, fault: Fault | None, test: Path) -> tuple[bool, str]:
    """Whether the tests failed, and why. Without a fault, the kernels as they are."""
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder)
        if fault:
            copy = overlay / fault.file
            copy.parent.mkdir(parents=True)
            copy.write_text(replace_nth((ROOT / fault.file).read_text(), fault.old, fault.new, fault.nth))
        for variant in ("races", "sanitized"):
            passes, reason = builder.run(test, overlay, variant)
            if not passes:
                return True, reason
            if reason.startswith("does not compile"):
                return False, reason
        return False, "all tests pass"


def test_of(fault: Fault) -> Path:
    name = Path(fault.file).stem if fault.file.startswith("csrc/") else "example_kernels"
    name = {"tma": "float8_tiles", "ternary_tiles": "ternary_linear", "widest_word": "gather_records"}.get(name, name)
    return ROOT / "tests" / "simt" / f"test_{name}.cpp"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cmake", help="a build with AEGIS_TESTS=ON")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at a time")
    parser.add_argument("--only", default="", help="only faults in files whose name holds this")
    options = parser.parse_args()
    builder = Builder.read(options.build)
    faults = [fault for fault in FAULTS if options.only in Path(fault.file).name]

    for test in sorted({test_of(fault) for fault in faults}):
        failed, reason = try_fault(builder, None, test)
        if failed or reason != "all tests pass":
            sys.exit(f"{test.name} does not pass without a fault: {reason}")

    print(f"{'kernel':<26} {'fault':<36} {'':<6} found by")
    caught = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, (found, reason) in zip(
            faults, pool.map(lambda fault: try_fault(builder, fault, test_of(fault)), faults), strict=True
        ):
            caught += found
            kernel = Path(fault.file).name
            print(f"{kernel:<26} {fault.what:<36} {'caught' if found else 'MISSED'} {reason[:110]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught >= NEEDED * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
