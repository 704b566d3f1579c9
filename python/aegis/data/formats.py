"""Token file formats: how each is recognised, where in a file its tokens lie, and where its documents begin.

A format is three functions under a name: ``sniff`` says whether a file is of it, ``describe`` finds the tokens
and checks that the file holds what it claims, ``documents`` reads the boundaries where the format records them.
Formats are tried in the order of registration; ``raw``, which nothing can recognise, is what remains.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from aegis import _C

__all__ = [
    "Dtype",
    "NpyHeader",
    "Source",
    "TokenFile",
    "describe",
    "document_offsets",
    "format_names",
    "look",
    "parse_dtype",
    "read_npy_header",
    "recognise",
    "register_format",
]

DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_HEAD = 4096


@dataclass(frozen=True)
class TokenFile:
    """Where the tokens of a file lie.

    ``tokens`` items of ``dtype`` from ``byte_offset`` on, in the other byte order when ``swapped``;
    ``size`` is the whole file's, in bytes; ``documents`` is None where the format records none, and so are
    the last four, which only aegis v1 records: ``tokenizer`` is the SHA-256 of its file, in hex, and ``checksum``
    covers every byte of the file.
    """

    path: str
    format: str
    dtype: str
    byte_offset: int
    tokens: int
    size: int
    swapped: bool = False
    documents: int | None = None
    vocab_size: int | None = None
    largest_id: int | None = None
    tokenizer: str | None = None
    checksum: int | None = None


class Source(NamedTuple):
    """A file as a format gets to see it: ``head`` is its first 4 KiB, ``size`` its length in bytes."""

    path: str
    head: bytes
    size: int


class Dtype(NamedTuple):
    """A token type by NumPy's name, and whether its byte order is the other one."""

    name: str
    swapped: bool = False


Sniff = Callable[[Source], bool]
Describe = Callable[[Source, Dtype | None], TokenFile]
Documents = Callable[[TokenFile], NDArray[np.int64]]


class _Format(NamedTuple):
    sniff: Sniff
    describe: Describe
    documents: Documents | None


_formats: dict[str, _Format] = {}


def register_format(name: str, sniff: Sniff, describe: Describe, documents: Documents | None = None) -> None:
    """Add a format, or replace the one of that name.

    Args:
        name: what ``format=`` calls it.
        sniff: whether a file is of this format, from its first bytes or its name; it must not raise.
        describe: where the tokens lie. Gets the ``dtype=`` of the user, or None; raises ValueError, with the
            path first, where the file is not what it claims to be.
        documents: what :func:`document_offsets` returns for a file whose ``documents`` is not None.
    """
    if name in ("auto", "raw"):
        raise ValueError(f"name: '{name}' is taken")
    _formats[name] = _Format(sniff, describe, documents)


def format_names() -> list[str]:
    """Every name that ``format=`` takes."""
    return ["auto", *_formats, "raw"]


def parse_dtype(dtype: Any) -> Dtype:
    """The token type that ``dtype`` names: a string, a NumPy dtype or type, a torch dtype, or what this returned.

    Raises:
        ValueError: it is none of uint8, uint16, uint32, int32, int64, in either byte order.
    """
    if isinstance(dtype, Dtype):
        return dtype
    given = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    try:
        found = np.dtype(given)
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {given}")
    return Dtype(found.name, not found.isnative)


def describe(path: str | os.PathLike[str], format: str = "auto", dtype: Any = None) -> TokenFile:
    """Find the tokens of a file.

    Args:
        path: the file.
        format: one of format_names(); "auto" recognises by content. A file that is not recognised is raw.
        dtype: what the tokens are stored as; only raw files need it. Where the file says it too, both must
            agree: neither a vocabulary nor a suffix ever decides.

    Raises:
        OSError: the file is missing, unreadable or a directory.
        ValueError: it is empty, of another format or dtype, or its size is not what it should be.

    Cost: reads one page.
    """
    if format not in format_names():
        raise ValueError(f"format: expected one of {', '.join(format_names())}, got '{format}'")
    wanted = None if dtype is None else parse_dtype(dtype)
    source = look(os.fspath(path))
    if format == "auto":
        format = recognise(source)
    if format == "raw":
        return _describe_raw(source, wanted)
    found = _formats[format].describe(source, wanted)
    if wanted is not None and wanted.name != found.dtype:
        raise ValueError(f"{source.path}: expected dtype {found.dtype}, as the file says, got {wanted.name}")
    return found


def recognise(source: Source) -> str:
    """The format of a file: the first that knows it, else "raw"."""
    return next((name for name, found in _formats.items() if found.sniff(source)), "raw")


