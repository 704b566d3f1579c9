"""What Linux says of a process: memory, faults, context switches. Numbers are bytes and counts."""

from __future__ import annotations

import re
import resource
from pathlib import Path

__all__ = ["counters", "faults_of", "memory", "peak_rss", "pss"]

_STATUS = re.compile(rb"^(RssAnon|RssFile|RssShmem|VmData):\s+(\d+) kB", re.MULTILINE)
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_NAMES = {
    b"RssAnon": "rss_anon_bytes",
    b"RssFile": "rss_file_bytes",
    b"RssShmem": "rss_shmem_bytes",
    b"VmData": "vm_data_bytes",
}


def memory() -> dict[str, int]:
    """Resident memory of this process by kind, and the size of its private writable mappings.

    The kernel keeps these numbers per CPU and may lag by some hundred kB.

    Cost: about 25 µs; 10 more for each thousand mappings.
    """
    found = _STATUS.findall(Path("/proc/self/status").read_bytes())
    return {_NAMES[name]: int(kilobytes) * 1024 for name, kilobytes in found}


def peak_rss() -> int:
    """The most resident memory that this process has had since its program was started, in bytes.

    Not ``ru_maxrss``, in which the process that started this one still counts.
    """
    found = _PEAK.search(Path("/proc/self/status").read_bytes())
    return int(found[1]) * 1024 if found else 0


def counters() -> dict[str, float]:
    """Processor time, page faults and context switches of this process, all its threads, since it started.

    Cost: about 1 µs.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
    }


def pss(pid: int | str = "self") -> int | None:
    """Resident memory with pages shared by n processes counted as 1/n of their size; None where it cannot be had.

    Cost: the kernel walks every resident page: 10 ms and more for a process with torch.
    """
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:  # the process has ended, or the kernel is older than 4.14
        return None
    return int(found[1]) * 1024 if found else None


def faults_of(pid: int) -> int | None:
    """Minor faults of a process since it started; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(text[text.rindex(b")") :].split()[8])  # the name before it may hold anything
