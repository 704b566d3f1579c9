"""The parts of a pack: the folder that they wait in, and how they become one file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aegis import _C
from aegis.data.formats import document_offsets
from aegis.data.pack_chunk import Job, smallest_dtype
from aegis.data.pack_plan import Chunk

__all__ = ["MERGED", "merge", "part_path", "parts_folder", "take_name"]

MERGED = "merged"
"""The name in the folder of what the parts become."""
_PLAN = "plan"
_PART = ".aegis"


@contextmanager
def parts_folder(target: Path, fingerprint: str) -> Iterator[Path]:
    """The folder beside ``target`` for the parts of this plan: made, or found as an earlier attempt left it.

    Removed at the end, and kept with the parts it holds where the block raises. What an attempt that was killed was
    writing is removed at once.

    Raises:
        ValueError: it is there for another plan, or another process is at work in it.
    """
    folder = target.with_name(target.name + ".parts")
    folder.mkdir(exist_ok=True)
    with open(folder / _PLAN, "a+") as plan:
        try:
            fcntl.flock(plan, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another process is packing there") from None
        plan.seek(0)
        found = plan.read()
        if found != fingerprint and any(map(_is_part, folder.iterdir())):
            raise ValueError(
                f"{folder}: holds parts of a pack of other inputs, or with other options: give the same ones to go on "
                "with it, or remove the folder"
            )
        if found != fingerprint:
            plan.truncate(0)
            plan.write(fingerprint)
            plan.flush()
            os.fsync(plan.fileno())
        _remove(path for path in folder.iterdir() if path.name != _PLAN and not _is_part(path))
        try:
            yield folder
        except BaseException:
            if not any(map(_is_part, folder.iterdir())):
                _remove_all(folder)
            raise
        _remove_all(folder)


def part_path(folder: Path, number: int) -> Path:
    """Where part ``number`` has its place."""
    return folder / f"{number:08d}{_PART}"


def _is_part(path: Path) -> bool:
    return path.suffix == _PART


def _remove_all(folder: Path) -> None:
    _remove(path for path in folder.iterdir() if path.name != _PLAN)
    _remove([folder / _PLAN])  # last: parts without a plan would be those of an unknown pack
    folder.rmdir()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def merge(job: Job, chunks: Sequence[Chunk], parts: Sequence[Path], path: Path, dtype: str | None) -> None:
    """Writes the parts one behind the other to ``path``, as ``dtype`` or the smallest type that holds all ids.

    Raises:
        ValueError: a part is damaged; an id does not fit into the dtype or the vocabulary; there is no token.
    """
    headers = [_header(part) for part in parts]
    largest = max((header["largest_id"] for header in headers), default=0)
    if not any(header["tokens"] for header in headers):
        raise ValueError("expected at least one token in what is to be packed, got none")
    if dtype is not None and largest > np.iinfo(dtype).max:
        raise ValueError(f"dtype: expected one that holds the largest id, {largest}, got {dtype}")
    if job.vocab_size is not None and largest >= job.vocab_size:
        raise ValueError(f"vocab_size: expected ids below it, {job.vocab_size}, the largest is {largest}")
    writer = _C.AegisWriter(str(path), dtype or smallest_dtype(largest))
    for chunk, part, header in zip(chunks, parts, headers, strict=True):
        before = writer.tokens
        data = part.read_bytes()
        with _to_be_removed():
            _C.verify_aegis_bytes(data, str(part))
        tokens = np.frombuffer(data, header["dtype"], header["tokens"], header["byte_offset"])
        writer.add(tokens)
        if header["documents"]:
            ends = _C.read_aegis_documents(str(part))[1:] + before
            writer.end_documents(ends if _ends_document(job, chunk) else ends[:-1])
    if job.files and all(file.documents is not None for file in job.files):
        begin = 0
        for source in job.files:
            offsets = document_offsets(source)
            assert offsets is not None
            writer.end_documents(offsets[1:] + begin)
            begin += source.tokens
    writer.finish(job.vocab_size or 0, job.hash)


def _ends_document(job: Job, chunk: Chunk) -> bool:
    return job.kind == "jsonl" or chunk.pieces[-1].whole


def _header(part: Path) -> dict[str, Any]:
    with open(part, "rb") as file, _to_be_removed():
        header = _C.read_aegis_header(file.read(4096), os.fstat(file.fileno()).st_size, str(part))
        if header is None:
            raise ValueError(f"{part}: expected an aegis file")
    return header


@contextmanager
def _to_be_removed() -> Iterator[None]:
    """Says what to do about a part that is not as it was written."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; remove this part and begin again") from None


def take_name(path: Path, target: Path) -> None:
    """Moves a finished file to its place, and that to disk."""
    path.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
