"""``aegis doctor``: what this machine offers, and what aegis makes of it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from pathlib import Path

import torch

import aegis
from aegis import runtime
from aegis.cli.terminal import print_section, readable_bytes

__all__ = ["register", "run"]

Section = dict[str, str]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "doctor",
        help="show versions, instruction sets, CUDA and the limits of this machine",
        description="Show versions, instruction sets, CUDA and the limits of this machine.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; always 0."""
    report = {
        "versions": _versions(),
        "CPU": _cpu(),
        "CUDA": _cuda(),
        "memory": _memory(),
        "allocator": _allocator(),
        "limits": _limits(),
    }
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    width = max(len(name) for section in report.values() for name in section)
    for title, section in report.items():
        print_section(title, list(section.items()), width)
    return 0


def _versions() -> Section:
    info = aegis.build_info()
    return {
        "aegis": f"{aegis.__version__} ({Path(aegis.__file__).parent})",
        "torch": f"{torch.__version__} (operators built for {info['torch_target']} and newer)",
        "python": f"{platform.python_version()} ({sys.executable})",
        "compiler": info["compiler"],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu() -> Section:
    return {
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "instruction set": aegis.cpu_isa(),
        "available": ", ".join(aegis.build_info()["isas"]),
        "AEGIS_FORCE_ISA": os.environ.get("AEGIS_FORCE_ISA") or "not set",
    }


def _cuda() -> Section:
    info = aegis.build_info()
    kernels = f"for architectures {info['cuda_archs']}" if info["cuda"] else "not built"
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"kernels": kernels, "devices": ", ".join(devices)}
    torch_side = f"torch has CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
    return {"kernels": kernels, "devices": f"none ({torch_side})"}


def _memory() -> Section:
    meminfo = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in _read("/proc/meminfo").splitlines())
    }
    section = {
        "memory": f"{_kib(meminfo.get('MemAvailable'))} available of {_kib(meminfo.get('MemTotal'))}",
        "transparent huge pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "reserved huge pages": f"{meminfo.get('HugePages_Free', 0)} free of {meminfo.get('HugePages_Total', 0)} "
        f"({_kib(meminfo.get('Hugepagesize'))} each)",
    }
    try:
        shm = os.statvfs("/dev/shm")
        free, total = shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize
        section["/dev/shm"] = f"{readable_bytes(free)} free of {readable_bytes(total)}"
    except OSError as error:
        section["/dev/shm"] = f"none ({error.strerror})"
    return section


def _allocator() -> Section:
    """malloc's, and settings that do nothing."""
    section = {"in force": str(runtime.active_allocator())}
    section |= {f"{name} (no effect)": why for name, why in runtime.idle_settings().items()}
    return section


def _limits() -> Section:
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "locked memory": "unlimited" if locked == resource.RLIM_INFINITY else readable_bytes(locked),
        "open files": f"{files} (may be raised to {most})",
        "mappings": _read("/proc/sys/vm/max_map_count").strip() or "unknown",
        "overcommit": {"0": "heuristic", "1": "always", "2": "never"}.get(
            _read("/proc/sys/vm/overcommit_memory").strip(), "unknown"
        ),
    }


def _read(path: str) -> str:
    """A file of the kernel's, or nothing where this system has no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _chosen(path: str) -> str:
    """The word in brackets of 'always [madvise] never'."""
    _, _, rest = _read(path).partition("[")
    return rest.partition("]")[0] or "not in this kernel"


def _kib(count: int | None) -> str:
    return "unknown" if count is None else readable_bytes(count * 1024)
