"""What a pack has to do: its inputs, cut into chunks that do not depend on who works on them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["CHUNK_BYTES", "Chunk", "Input", "Piece", "fingerprint", "plan_chunks"]

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Input:
    """A file to pack, as it was when the plan was made."""

    path: str
    size: int
    changed: int  # mtime in ns

    @staticmethod
    def look(path: str) -> Input:
        """OSError where there is no such file, ValueError where it is none."""
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device, socket or pipe"
            raise ValueError(f"{path}: expected a file, got {kind}")
        return Input(path, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Piece:
    """Bytes ``begin`` to ``end`` of a file. Of JSON lines: the lines that begin there."""

    path: str
    begin: int
    end: int
    whole: bool
    """Whether the file ends here, and with it the document of a text file."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive pieces that one worker makes a part of."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(piece.end - piece.begin for piece in self.pieces)


def plan_chunks(inputs: Sequence[Input], *, divisible: bool, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """The inputs in order, in chunks of about ``chunk_bytes``; a file is cut only where ``divisible``."""
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    room = chunk_bytes
    for piece in _pieces(inputs, chunk_bytes if divisible else None):
        if pieces and piece.end - piece.begin > room:
            chunks.append(Chunk(tuple(pieces)))
            pieces, room = [], chunk_bytes
        pieces.append(piece)
        room -= piece.end - piece.begin
    if pieces:
        chunks.append(Chunk(tuple(pieces)))
    return chunks


def _pieces(inputs: Sequence[Input], most: int | None) -> Iterator[Piece]:
    for source in inputs:
        step = most or max(source.size, 1)
        for begin in range(0, max(source.size, 1), step):
            end = min(begin + step, source.size)
            yield Piece(source.path, begin, end, end == source.size)


def fingerprint(inputs: Sequence[Input], settings: Sequence[object]) -> str:
    """64 hex digits that change with the files, their order and the settings."""
    digest = hashlib.sha256(repr(tuple(settings)).encode())
    for source in inputs:
        digest.update(repr((source.path, source.size, source.changed)).encode())
    return digest.hexdigest()
