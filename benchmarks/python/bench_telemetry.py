"""Telemetry: what a row costs the thread that trains."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from aegis import FlatArenaDataLoader, TokenDataset
from aegis.evidence import Telemetry, read_telemetry
from harness import Table, interleave, main, median


def build(quick: bool) -> Table:
    """A row without and with a sample of memory, and of a loader whose counters are asked."""
    table = Table("Telemetry, a step's row (isolated)")
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens.bin")
        np.arange(1 << 16, dtype=np.uint16).tofile(tokens)
        with FlatArenaDataLoader(TokenDataset(tokens, 64, dtype="uint16"), 8, seed=0) as loader:
            kinds = {
                "row": Telemetry(Path(folder, "row.csv"), interval=3600.0, capacity=1 << 20),
                "row and the loader's counters": Telemetry(
                    Path(folder, "loader.csv"), loader=loader, interval=3600.0, capacity=1 << 20
                ),
                "row with a sample": Telemetry(Path(folder, "sample.csv"), interval=1e-6, capacity=1 << 20),
            }
            calls = {name: lambda t=telemetry: t.step(tokens=512, loss=2.5) for name, telemetry in kinds.items()}
            seconds = interleave(calls, 2 if quick else 20, burst=20)
            for name, telemetry in kinds.items():
                table.limit(name, 1e6 * median(seconds[name]), "µs", 100)
                telemetry.close()
                assert telemetry.stats()["dropped_rows"] == 0
                assert len(read_telemetry(telemetry.path)["step"]) == telemetry.stats()["rows"]
    return table


if __name__ == "__main__":
    main(build)
