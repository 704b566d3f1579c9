"""What a process does beside the work: garbage collection, the memory allocator, and how float32 is rounded."""

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
from aegis.runtime.precision import precision, set_tf32, tf32

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
    "precision",
    "set_tf32",
    "tf32",
    "unfreeze",
]
