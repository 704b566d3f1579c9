"""GPU benchmarks: training, copies, dispatch, memory and the fused operators, each beside its baseline.

    python benchmarks/python/gpu/run.py --out build/gpu/results
    python benchmarks/python/gpu/run.py --device cpu --quick        # tries the code without a GPU; no figures

Writes gpu.json and gpu.md with the machine's name and clocks, and ends with 'N passed, N failed'. A row fails when it
does not run or computes something wrong; operators that are not built yet count as neither.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import bench_copies
import bench_dispatch
import bench_memory
import bench_operators
import bench_training
import torch
from report import FAILED, PASSED, Options, Row, machine, write

BENCHES: dict[str, Callable[[Options], Iterable[Row]]] = {
    "training": bench_training.run,
    "copies": bench_copies.run,
    "dispatch": bench_dispatch.run,
    "memory": bench_memory.run,
    "operators": bench_operators.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the code")
    parser.add_argument("--out", type=Path, default=Path("build/gpu/results"))
    parser.add_argument("--only", choices=BENCHES, action="append", help="may be given more than once")
    parser.add_argument("--quick", action="store_true", help="small sizes and short times")
    given = parser.parse_args()
    options = Options(torch.device(given.device), given.out, given.quick)
    if options.cuda and not torch.cuda.is_available():
        print("benchmarks: expected a CUDA device, torch finds none (--device cpu --quick tries the code)")
        return 3
    if options.cuda:
        torch.cuda.set_device(options.device)
    else:
        torch.set_num_threads(1)
    about = machine(options)
    rows: list[Row] = []
    for name in given.only or BENCHES:
        start = time.monotonic()
        try:
            for row in BENCHES[name](options):
                rows.append(row)
                print(f"{row.bench}: {row.name}: {row.status} {row.note} {row.values}", flush=True)
        except Exception as error:  # the other benchmarks still run
            rows.append(Row(name, "did not finish", status=FAILED, note=f"{type(error).__name__}: {error}"))
            print(f"{name}: {rows[-1].note}", flush=True)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    print(write(rows, about, options.out))
    passed, failed = (sum(row.status == status for row in rows) for status in (PASSED, FAILED))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
