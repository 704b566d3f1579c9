"""Files that are whole or not there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_file", "open_regular", "read_regular"]


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes its name only once it is complete and on disk.

    An exception inside the block, or a crash, leaves whatever stood at ``path`` before untouched.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, survives a power cut
    finally:
        os.close(folder)


def read_regular(path: Path, *, most: int) -> bytes:
    """All of a regular file that has at most ``most`` bytes.

    Raises:
        OSError: it is missing or unreadable.
        ValueError: it is larger, or a device, pipe or folder: nothing is waited for and nothing endless is read.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path}: expected at most {most} bytes, got more")
    return data


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading. OSError where it is missing or unreadable, ValueError where it is a device, a
    pipe or a folder, which opening does not wait for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path}: expected a regular file, got a device, a pipe or a folder")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
