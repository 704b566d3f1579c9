"""From what a user gives as paths to a list of files, the same on every machine."""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterable

from aegis.data.token_formats import litdata

__all__ = ["Paths", "expand_paths", "natural_key"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def natural_key(path: str) -> tuple[list[str | int], str]:
    """Sorts shard_2 before shard_10. Equal numbers (1 and 01) are told apart by spelling."""
    # Splitting by digits alternates text and number, text first: kinds never meet in a comparison.
    parts: list[str | int] = list(re.split(r"([0-9]+)", path))
    parts[1::2] = map(int, parts[1::2])
    return parts, path


def expand_paths(paths: Paths) -> list[str]:
    """The files that ``paths`` names, as absolute paths.

    A pattern (``*``, ``?``, ``[``, ``**``) stands for the files it matches in natural order, whatever order
    the folder lists them in; a path that exists is taken as it is, patterns or not. A sequence keeps its
    order, and a file named twice is read twice. A folder with the ``index.json`` of litData, or that file,
    stands for its chunks; a path without its suffix for the ``.bin`` of a Megatron pair.

    Raises:
        FileNotFoundError: a pattern matches nothing, or no path was given.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file for path in given for file in _expand(os.fspath(path))]
    if not files:
        raise FileNotFoundError(errno.ENOENT, "paths: expected at least one token file", str(paths))
    return files


def _expand(path: str) -> list[str]:
    path = os.path.abspath(path)
    index = os.path.join(path, litdata.INDEX) if os.path.isdir(path) else path
    if os.path.basename(index) == litdata.INDEX and os.path.exists(index):
        return litdata.chunk_paths(index)
    if os.path.exists(path) or not glob.has_magic(path):
        pair = not os.path.exists(path) and os.path.exists(f"{path}.idx")
        return [f"{path}.bin" if pair else path]
    found = [match for match in glob.glob(path, recursive=True) if not os.path.isdir(match)]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "paths: no file matches the pattern", path)
    return sorted(found, key=natural_key)
