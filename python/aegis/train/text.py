"""Text into token files: every byte is a token (uint8), every document ends with a zero byte."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegis.files import atomic_file

__all__ = ["PackedText", "pack_text", "standard_library", "text_files"]

BYTE_VOCABULARY = 256
_VALIDATION_SHARE = 20  # the last twentieth of the tokens
_SNIFF_BYTES = 8192
_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class PackedText:
    """The two token files that :func:`pack_text` wrote; lengths are in tokens, that is in bytes."""

    train: Path
    validation: Path
    train_tokens: int
    validation_tokens: int
    documents: int


def standard_library() -> list[Path]:
    """The sources of Python's standard library, without its tests, sorted: about 12 MB on every machine."""
    top = Path(sysconfig.get_path("stdlib"))
    return [path for path in text_files([top]) if path.suffix == ".py"]


def text_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those in the folders named, sorted within each folder.

    A file named is taken as it is. From folders, hidden files and folders, installed packages, tests and
    files that look binary (a zero byte near the front) are left out; links to folders are not followed.

    Raises:
        FileNotFoundError: a path that is neither a file nor a folder.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _files_below(path)
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"text: expected a file or a folder, got {path}")
    return found


def _files_below(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES and name[0] != ".")
        for name in sorted(names):
            path = Path(folder, name)
            if name[0] != "." and path.is_file() and not _looks_binary(path):
                yield path


def _looks_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(_SNIFF_BYTES)


def pack_text(folder: Path, paths: Sequence[Path] = ()) -> PackedText:
    """Write ``train.bin`` and ``val.bin`` (raw uint8 tokens) into ``folder``, which is made when missing.

    Args:
        folder: where the two files go; each replaces an older one only when it is complete.
        paths: text files and folders (see :func:`text_files`); none means the standard library's sources.

    Returns:
        The files and their lengths. The same text gives the same bytes. Validation text is the end of the
        stream, so that no window of it was trained on.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: no text was found.

    Cost: one sequential read and write; memory for one document at a time.
    """
    documents = text_files(paths) if paths else standard_library()
    folder.mkdir(parents=True, exist_ok=True)
    train, validation = folder / "train.bin", folder / "val.bin"
    with atomic_file(train) as stream:
        for document in documents:
            stream.write(document.read_bytes() + b"\0")
        total = stream.tell()
        if total == len(documents):
            names = ", ".join(map(str, paths)) or "the standard library"
            raise ValueError(f"text: expected at least one byte, found none in {names}")
        cut = total - total // _VALIDATION_SHARE
        stream.seek(cut)
        with atomic_file(validation) as tail:
            while chunk := stream.read(1 << 20):
                tail.write(chunk)
        stream.truncate(cut)
    return PackedText(train, validation, cut, total - cut, len(documents))
