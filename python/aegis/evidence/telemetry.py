"""What every step of a training run cost, in a file, without the run waiting for it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from aegis.evidence import process
from aegis.evidence.gpu import GpuProbe
from aegis.evidence.heap import heap_used
from aegis.evidence.telemetry_file import RotatingCsv
from aegis.evidence.telemetry_row import COLUMNS, Row
from aegis.evidence.telemetry_sinks import ProgressLine, Sink, TensorBoard
from aegis.evidence.telemetry_writer import TelemetryWriter

__all__ = ["Telemetry"]

T = TypeVar("T")

_PSS_EVERY = 10  # samples
_CLOCK_STEP = 0.5  # seconds: what the two clocks may part between two steps without a note


class Telemetry:
    """A row for every step of a training run, in CSV files that rotate by size.

    ::

        with Telemetry("run/telemetry.csv", loader=loader, progress=1000) as telemetry:
            for inputs, targets in telemetry.watch(loader):
                loss = train_on(inputs, targets)
                telemetry.step(tokens=inputs.numel(), loss=loss.item())

    Rows go through a bounded queue to a thread that writes them every ``interval``: the step never waits for a disk,
    and rows that find no room are counted (:meth:`stats`). Where the disk is full the run goes on: one warning, lost
    rows counted, and writing again once there is room. The file ends in a whole line at any moment.

    Columns, empty where there is no such number:

    - ``step``; ``elapsed_seconds`` since this object was made (monotonic clock); ``step_seconds`` from asking for the
      batch until :meth:`step`; ``wait_seconds``, the part of it inside the loader's ``next()``; ``tokens``,
      ``tokens_per_second``, ``loss``.
    - ``cpu_seconds`` of processor time, ``minor_faults, major_faults, voluntary_switches, involuntary_switches``: of
      this process with all its threads, since the row before: telemetry itself and what happens between two steps
      included.
    - ``native_allocations`` of an aegis loader's threads since the row before; ``feeder_us``: their time for each batch
      that they filled since then.
    - ``clock_step_seconds``: by how much the wall clock was set since the row before, where that is half a second or
      more. Nothing here depends on that clock.
    - Sampled every ``interval``, at the end of a step: percentiles of ``feeder_us`` since the sample before; resident
      memory in anonymous, file and shared pages, and VmData; ``heap_used_bytes`` that glibc's malloc has given out and
      that were not freed; ``workers``: child processes of multiprocessing, with their faults since they started; memory
      of torch's CUDA allocator, and of the GPU its clock, temperature and power (with the package pynvml). In every
      tenth sample the PSS of this process and of the workers.

    Args:
        path: the CSV file; ``NAME.1.csv``, ``NAME.2.csv``, … are the full ones before it. See
            :func:`~aegis.evidence.read_telemetry`.
        loader: whose ``stats()`` are asked at every step, when it has any.
        interval: seconds between two samples, and between two rounds of writing.
        max_bytes: size at which a file is put away.
        keep: how many of those stay; None keeps all.
        capacity: rows that may wait for being written.
        progress: a progress line on stderr: the number of steps, or True where it is not known.
        tensorboard: a folder for TensorBoard's event files.
        replace: begin anew where there is such a file.

    Raises:
        FileExistsError: there is such a file already.
        OSError: the folder cannot be written.
        ModuleNotFoundError: ``tensorboard`` without that package.
        ValueError: a number out of its range.

    One thread may call :meth:`step`.

    Cost: about 5 µs a step, 15 with the counters of a loader, 45 where a sample is taken (bench_telemetry.py). The PSS
    takes the writing thread 10 ms and more.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        loader: Any = None,
        interval: float = 1.0,
        max_bytes: int = 64 << 20,
        keep: int | None = None,
        capacity: int = 4096,
        progress: int | bool = False,
        tensorboard: str | os.PathLike[str] | None = None,
        replace: bool = False,
    ) -> None:
        if not 0.0 < interval < 86400.0:
            raise ValueError(f"interval: expected seconds above 0 and below a day, got {interval}")
        for name, value, least in (("max_bytes", max_bytes, 4096), ("capacity", capacity, 2), ("keep", keep, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")
        sinks: list[Sink] = []
        if tensorboard is not None:
            sinks.append(TensorBoard(Path(tensorboard)))
        file = RotatingCsv(Path(path), COLUMNS, max_bytes=max_bytes, keep=keep, replace=replace)
        if progress is not False:
            sinks.append(ProgressLine(None if progress is True else progress))
        self._gpu = GpuProbe()
        complete = partial(_complete, self._gpu)  # without self, so that a dropped Telemetry is closed
        self.path = file.path
        """The file that is being written."""
        self._writer = TelemetryWriter(file, COLUMNS, sinks, complete, interval=interval, capacity=capacity)
        self._finalizer = weakref.finalize(self, TelemetryWriter.close, self._writer)
        self._stats = getattr(loader, "stats", None)
        self._interval = interval
        self._step = 0
        self._start = time.perf_counter()
        self._asked: float | None = None
        self._wait: float | None = None
        self._last_end = self._start
        self._next_sample = self._start
        self._wall_offset = time.time() - self._start
        self._counters = process.counters()
        self._feeder = self._feeder_counters()
        self._clock_steps = 0
        self._samples = 0

    def watch(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, with the time taken until each is there."""
        iterator = iter(batches)
        while True:
            self._asked = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._wait = time.perf_counter() - self._asked
            yield batch
            del batch  # or its slot would be held while the next one is waited for

    def step(self, *, tokens: int = 0, loss: float | None = None, step: int | None = None) -> float:
        """Ends a step: measured from asking for its batch (:meth:`watch`), else from the end of the step before.

        Args:
            tokens: in the batch.
            loss: as a float; of a tensor, ``.item()``, which also waits for the GPU to end the step.
            step: its number; by default one more than before, the first being 1.

        Returns:
            The seconds it took.
        """
        now = time.perf_counter()
        seconds = now - (self._last_end if self._asked is None else self._asked)
        self._step = self._step + 1 if step is None else int(step)
        tokens = int(tokens)
        row = Row()
        row["step"] = self._step
        row["elapsed_seconds"] = now - self._start
        row["step_seconds"] = seconds
        row["wait_seconds"] = self._wait
        row["tokens"] = tokens
        row["tokens_per_second"] = tokens / seconds if seconds > 0.0 else None
        row["loss"] = None if loss is None else float(loss)
        counters = process.counters()
        for name, value in counters.items():
            row[name] = value - self._counters[name]
        self._counters = counters
        self._add_feeder(row)
        self._note_clock(row, now)
        if now >= self._next_sample:
            self._next_sample = now + self._interval
            self._sample(row)
        self._writer.put(row)
        self._last_end, self._asked, self._wait = now, None, None
        if self._writer.problems:
            self._warn()
        return seconds

    def stats(self) -> dict[str, int]:
        """Counts so far: ``rows`` written; ``dropped_rows``, for which the queue had no room; ``lost_rows``, which
        could not be written; ``clock_steps`` of the wall clock.

        The newest rows may still be in the queue and in none of these; after :meth:`close` none is.
        """
        writer = self._writer
        return {
            "rows": writer.written,
            "dropped_rows": writer.dropped,
            "lost_rows": writer.lost,
            "clock_steps": self._clock_steps,
        }

    def close(self) -> None:
        """Writes what waits, at most for 10 seconds. Can be repeated; steps after it are dropped."""
        self._finalizer()
        self._warn()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _feeder_counters(self) -> tuple[float, float, float]:
        """Batches filled, seconds of the threads for them, allocations; zeros where the loader does not say."""
        if self._stats is None:
            return 0.0, 0.0, 0.0
        stats = self._stats()
        filled = stats.get("batches", 0.0) + stats.get("ready", 0.0)  # delivered, and about to be
        return filled, stats.get("fill_seconds", 0.0), stats.get("native_allocations", 0.0)

    def _add_feeder(self, row: Row) -> None:
        if self._stats is None:
            return
        before, self._feeder = self._feeder, self._feeder_counters()
        filled, seconds, allocations = (now - then for now, then in zip(self._feeder, before, strict=True))
        if self._feeder[0] > 0.0:
            row["native_allocations"] = int(allocations)
        if filled > 0.0:
            row["feeder_us"] = max(0.0, seconds) / filled * 1e6

    def _note_clock(self, row: Row, now: float) -> None:
        offset = time.time() - now
        if abs(offset - self._wall_offset) >= _CLOCK_STEP:
            row["clock_step_seconds"] = offset - self._wall_offset
            self._clock_steps += 1
        self._wall_offset = offset

    def _sample(self, row: Row) -> None:
        row.update(process.memory())
        row["heap_used_bytes"] = heap_used()
        row.update(self._gpu.memory())
        row.with_pss = self._samples % _PSS_EVERY == 0
        self._samples += 1
        row.pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        faults = [process.faults_of(pid) for pid in row.pids]
        row["workers"] = len(faults)
        if faults and None not in faults:
            row["workers_minor_faults"] = sum(faults)

    def _warn(self) -> None:
        while self._writer.problems:
            warnings.warn(f"telemetry: {self._writer.problems.popleft()}", RuntimeWarning, stacklevel=3)


def _complete(gpu: GpuProbe, row: Row) -> None:
    """On the writer's thread: what takes milliseconds."""
    row.update(gpu.hardware())
    if row.with_pss:
        row["pss_bytes"] = process.pss()
        row["workers_pss_bytes"] = sum(process.pss(pid) or 0 for pid in row.pids) if row.pids else None
