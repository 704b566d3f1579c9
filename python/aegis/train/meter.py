"""What one training step cost: time, time blocked on data, page faults and memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from aegis.evidence.process import memory

__all__ = ["Meter", "StepRecord"]

T = TypeVar("T")


@dataclass(slots=True)
class StepRecord:
    """One step, one row of the CSV file.

    ``seconds`` runs from asking for the batch until its loss is a Python number, the update included;
    ``wait_seconds`` is the part of it spent inside ``next()``. Faults are those of this process with all
    of its threads, ``next_faults`` those of the calling thread inside ``next()``. Worker processes are not
    counted.
    """

    step: int
    tokens: int
    loss: float
    val_loss: float  # NaN where none was taken
    lr: float
    seconds: float
    wait_seconds: float
    minor_faults: int
    major_faults: int
    next_faults: int
    anon_rss_bytes: int

    @classmethod
    def columns(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    def row(self) -> list[float]:
        return [getattr(self, name) for name in self.columns()]

    @classmethod
    def from_row(cls, row: list[float]) -> StepRecord:
        named = zip(fields(cls), row, strict=True)
        values: dict[str, Any] = {f.name: int(value) if f.type == "int" else value for f, value in named}
        return cls(**values)


class Meter:
    """Measures one step at a time: :meth:`start`, :meth:`next` once, :meth:`stop`."""

    def start(self) -> None:
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._start = time.perf_counter()

    def next(self, batches: Iterator[T]) -> T:
        """``next(batches)``, timed."""
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        start = time.perf_counter()
        batch = next(batches)
        self.wait_seconds = time.perf_counter() - start
        self.next_faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
        return batch

    def stop(self, *, step: int, tokens: int, loss: float, lr: float) -> StepRecord:
        """The record of the step; its memory is read after the clock has stopped."""
        seconds = time.perf_counter() - self._start
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return StepRecord(
            step=step,
            tokens=tokens,
            loss=loss,
            val_loss=float("nan"),
            lr=lr,
            seconds=seconds,
            wait_seconds=self.wait_seconds,
            minor_faults=usage.ru_minflt - self._usage.ru_minflt,
            major_faults=usage.ru_majflt - self._usage.ru_majflt,
            next_faults=self.next_faults,
            anon_rss_bytes=memory()["rss_anon_bytes"],
        )
