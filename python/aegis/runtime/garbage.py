"""Pauses of Python's garbage collector, and how to be without them for a while.

With torch and transformers loaded a full collection walks hundreds of thousands of objects that will never be garbage
and takes over 100 ms. :func:`freeze` takes them out of its sight; :func:`no_gc_cycle` keeps it from running at all.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["GcReport", "freeze", "gc_report", "no_gc_cycle", "unfreeze"]

# The collector is one for all threads, and so is this: how many blocks keep it off, and whether it was on before.
_lock = threading.Lock()
_blocks = 0
_was_enabled = False


def freeze() -> int:
    """Collects, then sets all objects that exist aside: collections no longer look at them.

    Call it when everything is imported and the model is made. What becomes garbage among these objects later is freed
    only if nothing refers to it; a cycle of them stays until :func:`unfreeze`. Objects made later are collected as
    ever, and reference counting goes on for all.

    Returns:
        How many objects are set aside now.
    """
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()


def unfreeze() -> None:
    """Puts the objects set aside back into the oldest generation."""
    gc.unfreeze()


@contextmanager
def no_gc_cycle() -> Iterator[None]:
    """Inside, the collector does not run by itself. Collects before; afterwards all is as the caller had it.

    Blocks may be nested, and entered by several threads at once: the first collects and turns the collector off, the
    last turns it on again, if it was on, also after an exception. ``gc.collect()`` still works inside. Cycles made
    inside take memory until a collection after the block.

    Cost: one full collection at the outermost entry.
    """
    global _blocks, _was_enabled
    with _lock:
        if _blocks == 0:
            gc.collect()
            _was_enabled = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _was_enabled:
                gc.enable()


@dataclass(frozen=True)
class GcReport:
    """The state of the collector."""

    enabled: bool
    thresholds: tuple[int, int, int]
    counts: tuple[int, int, int]
    """Allocations, and collections of the younger generation, since the last collection of each."""
    frozen: int
    """Objects set aside by :func:`freeze`."""
    tracked: int
    """Objects that a full collection looks at."""
    collections: tuple[int, ...]
    """How often each generation was collected since the process began."""
    collected: int
    """Objects that these freed."""
    pause_ms: float | None
    """How long a full collection took, where one was asked for."""

    def __str__(self) -> str:
        pause = "" if self.pause_ms is None else f"; a full collection takes {self.pause_ms:.2f} ms"
        return (
            f"collector {'on' if self.enabled else 'off'}, thresholds {self.thresholds}, {self.tracked:,} objects "
            f"tracked, {self.frozen:,} frozen; {self.collections} collections freed {self.collected:,} objects{pause}"
        )


def gc_report(*, measure: bool = False) -> GcReport:
    """How the collector stands; with ``measure``, a full collection runs and is timed.

    Cost: a list of all tracked objects is made and dropped: tens of ms with torch loaded.
    """
    pause = None
    if measure:
        began = time.perf_counter()
        gc.collect()
        pause = 1e3 * (time.perf_counter() - began)
    stats = gc.get_stats()
    return GcReport(
        enabled=gc.isenabled(),
        thresholds=gc.get_threshold(),
        counts=gc.get_count(),
        frozen=gc.get_freeze_count(),
        tracked=len(gc.get_objects()),
        collections=tuple(generation["collections"] for generation in stats),
        collected=sum(generation["collected"] for generation in stats),
        pause_ms=pause,
    )
