"""The heap in use, and a reserve of it that costs no page faults: counted in processes of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aegis.evidence.heap import RESERVE, heap_used
from aegis.evidence.turns import QUIET_MALLOC
from aegis.runtime.allocators import AllocatorNotFound, active_allocator, allocator_command

needs_glibc = pytest.mark.skipif(active_allocator().name != "glibc", reason="another malloc is in force")

SCRIPT = f"""
import ctypes, resource, sys
from aegis.evidence.heap import heap_used, touch_reserve

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
ready = touch_reserve() if sys.argv[1] == "touched" else None
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(28):
    ctypes.memset(libc.malloc({RESERVE // 32}), 1, {RESERVE // 32})
print(ready, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, heap_used())
"""


def run(script: Path, mode: str, **environment: str) -> tuple[str, int, str]:
    command = [sys.executable, str(script), mode]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, encoding="utf-8", check=True)
    ready, faults, used = done.stdout.split()
    return ready, int(faults), used


@needs_glibc
def test_a_heap_with_a_reserve_grows_without_faults(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    _, untouched, _ = run(script, "untouched", **QUIET_MALLOC)
    ready, touched, used = run(script, "touched", **QUIET_MALLOC)
    if ready == "False":
        pytest.skip("needs Linux 5.14")
    assert untouched > 28 * RESERVE // 32 // 4096 // 2  # the blocks do need new pages
    assert touched < 100
    assert int(used) > 28 * RESERVE // 32  # what is in use is counted, wherever it lies


@needs_glibc
def test_heap_used_is_what_was_not_freed() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size = 50 << 20
    before = heap_used()
    assert before is not None
    block = libc.malloc(size)
    during = heap_used()
    libc.free(block)
    after = heap_used()
    assert during is not None
    assert after is not None
    assert size <= during - before < size + (1 << 20)
    assert abs(after - before) < 1 << 20


def test_with_another_malloc_nothing_is_claimed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    try:
        environment = allocator_command(script, "mimalloc").environment()
    except AllocatorNotFound as missing:
        pytest.skip(str(missing))
    ready, _, used = run(script, "touched", LD_PRELOAD=environment["LD_PRELOAD"])
    assert (ready, used) == ("False", "None")
