"""Runs every benchmark and writes benchmarks/README.md: the tables, in the order of what users notice.

    python benchmarks/python/run.py [--quick] [--only bench_feed ...] [--cpp BUILD_FOLDER]

Each benchmark is a process of its own. With --quick nothing is written but to the terminal; with --only the tables of
the others stay as they are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent / "README.md"
PICTURES = {"bench_feed": HERE.parent / "feed.png", "bench_any_dataset": HERE.parent / "any_dataset.png"}
# End to end first; then what a loop feels; then isolated pieces.
ORDER = [
    "bench_train",
    "bench_audit",
    "bench_any_dataset",
    "bench_decode",
    "bench_speculative",
    "bench_feed",
    "bench_documents",
    "bench_scale",
    "bench_records",
    "bench_pack",
    "bench_extract_batch",
    "bench_gather_records",
    "bench_gather_records_scaled",
    "bench_sample",
    "bench_token_probabilities",
    "bench_decode_attention",
    "bench_paged_cache",
    "bench_skinny_linear",
    "bench_ternary_linear",
    "bench_float8_linear",
    "bench_float8_quantize",
    "bench_kv_append_",
    "bench_kv_move_",
    "bench_to_bfloat16_rne",
    "bench_integrity_chain",
    "bench_telemetry",
    "bench_gc",
]
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"


def run(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    out = folder / f"{name}.json"
    command = [sys.executable, "-W", "ignore", str(HERE / f"{name}.py"), "--json", str(out)]
    if picture := PICTURES.get(name):
        command += ["--png", str(folder / picture.name if quick else picture)]
    print(f"== {name}", flush=True)
    subprocess.run(command + ["--quick"] * quick, cwd=HERE, check=True)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def memory_section(quick: bool) -> str:
    """Peak memory of a whole training process, by what feeds it."""
    command = [sys.executable, "-W", "ignore", str(HERE / "bench_train_memory.py")]
    command += ["--gib", "0.1", "--steps", "5"] if quick else []
    print("== bench_train_memory", flush=True)
    table = subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True).stdout
    return f"### Memory of a whole training process\n\n{table}"


def cpp_section(build: Path) -> str:
    """The kernels alone, and the loop behind "0.2 ns an operation"."""
    kernels = json.loads(
        subprocess.run(
            [build / "bench_extract_batch", "--benchmark_format=json"], capture_output=True, text=True, check=True
        ).stdout
    )["benchmarks"]
    copy = next(b["cpu_time"] for b in kernels if b["name"].startswith("memcpy"))
    lines = [
        "### Kernels alone, from C++ (isolated)",
        "",
        "| extract_batch, 64 × 256 uint16 | µs | × memcpy of the result |",
        "| --- | ---: | ---: |",
        *(f"| {b['name']} | {b['cpu_time'] / 1e3:.2f} | {b['cpu_time'] / copy:.2f} |" for b in kernels),
        "",
        "Target: the best warm version at most 2 × memcpy.",
        "",
    ]
    record = json.loads(
        subprocess.run([build / "bench_aligned_record"], capture_output=True, text=True, check=True).stdout
    )
    lines += [
        "### 10⁹ updates of a 64-byte aligned record",
        "",
        f"{record['ns']:.2f} ns and {record['tsc_cycles']:.2f} time-stamp cycles each, heap delta "
        f"{record['heap_delta']} bytes. "
        "A compiler barrier stands in every iteration; figures of 0.2–0.28 ns were published for a loop without one.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=ORDER, default=ORDER)
    parser.add_argument("--cpp", type=Path, help="the build folder with the C++ benchmarks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {name: run(name, Path(folder), arguments.quick) for name in arguments.only}
    parts = [markdown(result) for result in results.values()]
    if arguments.only == ORDER:
        parts.insert(1, memory_section(arguments.quick))
        print(parts[1])
    if arguments.cpp:
        parts.append(cpp_section(arguments.cpp))
        print(parts[-1])
    before, _, rest = REPORT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    if arguments.only != ORDER:
        parts = replaced(old, parts)
    body = "\n\n".join(part.strip() + "\n" for part in parts)
    met, missed = body.count("| yes |"), body.count("| **no** |")
    print(f"targets met: {met} of {met + missed}")
    if arguments.quick:
        return
    machine = next(iter(results.values()))["machine"]
    head = f"Measured {time.strftime('%Y-%m-%d')} on {machine}. Targets met: {met} of {met + missed}."
    REPORT.write_text(f"{before}{BEGIN}\n\n{head}\n\n{body}\n{END}{after}")
    print(f"written: {REPORT}")


def replaced(old: str, parts: list[str]) -> list[str]:
    """The sections of the report as it stands, with those of ``parts`` in the place of what has their title."""
    fresh = {part.lstrip().partition("\n")[0]: part for part in parts}
    sections = [f"### {section}" for section in old.split("\n### ")[1:]]
    titles = [section.partition("\n")[0] for section in sections]
    kept = [fresh.pop(title, section) for title, section in zip(titles, sections, strict=True)]
    return kept + list(fresh.values())


def markdown(result: dict[str, Any]) -> str:
    from harness import Row, Table

    return Table(result["title"], [Row(**row) for row in result["rows"]], result["notes"]).markdown()


if __name__ == "__main__":
    main()
