"""A CSV file that is written in whole lines, rotates by size, and survives a full disk."""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["RotatingCsv", "read_telemetry"]


class RotatingCsv:
    """``NAME.csv``, and full ones before it as ``NAME.1.csv``, ``NAME.2.csv``, … in their order; each has the header.

    Args:
        path: the file; its folder is made when missing.
        columns: the header.
        max_bytes: a file that has this size is put away before the next lines.
        keep: at most so many older files stay, the newest; None keeps all.
        replace: an older file there, with its parts, is removed.

    Raises:
        FileExistsError: there is such a file, and ``replace`` is not set.
        OSError: the folder or the file cannot be written.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], *, max_bytes: int, keep: int | None, replace: bool = False
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self._header = (",".join(columns) + "\n").encode()
        self._size = 0
        self._fd = -1
        path.parent.mkdir(parents=True, exist_ok=True)
        before = [*_parts(path), path] if path.exists() else _parts(path)
        if before and not replace:
            raise FileExistsError(f"path: expected no such file (or replace=True), but there is {before[-1]}")
        for old in before:
            old.unlink()
        self._number = 1
        self._open()

    def append(self, lines: bytes) -> None:
        """Adds whole lines, all or none.

        Raises:
            OSError: they could not be written; the file ends where it did before.
        """
        if self._fd < 0:
            self._open()
        elif self._size >= self.max_bytes:
            self._put_away()
        self._write(lines)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._size = 0
        try:
            self._write(self._header)
        except OSError:
            self.close()
            raise

    def _put_away(self) -> None:
        os.replace(self.path, self.path.with_suffix(f".{self._number}{self.path.suffix}"))
        self.close()  # only now: _open() would cut a file that could not be put away
        self._number += 1
        if self.keep is not None:
            parts = _parts(self.path)
            for old in parts[: len(parts) - self.keep]:
                old.unlink()
        self._open()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)


def _parts(path: Path) -> list[Path]:
    """The files put away, oldest first."""
    pattern = re.compile(re.escape(path.stem) + r"\.(\d+)" + re.escape(path.suffix))
    found = []
    if path.parent.is_dir():
        for other in path.parent.iterdir():
            if match := pattern.fullmatch(other.name):
                found.append((int(match[1]), other))
    return [other for _, other in sorted(found)]


def read_telemetry(path: str | os.PathLike[str]) -> dict[str, NDArray[np.float64]]:
    """The columns of a telemetry file and of the parts that were put away before it; empty cells are NaN.

    A last line without its end, as a killed process may leave it, is left out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a file; says in which line.
    """
    path = Path(path)
    columns: list[str] | None = None
    rows: list[list[float]] = []
    for part in [*_parts(path), path]:
        lines = part.read_text().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        reader = csv.reader(lines)
        header = _next(reader, part)
        if header is None:
            continue
        if columns is not None and header != columns:
            raise ValueError(f"{part}: expected the header of the parts before it, got {','.join(header)}")
        columns = header
        while (row := _next(reader, part)) is not None:
            try:
                rows.append([float(cell) if cell else np.nan for cell in row])
            except ValueError as error:
                raise ValueError(f"{part}, line {reader.line_num}: expected numbers, got: {error}") from error
            if len(row) != len(columns):
                raise ValueError(
                    f"{part}, line {reader.line_num}: expected {len(columns)} cells as in the header, got {len(row)}"
                )
    if columns is None:
        raise ValueError(f"{path}: expected a header, got an empty file")
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(columns))
    return {name: table[:, i] for i, name in enumerate(columns)}


def _next(reader: Iterator[list[str]], part: Path) -> list[str] | None:
    """The next row, or None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:  # a cell of more than 128 KiB, a line end within one
        raise ValueError(f"{part}: expected CSV, got: {error}") from error
