"""What a Python process does beside the work: garbage collection and the memory allocator."""

from aegis.runtime.allocators import (
    ALLOCATORS,
    ActiveAllocator,
    AllocatorCommand,
    AllocatorNotFound,
    active_allocator,
    allocator_command,
    idle_settings,
)
from aegis.runtime.garbage import GcReport, freeze, gc_report, no_gc_cycle, unfreeze

__all__ = [
    "ALLOCATORS",
    "ActiveAllocator",
    "AllocatorCommand",
    "AllocatorNotFound",
    "GcReport",
    "active_allocator",
    "allocator_command",
    "freeze",
    "gc_report",
    "idle_settings",
    "no_gc_cycle",
    "unfreeze",
]
