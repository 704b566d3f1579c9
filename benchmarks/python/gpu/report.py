"""What the GPU benchmarks share: options, timing, the machine's description, rows and their tables."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aegis
import torch

PASSED, FAILED, ABSENT = "passed", "failed", "not built yet"


@dataclass(frozen=True)
class Options:
    """``quick`` shrinks sizes and times until a CPU does them in seconds: for trying the code, not for figures."""

    device: torch.device
    out: Path
    quick: bool

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)


@dataclass
class Row:
    """One measurement. It has passed when it ran and its results were right; no timing makes it fail."""

    bench: str
    name: str
    values: dict[str, float | int | str] = field(default_factory=dict)
    status: str = PASSED
    note: str = ""


def check(condition: bool, message: str) -> None:
    """Fail the row that is being measured. Not ``assert``: benchmarks also run with -O."""
    if not condition:
        raise RuntimeError(message)


def seconds_of(call: Callable[[], object], options: Options, *, warm: int, times: int) -> list[float]:
    """Seconds from the call until the device is done, one for each of ``times`` calls."""
    for _ in range(warm):
        call()
    options.synchronize()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        options.synchronize()
        taken.append(time.perf_counter() - start)
    return taken


def host_seconds_of(
    call: Callable[[], object], options: Options, *, warm: int, times: int, between: int = 64
) -> list[float]:
    """Seconds until the call returns. The device is waited for every ``between`` calls, outside of the measurement,
    so that its queue is never full."""
    for _ in range(warm):
        call()
    options.synchronize()
    taken = []
    for i in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
        if i % between == between - 1:
            options.synchronize()
    return taken


def p50_p99(seconds: list[float]) -> dict[str, float]:
    """Microseconds, rounded to tenths."""
    ordered = sorted(seconds)
    at99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50_us": round(statistics.median(ordered) * 1e6, 1), "p99_us": round(at99 * 1e6, 1)}


def machine(options: Options) -> dict[str, str]:
    """Names, versions and clocks: figures without them mean nothing."""
    about = {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cpu_isa": aegis.cpu_isa(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aegis": aegis.__version__,
        "device": str(options.device),
    }
    if options.cuda:
        fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", f"--id={options.device.index or 0}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        about |= {f"gpu.{name}": value for name, value in zip(fields.split(","), answer.split(", "), strict=True)}
        about["cuda"] = str(torch.version.cuda)
    return about


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def tables(rows: Iterable[Row]) -> str:
    """A Markdown table for each benchmark."""
    text = ""
    by_bench: dict[str, list[Row]] = {}
    for row in rows:
        by_bench.setdefault(row.bench, []).append(row)
    for bench, group in by_bench.items():
        columns = list(dict.fromkeys(name for row in group for name in row.values))
        text += f"\n## {bench}\n\n| | {' | '.join([*columns, 'status'])} |\n|---|{'--:|' * len(columns)}---|\n"
        for row in group:
            cells = [str(row.values.get(name, "")) for name in columns]
            text += f"| {row.name} | {' | '.join([*cells, ': '.join(filter(None, [row.status, row.note]))])} |\n"
    return text


def write(rows: list[Row], about: dict[str, str], out: Path) -> str:
    """Write gpu.json and gpu.md, and return what the latter holds."""
    out.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "rows": [asdict(row) for row in rows]}
    (out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = "".join(f"- {name}: {value}\n" for name, value in about.items())
    text = f"# GPU benchmarks\n\n{lines}{tables(rows)}"
    (out / "gpu.md").write_text(text)
    return text
