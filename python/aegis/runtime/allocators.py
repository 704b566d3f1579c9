"""Another malloc for a process: mimalloc, jemalloc or tcmalloc, put before the system's when it starts.

An allocator and its options are read while a process starts. Nothing here pretends to change them later:
:func:`allocator_command` makes the command that starts one, and :func:`active_allocator` looks which is in force.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "ALLOCATORS",
    "ActiveAllocator",
    "AllocatorCommand",
    "AllocatorNotFound",
    "active_allocator",
    "allocator_command",
    "idle_settings",
]


@dataclass(frozen=True)
class _Allocator:
    symbol: str
    """That the library has and no other."""
    files: tuple[str, ...]
    package: str
    variables: tuple[str, ...]
    """What its settings in the environment begin with."""


_KNOWN = {
    "mimalloc": _Allocator(
        "mi_version", ("libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"), "libmimalloc2.0", ("MIMALLOC_",)
    ),
    "jemalloc": _Allocator("mallctl", ("libjemalloc.so.2", "libjemalloc.so"), "libjemalloc2", ("MALLOC_CONF",)),
    "tcmalloc": _Allocator(
        "tc_version",
        ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
        "libtcmalloc-minimal4",
        ("TCMALLOC_",),
    ),
}
ALLOCATORS = tuple(_KNOWN)
"""Names that :func:`allocator_command` takes."""


class AllocatorNotFound(FileNotFoundError):
    """The library of an allocator is not installed."""


@dataclass(frozen=True)
class AllocatorCommand:
    """How to start a process with another allocator."""

    allocator: str
    library: Path
    argv: list[str]
    settings: dict[str, str] = field(default_factory=dict)
    """What is added to the environment, ``LD_PRELOAD`` included."""

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base`` (or this process's environment) with the settings; other preloaded libraries stay, behind."""
        environment = dict(os.environ if base is None else base)
        others = [name for name in environment.get("LD_PRELOAD", "").split(":") if name and name != str(self.library)]
        return environment | self.settings | {"LD_PRELOAD": ":".join([str(self.library), *others])}

    def run(self, **options: object) -> subprocess.CompletedProcess[str]:
        """``subprocess.run`` of it, with its options."""
        return subprocess.run(self.argv, env=self.environment(), **options)  # type: ignore[call-overload, no-any-return]

    def __str__(self) -> str:
        """For a shell."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.settings.items()]
        return " ".join([*settings, shlex.join(self.argv)])


def allocator_command(
    script: str | os.PathLike[str],
    allocator: str,
    arguments: Sequence[str] = (),
    *,
    large_pages: bool = False,
    purge_delay_ms: int | None = None,
    reserve_huge_pages: int | None = None,
    arenas: int | None = None,
) -> AllocatorCommand:
    """The command that runs a Python script with another allocator.

    Args:
        script: of Python; run by this interpreter, with ``arguments``.
        allocator: ``"mimalloc"``, ``"jemalloc"`` or ``"tcmalloc"``.
        large_pages: ask for pages of 2 MB (mimalloc: large OS pages; jemalloc: transparent huge pages).
        purge_delay_ms: how long freed pages are kept before the system gets them back (mimalloc, jemalloc).
        reserve_huge_pages: so many pages of 1 GiB, reserved at the start (mimalloc; they must have been set aside in
            the system).
        arenas: how many arenas threads share (jemalloc).

    Raises:
        ValueError: an unknown allocator, a negative number, or an option that this allocator, in the version that is
            installed, does not have.
        AllocatorNotFound: it is not installed; the message says which Debian package has it.
    """
    if allocator not in _KNOWN:
        raise ValueError(f"allocator: expected one of {', '.join(ALLOCATORS)}, got {allocator!r}")
    for name, value, least in (
        ("purge_delay_ms", purge_delay_ms, 0),
        ("reserve_huge_pages", reserve_huge_pages, 1),
        ("arenas", arenas, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    library = _library(allocator)
    options = {
        "large_pages": 1 if large_pages else None,
        "purge_delay_ms": purge_delay_ms,
        "reserve_huge_pages": reserve_huge_pages,
        "arenas": arenas,
    }
    wanted = {name: value for name, value in options.items() if value is not None}
    settings = {"LD_PRELOAD": str(library)}
    settings |= {"mimalloc": _mimalloc, "jemalloc": _jemalloc, "tcmalloc": _tcmalloc}[allocator](wanted, library)
    return AllocatorCommand(allocator, library, [sys.executable, os.fspath(script), *arguments], settings)


def _library(allocator: str) -> Path:
    known = _KNOWN[allocator]
    folders = [
        *(Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder),
        Path("/usr/lib") / f"{platform.machine()}-linux-gnu",
        *map(Path, ("/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib")),
    ]
    for name in known.files:
        for folder in folders:
            if (folder / name).exists():
                return folder / name
    raise AllocatorNotFound(
        f"{allocator}: expected {' or '.join(known.files)} in a library folder, found none; Debian's package is "
        f"{known.package}"
    )


def _refused(allocator: str, options: Mapping[str, int], has: Sequence[str]) -> None:
    for name in options:
        if name not in has:
            raise ValueError(f"{name}: {allocator} has no such setting")


def _mimalloc(options: Mapping[str, int], library: Path) -> dict[str, str]:
    """Names of settings changed between versions; a version ignores those of others, so it is asked which it knows."""
    names = {
        "large_pages": ("allow_large_os_pages", "large_os_pages"),
        "purge_delay_ms": ("purge_delay", "decommit_delay", "reset_delay"),
        "reserve_huge_pages": ("reserve_huge_os_pages",),
    }
    _refused("mimalloc", options, tuple(names))
    contents = library.read_bytes()
    settings = {}
    for option, value in options.items():
        known = [name for name in names[option] if name.encode() + b"\0" in contents]
        if not known:
            raise ValueError(f"{option}: the mimalloc in {library} has no such setting")
        settings[f"MIMALLOC_{known[0].upper()}"] = str(value)
    return settings


def _jemalloc(options: Mapping[str, int], library: Path) -> dict[str, str]:
    _refused("jemalloc", options, ("large_pages", "purge_delay_ms", "arenas"))
    parts = []
    if "large_pages" in options:
        parts += ["thp:always", "metadata_thp:auto"]
    if "purge_delay_ms" in options:
        parts += [f"dirty_decay_ms:{options['purge_delay_ms']}", f"muzzy_decay_ms:{options['purge_delay_ms']}"]
    if "arenas" in options:
        parts.append(f"narenas:{options['arenas']}")
    return {"MALLOC_CONF": ",".join(parts)} if parts else {}


def _tcmalloc(options: Mapping[str, int], library: Path) -> dict[str, str]:
    _refused("tcmalloc", options, ())
    return {}


# --- this process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActiveAllocator:
    """Whose ``malloc`` this process calls."""

    name: str
    """One of ALLOCATORS, "glibc", or "unknown"."""
    library: str
    """The file that has it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.library})"


