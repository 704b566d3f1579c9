"""A look at the header of a GGUF file before the ``gguf`` package reads it.

That package believes the lengths it finds: of an array longer than the file it collects empty elements until memory
ends.
"""

from __future__ import annotations

import mmap
import struct
from os import PathLike

__all__ = ["check_header"]

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type in the file."""
STRING, ARRAY = 8, 9

LEAST_FIELD, LEAST_TENSOR = 13, 24
"""Bytes that a field and the description of a tensor have at least."""


def check_header(path: str | PathLike[str]) -> None:
    """Walks through the fields of the header.

    Raises:
        ValueError: no GGUF file of version 2 or 3, or counts and lengths of more than the file holds.
    """
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"path: expected a GGUF file, got {path}, which does not begin with 'GGUF'")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data, path).walk()


class _Header:
    def __init__(self, data: mmap.mmap, path: str | PathLike[str]) -> None:
        self.data, self.path, self.at = data, path, 4
        self.order = "<"

    def walk(self) -> None:
        version = self.number("I")
        if version & 0xFFFF == 0:  # written with the other order of bytes
            self.order, self.at = ">", 4
            version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"path: expected GGUF version 2 or 3, got {version} in {self.path}")
        tensors, fields = self.number("Q"), self.number("Q")
        self.need(fields, LEAST_FIELD)
        for _ in range(fields):
            self.skip(self.number("Q"), 1)
            self.value(self.number("I"))
        self.need(tensors, LEAST_TENSOR)

    def value(self, kind: int) -> None:
        if kind == STRING:
            self.skip(self.number("Q"), 1)
        elif kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            if kind == STRING:
                self.need(count, 8)
                for _ in range(count):
                    self.value(STRING)
            else:
                self.skip(count, self.size_of(kind))
        else:
            self.skip(1, self.size_of(kind))

    def size_of(self, kind: int) -> int:
        if kind not in SIZES:
            raise ValueError(f"path: expected types of values as GGUF has them, got {kind} in {self.path}")
        return SIZES[kind]

    def number(self, kind: str) -> int:
        begin = self.at
        self.skip(1, 4 if kind == "I" else 8)
        return int(struct.unpack_from(self.order + kind, self.data, begin)[0])

    def skip(self, count: int, size: int) -> None:
        self.need(count, size)
        self.at += count * size

    def need(self, count: int, size: int) -> None:
        if count * size > len(self.data) - self.at:
            raise ValueError(
                f"path: expected lengths within the file, got {count} × {size} bytes at byte {self.at} of the "
                f"{len(self.data)} of {self.path}"
            )
