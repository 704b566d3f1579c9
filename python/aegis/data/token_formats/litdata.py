"""litData's chunks of tokens: a folder with ``index.json`` and the chunks that it names, read only."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import DTYPES, Dtype, Source, TokenFile, register_format

__all__ = ["INDEX", "chunk_paths"]

INDEX = "index.json"
# The types of tokens by litData's numbers, of which torch's types and NumPy's have one series each.
_TYPES = {
    "no_header_tensor": {11: "uint8", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16"},
    "no_header_numpy": {2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32"},
}
Chunks = dict[str, dict[str, Any]]


def chunk_paths(index: str) -> list[str]:
    """The chunks that an ``index.json`` names, in its order.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no index of litData.
    """
    return [os.path.join(os.path.dirname(index), name) for name in _read_index(index)[1]]


def _read_index(path: str) -> tuple[dict[str, Any], Chunks]:
    """How the chunks were written, and each chunk's entry by its file name."""
    found = os.stat(path)
    return _parse_index(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=16)
def _parse_index(path: str, changed: int, size: int) -> tuple[dict[str, Any], Chunks]:
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
        config, chunks = dict(index["config"]), list(index["chunks"])
        entries = {str(chunk["filename"]): dict(chunk) for chunk in chunks}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: not a readable index of litData: {error!r}") from None
    for name in entries:
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise ValueError(f"{path}: expected chunks in its own folder, got {name!r}")
    if not entries or len(entries) != len(chunks):
        raise ValueError(f"{path}: expected at least one chunk, each named once, got {len(chunks)}")
    return config, entries


def _dtype(path: str, config: dict[str, Any]) -> str:
    """What tokens are stored as. ValueError where chunks are of anything else."""
    if config.get("item_loader") != "TokensLoader":
        raise ValueError(f"{path}: expected chunks written for litData's TokensLoader, got {config.get('item_loader')}")
    for option in ("compression", "encryption"):
        if config.get(option):
            raise ValueError(f"{path}: expected chunks without {option}, got {config[option]}")
    formats = config.get("data_format")
    fields = formats if isinstance(formats, list) else []
    serializer, _, number = str(fields[0]).partition(":") if len(fields) == 1 else ("", "", "")
    known = {str(code): name for code, name in _TYPES.get(serializer, {}).items()}
    if number not in known:
        raise ValueError(f"{path}: expected one field of {', '.join(DTYPES)} tokens, got data format {formats}")
    return known[number]


def _sniff(source: Source) -> bool:
    index = os.path.join(os.path.dirname(source.path), INDEX)
    if not source.path.endswith(".bin") or not os.path.exists(index):
        return False
    try:
        return os.path.basename(source.path) in _read_index(index)[1]
    except (OSError, ValueError):
        return False  # of something else


def _describe(source: Source, dtype: Dtype | None) -> TokenFile:
    folder, name = os.path.split(source.path)
    index = os.path.join(folder, INDEX)
    config, chunks = _read_index(index)
    if name not in chunks:
        raise ValueError(f"{source.path}: expected one of the chunks that {index} names")
    chunk, stored = chunks[name], _dtype(index, config)
    _, byte_offset, tokens, items = _C.read_litdata_chunk(source.path, stored)
    for what, value, key in (("items", items, "chunk_size"), ("tokens", tokens, "dim")):
        if chunk.get(key) not in (None, value):
            raise ValueError(f"{source.path}: expected {chunk[key]} {what}, as {index} says, got {value}")
    return TokenFile(source.path, "litdata", stored, byte_offset, tokens, source.size, documents=items)


def _documents(file: TokenFile) -> NDArray[np.int64]:
    return _C.read_litdata_chunk(file.path, file.dtype, documents=True)


register_format("litdata", _sniff, _describe, _documents)
