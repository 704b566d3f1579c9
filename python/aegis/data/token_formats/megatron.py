"""Megatron-LM's indexed data sets: ``NAME.bin``, which is nothing but tokens, and ``NAME.idx``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import Dtype, Source, TokenFile, look, register_format

__all__: list[str] = []

_MAGIC = b"MMIDIDX\0\0"


def _index_of(path: str) -> str:
    return path.removesuffix(".bin") + ".idx"


def _sniff(source: Source) -> bool:
    if source.head.startswith(_MAGIC):
        return True
    if not source.path.endswith(".bin"):
        return False
    try:
        with open(_index_of(source.path), "rb") as index:
            return index.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _describe(source: Source, dtype: Dtype | None) -> TokenFile:
    if source.head.startswith(_MAGIC):
        source = look(source.path.removesuffix(".idx") + ".bin")
    path, size = source.path, source.size
    name, byte_offset, tokens, documents = _C.read_megatron_index(look(_index_of(path)).path, path, size)
    return TokenFile(path, "megatron", name, byte_offset, tokens, size, documents=documents)


def _documents(file: TokenFile) -> NDArray[np.int64]:
    return _C.read_megatron_index(_index_of(file.path), file.path, file.size, documents=True)


register_format("megatron", _sniff, _describe, _documents)
