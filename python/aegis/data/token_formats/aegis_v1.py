"""aegis v1 (``.aegis``): what :func:`aegis.data.pack` writes. Every byte of it is in docs/notes/aegis_v1.md."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import Dtype, Source, TokenFile, register_format

__all__ = ["MAGIC", "verify"]

MAGIC = b"\x89AEGIS\r\n"


def _describe(source: Source, dtype: Dtype | None) -> TokenFile:
    header = _C.read_aegis_header(source.head, source.size, source.path)
    if header is None:
        raise ValueError(f"{source.path}: expected an aegis file, the file begins {source.head[:8].hex(' ')}")
    if header["tokens"] == 0:
        raise ValueError(f"{source.path}: expected at least 1 token, got none")
    tokenizer = header["tokenizer"].hex() if any(header["tokenizer"]) else None
    return TokenFile(
        source.path,
        "aegis",
        header["dtype"],
        header["byte_offset"],
        header["tokens"],
        source.size,
        documents=header["documents"],
        vocab_size=header["vocab_size"] or None,
        largest_id=header["largest_id"],
        tokenizer=tokenizer,
        checksum=header["checksum"],
    )


def _documents(file: TokenFile) -> NDArray[np.int64]:
    return _C.read_aegis_documents(file.path)


def verify(path: str | os.PathLike[str], threads: int = 0) -> None:
    """Read all of an aegis file and check everything in it: checksums, document offsets, ids, largest id.

    Args:
        path: the file.
        threads: at most so many; 0 for one on each usable core.

    Raises:
        ValueError: something is not as the file says; names the block and its bytes.
        RuntimeError: the file cannot be read.
    """
    _C.verify_aegis_file(os.fspath(path), threads or len(os.sched_getaffinity(0)))


register_format("aegis", lambda source: source.head.startswith(MAGIC), _describe, _documents)
