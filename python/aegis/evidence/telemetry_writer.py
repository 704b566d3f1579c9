"""The thread that writes telemetry, so that the one that trains never waits for a disk or a terminal."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from aegis.evidence.telemetry_file import RotatingCsv
from aegis.evidence.telemetry_row import Row
from aegis.evidence.telemetry_sinks import Sink

__all__ = ["TelemetryWriter"]

_CLOSE_SECONDS = 10.0


class TelemetryWriter:
    """Takes rows of one thread into a bounded queue and writes them from a thread of its own.

    Args:
        file: where lines go; closed with this.
        columns: the names of a row, in the order of the file.
        sinks: other takers of the rows; one that fails is dropped and counted as a warning.
        complete: called for a row that carries a sample, before it is written: adds what takes long to read.
        interval: seconds between two rounds of writing.
        capacity: rows in the queue at most.
    """

    def __init__(
        self,
        file: RotatingCsv,
        columns: Sequence[str],
        sinks: Sequence[Sink],
        complete: Callable[[Row], None],
        *,
        interval: float,
        capacity: int,
    ) -> None:
        self.written = self.dropped = self.lost = 0
        self.problems: deque[str] = deque(maxlen=8)
        self._file = file
        self._columns = list(columns)
        self._sinks = list(sinks)
        self._complete = complete
        self._interval = interval
        self._capacity = capacity
        self._rows: deque[Row] = deque()  # appended to by the one thread, popped from by the other
        self._feeder: list[float] = []
        self._wake = threading.Event()
        self._closing = False
        self._pid = os.getpid()
        self._failed = self._incomplete = False
        self._thread = threading.Thread(target=self._run, name="aegis-telemetry", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """Queues a row, or counts it as dropped when there is no room. Never waits.

        In a forked child there is no thread to write it, and the lock of the event may be held for ever.
        """
        if self._pid != os.getpid() or self._closing or len(self._rows) >= self._capacity:
            self.dropped += 1
            return
        self._rows.append(row)
        if len(self._rows) == self._capacity // 2:
            self._wake.set()

    def close(self) -> None:
        """Writes what waits and ends the thread; after 10 s without success the rest counts as lost.

        In a forked child, which has neither the thread nor a share in the file, nothing happens.
        """
        if self._pid != os.getpid() or self._closing:
            return
        self._closing = True
        self._wake.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.1)  # in slices, so that Ctrl-C gets through
        self.lost += len(self._rows)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._interval)
            self._wake.clear()
            self._round()
        self._round()  # what was put between the last round and close()
        self._file.close()
        for sink in list(self._sinks):
            self._guarded(sink.close, sink)

    def _round(self) -> None:
        rows: list[Row] = []
        while self._rows and len(rows) < self._capacity:
            row = self._rows.popleft()
            self._percentiles(row)
            rows.append(row)
        if not rows:
            return
        lines = "".join(",".join(map(_cell, map(row.__getitem__, self._columns))) + "\n" for row in rows)
        try:
            self._file.append(lines.encode())
            self.written += len(rows)
        except OSError as error:
            self.lost += len(rows)
            if not self._failed:
                self._failed = True
                self.problems.append(f"{self._file.path} cannot be written, rows are lost until it can: {error}")
        for sink in list(self._sinks):
            self._guarded(lambda sink=sink: sink.rows(rows), sink)  # type: ignore[misc]

    def _percentiles(self, row: Row) -> None:
        """Times of single batches become percentiles since the sample before."""
        if row["feeder_us"] is not None:
            self._feeder.append(row["feeder_us"])
        if row["rss_anon_bytes"] is None:
            return
        if self._feeder:
            for name, value in zip(("p50", "p95", "p99"), np.percentile(self._feeder, (50, 95, 99)), strict=True):
                row[f"feeder_us_{name}"] = float(value)
            self._feeder.clear()
        try:
            self._complete(row)
        except Exception as error:  # a sensor must not end the thread
            if not self._incomplete:
                self._incomplete = True
                self.problems.append(f"samples are incomplete: {error!r}")

    def _guarded(self, call: Callable[[], None], sink: Sink) -> None:
        try:
            call()
        except Exception as error:  # a closed terminal, a full disk: nothing that training should end for
            self.problems.append(f"{type(sink).__name__} is left out from now on: {error}")
            if sink in self._sinks:
                self._sinks.remove(sink)


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)
