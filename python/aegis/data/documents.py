"""Where documents begin in token files, and the rows that are made of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import TokenFile, document_offsets
from aegis.data.token_batch import FIELDS

__all__ = ["LAYOUTS", "DocumentOptions", "find_offsets", "make_rows"]

LAYOUTS = ("stream", "aligned", "packed")


@dataclass(frozen=True)
class DocumentOptions:
    """How :class:`~aegis.TokenDataset` is to treat documents, as its arguments explain."""

    layout: str = "stream"
    fields: tuple[str, ...] = ()
    ignore_index: int | None = -100
    max_documents: int | None = None

    def check(self, *, stride: int | None) -> None:
        """ValueError naming the argument that is wrong."""
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        unknown = [name for name in self.fields if name not in FIELDS]
        if unknown or len(set(self.fields)) < len(self.fields):
            raise ValueError(f"fields: expected some of {', '.join(FIELDS)}, each once, got {self.fields}")
        if stride is not None and self.layout != "stream":
            raise ValueError(f"stride: expected None with layout={self.layout!r}, which chooses where rows begin")
        for name in ("ignore_index", "max_documents"):
            if not isinstance(getattr(self, name), int | None):
                raise TypeError(f"{name}: expected an int or None, got {getattr(self, name)!r}")
        if self.max_documents is not None and "cu_seqlens" not in self.fields:
            raise ValueError("max_documents: expected 'cu_seqlens' among the fields, whose length it fixes")


def find_offsets(
    store: _C.TokenStore,
    files: Sequence[TokenFile],
    given: Any,
    *,
    bos_id: int | None,
    eos_id: int | None,
) -> list[NDArray[np.int64]] | None:
    """For each file where its documents begin, and its end; None where nobody asks for documents.

    ``given`` is True for where the files say it themselves, or an array, or one for each file.
    """
    asked = given is not None and given is not False
    if asked + (bos_id is not None) + (eos_id is not None) > 1:
        raise ValueError("documents, bos_id, eos_id: expected at most one of them")
    count = len(files)
    for name, token, begins in (("bos_id", bos_id, True), ("eos_id", eos_id, False)):
        if token is not None:
            largest = np.iinfo(store.dtype).max
            if not 0 <= operator.index(token) <= largest:
                raise ValueError(f"{name}: expected an id from 0 to {largest}, as {store.dtype} holds, got {token}")
            return [_C.find_documents(store, at, operator.index(token), begins) for at in range(count)]
    if not asked:
        return None
    if given is True:
        return [_recorded(file) for file in files]
    arrays = [given] if isinstance(given, np.ndarray) else list(given)
    if len(arrays) != count:
        raise ValueError(f"documents: expected one array of offsets for each of {count} files, got {len(arrays)}")
    return [_checked(np.asarray(array), at) for at, array in enumerate(arrays)]


def _recorded(file: TokenFile) -> NDArray[np.int64]:
    offsets = document_offsets(file)
    if offsets is None:
        raise ValueError(
            f"{file.path}: a file of format {file.format!r} does not say where its documents begin: expected bos_id=, "
            "eos_id= or documents="
        )
    return offsets


def _checked(array: NDArray[Any], at: int) -> NDArray[np.int64]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"documents: expected 1-D arrays of ints, got {array.dtype} {array.shape} for file {at}")
    if array.size and int(array.max()) >= 2**63:
        raise ValueError(f"documents: expected offsets below 2**63, got {array.max()} for file {at}")
    return array.astype(np.int64)


def make_rows(
    windows: _C.TokenWindows | None, documents: _C.Documents | None, block_size: int, layout: str
) -> _C.TokenRows:
    """The rows of a layout: ``windows`` are those of "stream", and the others need ``documents``."""
    if windows is not None:
        return _C.StreamRows(windows, documents)
    assert documents is not None
    return (_C.AlignedRows if layout == "aligned" else _C.PackedRows)(documents, block_size)
