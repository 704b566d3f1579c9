"""A row of telemetry, on its way from the thread that trains to the one that writes."""

from __future__ import annotations

from typing import Any

__all__ = ["COLUMNS", "Row"]

_EVERY_STEP = """
    step elapsed_seconds step_seconds wait_seconds tokens tokens_per_second loss
    cpu_seconds minor_faults major_faults voluntary_switches involuntary_switches
    native_allocations feeder_us clock_step_seconds
"""
_SAMPLED = """
    feeder_us_p50 feeder_us_p95 feeder_us_p99
    rss_anon_bytes rss_file_bytes rss_shmem_bytes vm_data_bytes heap_used_bytes pss_bytes
    workers workers_pss_bytes workers_minor_faults
    gpu_allocated_bytes gpu_reserved_bytes gpu_clock_mhz gpu_temperature_c gpu_power_w gpu_power_limit_w
"""
COLUMNS = [*_EVERY_STEP.split(), *_SAMPLED.split()]


class Row:
    """The values of a row by the names of :data:`COLUMNS`; None where there is none.

    Not a dict: one of this size comes from malloc, and as it outlives the step it would sit among the activations that
    are freed around it, so that their memory cannot be joined again and the heap grows. This is small enough for
    Python's own allocator.
    """

    __slots__ = (*COLUMNS, "pids", "with_pss")

    def __init__(self) -> None:
        for name in COLUMNS:
            setattr(self, name, None)
        self.pids: list[int] = []
        self.with_pss = False

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def update(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
