"""Where a run takes place: versions, the machine, and counters of the process."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aegis

__all__ = ["counters", "host", "versions"]


def versions() -> dict[str, str]:
    """Of aegis and of what it computes with."""
    return {
        "aegis": aegis.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def host() -> dict[str, Any]:
    """The machine as far as it bears on the numbers; no name of machine or user."""
    accelerator = None
    if torch.cuda.is_available():
        accelerator = torch.cuda.get_device_name()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        "isa": aegis.cpu_isa(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerator": accelerator,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def counters() -> dict[str, float]:
    """Counters of this process that only grow: seconds on a clock that never steps back and of processor time, page
    faults, context switches. Cost: a system call."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.monotonic(),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
    }