def document_offsets(file: TokenFile) -> NDArray[np.int64] | None:
    """Where the documents of a file begin, or None where its format records none.

    Returns:
        (file.documents + 1,) int64, in tokens from the first of this file, ascending: the first is 0, the last
        ``file.tokens``. Two that are equal enclose an empty document.

    Raises:
        OSError: the file, or the one beside it that records them, cannot be read.
        ValueError: they contradict the file, or the file has changed since it was described.

    Cost: reads them all, 8 bytes each and for Megatron 12 bytes a sequence more. Nothing is kept.
    """
    if file.documents is None:
        return None
    documents = _formats[file.format].documents
    if documents is None:
        return None
    offsets = documents(file)
    ends = len(offsets) == file.documents + 1 and offsets[0] == 0 and offsets[-1] == file.tokens
    if not ends or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{file.path}: its documents have changed since the file was opened")
    return offsets


def look(path: str) -> Source:
    """The beginning and the size of a file. OSError where it cannot be read, ValueError where it is empty."""
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        hint = f"Expected a file, got a directory (a pattern such as '{Path(path) / '*.bin'}' names its files)"
        raise IsADirectoryError(errno.EISDIR, hint, path)
    if not stat.S_ISREG(kind):
        raise ValueError(f"{path}: expected a file, got a device, socket or pipe")
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise ValueError(f"{path}: the file is empty")
    return Source(path, head, size)


def _describe_raw(source: Source, dtype: Dtype | None) -> TokenFile:
    if dtype is None:
        raise ValueError(
            f"{source.path}: nothing in the file says what its tokens are stored as: give the dtype, such as uint16 "
            f"(formats that say it themselves: {', '.join(_formats)})"
        )
    tokens = _C.raw_token_count(source.size, dtype.name, source.path)
    return TokenFile(source.path, "raw", dtype.name, 0, tokens, source.size, dtype.swapped)


# llm.c and modded-nanogpt shards: 256 int32 numbers, then uint16 (GPT-2) or uint32 (Llama 3) tokens.

_LLMC_MAGIC = {magic.to_bytes(4, order) for magic in (20240520, 20240801, 20240522) for order in ("little", "big")}


def _describe_llmc(source: Source, dtype: Dtype | None) -> TokenFile:
    found = _C.read_token_header(source.head, source.size, source.path)
    if found is None:
        raise ValueError(f"{source.path}: expected an llm.c header, the file begins {source.head[:4].hex(' ')}")
    name, byte_offset, tokens, swapped = found
    return TokenFile(source.path, "llm.c", name, byte_offset, tokens, source.size, swapped)


# NumPy files: the header is NumPy's own business, the checks after it are ours.


class NpyHeader(NamedTuple):
    """What a .npy file says of itself; the data begins at byte ``offset``."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    offset: int


def read_npy_header(path: str) -> NpyHeader:
    """The header of a .npy file, parsed by NumPy. ValueError, with the path, where it cannot be."""
    with open(path, "rb") as file:
        try:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"expected version 1, 2 or 3, got {version[0]}.{version[1]}")
            # Version 3 is version 2 with field names in UTF-8 in place of Latin-1.
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran_order, dtype = read(file)
            if version == (3, 0) and dtype.names is not None:
                dtype.names = tuple(name.encode("latin1").decode("utf8") for name in dtype.names)
        except Exception as error:  # of many kinds: the header is a Python literal, parsed as one
            raise ValueError(f"{path}: not a readable .npy header: {error}") from None
        return NpyHeader(shape, fortran_order, dtype, file.tell())


def _describe_npy(source: Source, dtype: Dtype | None) -> TokenFile:
    shape, _, found, byte_offset = read_npy_header(source.path)
    if found.name not in DTYPES:
        raise ValueError(f"{source.path}: expected an array of {', '.join(DTYPES)}, got {found}")
    if len(shape) != 1:
        raise ValueError(
            f"{source.path}: expected a 1-D array of tokens, got shape {shape}; rows of a fixed size are records, "
            "not a stream of tokens"
        )
    if shape[0] == 0:
        raise ValueError(f"{source.path}: the array is empty")
    expected = byte_offset + shape[0] * found.itemsize
    if source.size != expected:
        raise ValueError(
            f"{source.path}: expected {expected} bytes (header {byte_offset} + {shape[0]} {found.name} tokens), got "
            f"{source.size} ({abs(source.size - expected)} {'too many' if source.size > expected else 'missing'})"
        )
    return TokenFile(source.path, "npy", found.name, byte_offset, shape[0], source.size, not found.isnative)


register_format("llm.c", lambda source: source.head[:4] in _LLMC_MAGIC, _describe_llmc)
register_format("npy", lambda source: source.head.startswith(npy.MAGIC_PREFIX), _describe_npy)