class _Place(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Loaded(ctypes.Structure):
    """The beginning of what dl_iterate_phdr tells of a library."""

    _fields_ = (("base", ctypes.c_void_p), ("file", ctypes.c_char_p))


def active_allocator() -> ActiveAllocator:
    """Whose ``malloc`` is found first, and what else that library has. Goes by no name and no environment.

    Not by the address of ``malloc`` either: in programs linked to fixed addresses that lies in the program.
    """
    for library in _libraries():
        if _defines(library, "malloc"):
            known = {name: allocator.symbol for name, allocator in _KNOWN.items()} | {"glibc": "gnu_get_libc_version"}
            name = next((name for name, symbol in known.items() if _defines(library, symbol)), "unknown")
            return ActiveAllocator(name, library)
    return ActiveAllocator("unknown", "unknown")


def _libraries() -> list[str]:
    """Those of this process, in the order in which symbols are looked up."""
    found: list[str] = []

    def note(info: Any, size: int, data: int | None) -> int:
        if info.contents.file:  # the program itself has no name
            found.append(os.fsdecode(info.contents.file))
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)(note)
    ctypes.CDLL(None).dl_iterate_phdr(callback, None)
    return found


def _defines(file: str, symbol: str) -> bool:
    """Whether the library itself has the symbol, and not one that it links to."""
    try:
        library = ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
    except (AttributeError, OSError):
        return False
    place = _Place()
    return bool(library.dladdr(address, ctypes.byref(place))) and os.fsdecode(place.file or b"") == file


def idle_settings() -> dict[str, str]:
    """Allocator settings in the environment that do nothing, and why.

    One whose allocator is not in force, and one that was set or changed after this process started.
    """
    active = active_allocator().name
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        raw = b""
    started_with = dict(item.split("=", 1) for item in os.fsdecode(raw).split("\0") if "=" in item)
    idle = {}
    for name, value in os.environ.items():
        owner = next((a for a, known in _KNOWN.items() if name.startswith(known.variables)), None)
        if owner is None and name != "LD_PRELOAD":
            continue
        if raw and started_with.get(name) != value:
            idle[name] = "set after the process started, which is when it is read"
        elif owner is not None and owner != active:
            idle[name] = f"{owner} is not in force; {active} is"
    return idle
