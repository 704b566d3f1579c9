"""datatrove's tokenized files: ``NAME.ds`` of 2- or 4-byte tokens, and ``NAME.ds.index`` with the documents' ends."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import Dtype, Source, TokenFile, look, register_format

__all__: list[str] = []


def _sniff(source: Source) -> bool:
    return source.path.endswith(".ds") and os.path.exists(f"{source.path}.index")


def _describe(source: Source, dtype: Dtype | None) -> TokenFile:
    path, size = source.path, source.size
    name, byte_offset, tokens, documents = _C.read_datatrove_index(look(f"{path}.index").path, path, size)
    _check_metadata(path, np.dtype(name).itemsize, tokens)
    return TokenFile(path, "datatrove", name, byte_offset, tokens, size, documents=documents)


def _check_metadata(path: str, item: int, tokens: int) -> None:
    """Where there is a ``.ds.metadata``: a line ``tokenizer|bytes per token``, a line with the token count."""
    try:
        with open(f"{path}.metadata", encoding="utf-8") as file:
            lines = file.read(1 << 16).splitlines()
    except FileNotFoundError:
        return
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}.metadata: expected UTF-8, got {error.object[error.start]:#04x}") from None
    _, bar, stated = lines[0].rpartition("|") if lines else ("", "", "")
    if bar and stated.strip() != str(item):
        raise ValueError(f"{path}.metadata: expected tokens of {item} bytes, as the index says, got {stated.strip()!r}")
    if len(lines) > 1 and lines[1].strip() != str(tokens):
        raise ValueError(f"{path}.metadata: expected {tokens} tokens, as the index says, got {lines[1].strip()!r}")


def _documents(file: TokenFile) -> NDArray[np.int64]:
    return _C.read_datatrove_index(f"{file.path}.index", file.path, file.size, documents=True)


register_format("datatrove", _sniff, _describe, _documents)
