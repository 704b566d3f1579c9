"""freeze(): what a full collection of Python's garbage costs a process that has torch and transformers loaded."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

from harness import Table, main, median

LOADED = ("torch", "torch._dynamo", "transformers", "transformers.models.llama.modeling_llama", "aegis")
YOUNG = 700  # objects that a loop has made since the last collection, when the youngest generation is due


def pauses(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of collections of the oldest generation in this process, before and after freeze()."""
    import aegis

    for name in LOADED:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    before = [pause() for _ in range(rounds)]
    aegis.runtime.freeze()
    return before, [pause() for _ in range(rounds)]


def pause() -> float:
    young = [[] for _ in range(YOUNG)]  # type: ignore[var-annotated]
    start = time.perf_counter()
    gc.collect()
    seconds = time.perf_counter() - start
    del young
    return seconds


def build(quick: bool) -> Table:
    """A pause of the garbage collector, before and after freeze()."""
    table = Table("Pauses of Python's garbage collector")
    rounds = 3 if quick else 21
    code = f"import json; from bench_gc import pauses; print(json.dumps(pauses({rounds})))"  # nothing else lives there
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    before, after = (1e3 * median(seconds) for seconds in json.loads(done.stdout))
    loaded = " and ".join(name for name in ("torch", "transformers") if importlib.util.find_spec(name))
    what = f"collection of the oldest generation, {loaded} loaded"
    table.compared(f"{what}, after freeze()", "before", before, after, "ms")
    table.limit(f"{what}, after freeze()", after, "ms", 0.1)
    table.notes.append(
        f"gc.collect() in a process of its own, with {YOUNG} young objects alive, as many as start a collection."
    )
    return table


if __name__ == "__main__":
    main(build)
