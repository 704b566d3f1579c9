"""Token files as a map-style data set of training windows."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from aegis import _C, ops
from aegis.data.documents import DocumentOptions, find_offsets, make_rows
from aegis.data.dtypes import DTYPES
from aegis.data.formats import TokenFile, describe, parse_dtype
from aegis.data.paths import Paths, expand_paths
from aegis.data.token_batch import FIELDS, Structure

__all__ = ["DIGEST", "TokenDataset", "fill_rows", "open_store"]

DIGEST = 8  # hex digits of each in TokenDataset.file_digests()
_EDGE = 4096  # bytes of each end of a file that go into the fingerprint


def open_store(files: Sequence[TokenFile]) -> _C.TokenStore:
    """Map the files one after another."""
    return _C.TokenStore([(f.path, f.dtype, f.byte_offset, f.tokens, f.swapped) for f in files])


def fill_rows(filler: _C.BatchFiller, rows: NDArray[np.int64]) -> list[Tensor]:
    """The tensors of a batch of these rows, written here and now."""
    shapes = [(DTYPES[code, bits], (len(rows), *shape)) for code, bits, shape in filler.fields]
    tensors = [torch.empty(shape, dtype=dtype, device="cpu") for dtype, shape in shapes]
    filler.fill_into(rows, [tensor.data_ptr() for tensor in tensors])
    return tensors


class TokenDataset(Dataset[Any]):
    """Windows over one or many token files: ``ds[i]`` is ``(x, y)``, int64, with y one token later than x.

    The files are mapped, not read: opening costs a page per file, and the memory belongs to the page cache,
    shared by every process that reads them. Windows never cross files. Works with FlatArenaDataLoader and
    with torch's DataLoader, whose workers may be forked or spawned: a data set is pickled by its paths.

    Args:
        paths: a path, a pattern such as ``"shard_*.bin"`` (matches in natural order), or a sequence of either
            (in the order given).
        block_size: tokens in x and in y. A window takes ``block_size + 1`` tokens.
        format: "auto" recognises llm.c shards, 1-D .npy files, aegis files, Megatron and datatrove pairs and
            litData chunks (docs/guide/tokens.md); anything else is raw.
        dtype: what raw tokens are stored as: uint8, uint16, uint32, int32 or int64. Other formats say so
            themselves; a dtype given all the same must agree.
        stride: tokens from one window to the next; ``block_size`` when None. With n tokens in a file,
            ``stride=block_size`` gives ``(n - 1) // block_size`` disjoint blocks and ``stride=1`` every one of
            ``n - block_size`` starts.
        vocab_size: when given, every id of every file is checked to be below it. Reads all of the data once.
        documents: True for where the files say that documents begin, or offsets of one's own: for each file an array,
            in tokens, from 0 to the file's count, as long as there are documents and one more. Where documents are
            known, nothing is predicted across their ends: see ``ignore_index``.
        bos_id, eos_id: instead, the token that begins, or ends, every document. Reads all of the data once.
        layout: how documents become rows of ``block_size`` tokens. "stream": windows ``stride`` apart, whatever they
            cut. "aligned": each row begins with a document, and the rest of the one that it cuts off is left out.
            "packed": whole documents side by side by best-fit decreasing, in groups of 256 rows and without padding;
            only documents longer than a row and the few that fit nowhere are cut, and each token is in one row.
        fields: names of what a batch has beside inputs and targets: "document_ids", "position_ids", "cu_seqlens" and
            "valid". Samples and batches are then a :class:`~aegis.TokenBatch`, which says what they are, and not a
            pair.
        ignore_index: the target at a document's end, which losses leave out; None, in "stream" alone, for the token
            that follows in the file.
        max_documents: gives cu_seqlens the fixed length ``batch * max_documents + 1``, the last entry repeated, as a
            CUDA graph needs it. A row of more documents is an error when it is read.

    Raises:
        OSError: a file is missing, unreadable or a directory, or a pattern matches nothing.
        ValueError: a file is not what it should be, files differ in dtype, an id is outside the vocabulary,
            block_size or stride is below 1, or no file has more than block_size tokens.
        RuntimeError: the system refuses to map a file. Also, from reading, when a file was cut short while in
            use: never a crash, never zeroes in place of tokens.
    """

    def __init__(
        self,
        paths: Paths,
        block_size: int,
        *,
        format: str = "auto",
        dtype: Any = None,
        stride: int | None = None,
        vocab_size: int | None = None,
        documents: Any = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        layout: str = "stream",
        fields: Sequence[str] = (),
        ignore_index: int | None = -100,
        max_documents: int | None = None,
    ) -> None:
        block_size = operator.index(block_size)
        fields = (fields,) if isinstance(fields, str) else tuple(fields)
        options = DocumentOptions(layout, fields, ignore_index, max_documents)
        options.check(stride=stride)
        stride = block_size if stride is None else operator.index(stride)
        dtype = None if dtype is None else parse_dtype(dtype)  # once, not for every file
        files = [describe(path, format, dtype) for path in expand_paths(paths)]
        store = open_store(files)
        if documents is None and bos_id is None and eos_id is None:
            documents = layout != "stream" or any(name != "valid" for name in fields)
        offsets = find_offsets(store, files, documents, bos_id=bos_id, eos_id=eos_id)
        self._open(files, store, block_size, stride, options, offsets)
        if vocab_size is not None:
            self._check_ids(operator.index(vocab_size))

    def _open(
        self,
        files: Sequence[TokenFile],
        store: _C.TokenStore,
        block_size: int,
        stride: int,
        options: DocumentOptions,
        offsets: list[NDArray[np.int64]] | None,
    ) -> None:
        self._files = tuple(files)
        self._store = store
        self._block_size, self._stride, self._options = block_size, stride, options
        self._documents = None if offsets is None else _C.Documents(store, offsets)
        self._windows = _C.TokenWindows(store, block_size, stride) if options.layout == "stream" else None
        self._rows: _C.TokenRows = make_rows(self._windows, self._documents, block_size, options.layout)
        self._plain = self._documents is None and not options.fields
        self._structure = Structure(self.fields, options.max_documents)
        self._row_filler: _C.RowFiller | None = None
        if not self._plain:
            self._row_filler = self.row_filler()
        self._segments = self._store.segments
        self._arena: Tensor = torch.utils.dlpack.from_dlpack(self._store.dlpack())
        self._file_digests: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        """Row ``index``: two int64 tensors of ``block_size`` tokens, or with ``fields`` a :class:`~aegis.TokenBatch`.

        Negative indices count from the end.
        """
        if self._windows is None or not self._plain or index == _C.PADDING:
            return self.__getitems__([index])[0]
        index = operator.index(index)
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"index: expected {-count} to {count - 1}, got {index}")
        at = index if index >= 0 else index + count
        offset = torch.tensor([self._windows.offset(at)])
        x, y = torch.ops.aegis.extract_batch(self._arena, offset, self.block_size)
        self._windows.verify_one(at)  # after reading: a file cut short reads as zeroes
        return x.view(-1), y.view(-1)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many rows by one call, as views of two matrices; torch's DataLoader calls this for a batch."""
        rows = self._indices(indices)
        if self._options.fields:
            return [self._structure.sample(self._fill(rows[at : at + 1])) for at in range(len(rows))]
        padded = bool((rows == _C.PADDING).any())
        x, y = self._extract(rows) if self._plain and not padded else self._fill(rows)
        return list(zip(x.unbind(), y.unbind(), strict=True))

    def __repr__(self) -> str:
        how = f"stride={self.stride}" if self._options.layout == "stream" else f"layout={self._options.layout!r}"
        documents = "" if self._documents is None else f"{len(self._documents)} documents, "
        return (
            f"TokenDataset({len(self)} windows: block_size={self.block_size}, {how}; {documents}"
            f"{self.tokens} {str(self.dtype).removeprefix('torch.')} tokens in {len(self._files)} "
            f"file{'s' if len(self._files) > 1 else ''})"
        )

    @property
    def arena(self) -> Tensor:
        """(n,) all files as one flat tensor over the mapped memory, without a copy.

        For one file n is its token count. Several files lie at page boundaries, with elements between them
        that are no tokens: see ``files`` and ``segments``. Writing to it changes this process's private copy
        of a page, never a file.
        """
        return self._arena

    @property
    def segments(self) -> list[tuple[int, int]]:
        """For each file, where its tokens begin in the arena and how many they are."""
        return list(self._segments)

    def filler(self, *, pads: bool = False, widen: bool = True) -> _C.BatchFiller:
        """What writes batches of these rows, for the C++ feeder; ``pads``: also rows of padding. ``widen=False``, for
        plain windows alone: one tensor of ``block_size + 1`` tokens a row, in the files' dtype."""
        if self._row_filler is not None:
            return self._row_filler
        if pads:
            return self.row_filler()
        assert self._windows is not None
        return _C.TokenFiller(self._windows, widen=widen)

    def row_filler(self) -> _C.RowFiller:
        """The filler of rows that have documents or fields."""
        return _C.RowFiller([self.source], self.fields, max_documents=self._options.max_documents)

    @property
    def source(self) -> tuple[_C.TokenRows, int | None]:
        """The rows, and what the target of a document's last token is, as the C++ feeder takes them."""
        return self._rows, None if self._documents is None else self._options.ignore_index

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch has beside inputs and targets, in the order in which it is written."""
        return tuple(sorted(self._options.fields, key=FIELDS.index))

    @property
    def max_documents(self) -> int | None:
        """The most documents a row may have, where that fixes the length of cu_seqlens."""
        return self._options.max_documents

    @property
    def structure(self) -> Structure | None:
        """Makes a batch of the tensors that a filler has written; None where it is the list of them."""
        return self._structure if self._options.fields else None

    @property
    def files(self) -> tuple[TokenFile, ...]:
        """What is known of each file: path, format, dtype, offset, tokens."""
        return self._files

    @property
    def paths(self) -> list[str]:
        """Absolute paths, in the order of the windows."""
        return [file.path for file in self._files]

    @property
    def block_size(self) -> int:
        """Tokens in x and in y."""
        return self._block_size

    @property
    def stride(self) -> int:
        """Tokens from one window to the next in a file."""
        return self._stride

    @property
    def plain(self) -> bool:
        """Whether rows are windows of tokens and nothing more: no documents, no fields."""
        return self._plain and self._windows is not None

    @property
    def layout(self) -> str:
        """How documents become rows: "stream", "aligned" or "packed"."""
        return self._options.layout

    @property
    def documents(self) -> int | None:
        """Documents in all files, the empty ones left out; None where they are not known."""
        return None if self._documents is None else len(self._documents)

    @property
    def rows(self) -> _C.TokenRows:
        """Which stretches of the arena make up a row: ``rows.pieces(i)`` lists begin, count and whether the document
        ends there."""
        return self._rows

    @property
    def dtype(self) -> torch.dtype:
        """What the tokens are stored as. Batches are int64 whatever this is."""
        return self._arena.dtype

    @property
    def tokens(self) -> int:
        """Tokens in all files."""
        return self._store.tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens that are never delivered: at the ends of files, and where "aligned" rows cut documents off."""
        return self._rows.tail_tokens

    def offsets(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> Tensor:
        """(len(indices),) int64: where these windows begin in the arena. IndexError where there is no such, and
        ValueError with a layout of rows that are no windows."""
        if self._windows is None:
            raise ValueError(f"offsets: expected layout='stream', got {self.layout!r}: see rows")
        return torch.from_numpy(self._windows.offsets(self._indices(indices)))

    def verify(self) -> None:
        """RuntimeError, with the path, if a file is shorter than when it was opened, or a read of it failed since. A
        file that was cut short and made whole again, and not read meanwhile, is not noticed.

        Reading through this data set or a loader checks this by itself; reading ``arena`` does not. A data
        set made anew reads the files as they are now. Cost: one system call per file.
        """
        self._store.verify_all()

    def fingerprint(self, files: int | None = None) -> str:
        """16 hex digits that change with the data, its order or how it is cut, and not with its place.

        From SHA-256 of dtype, block_size, stride and layout and, for each file, its token count, the first and last
        4 KiB of its tokens and where up to 8,192 of its documents begin; of an aegis file also the checksum in its
        header, another for other tokens. Two ranks, or a run and its resumption, read the same when these agree.
        ``files``: of so many files alone. Computed once. Cost: two pages per file.
        """
        digest = hashlib.sha256(f"{self._store.dtype} {self.block_size} {self.stride}".encode())
        if self._documents is not None:
            digest.update(f" {self.layout}".encode())
        for own in self._digests()[:files]:
            digest.update(own)
        return digest.hexdigest()[:16]

    def file_digests(self) -> str:
        """Eight hex digits for each file, by which a saved state knows which one has changed."""
        return "".join(digest.hex()[:DIGEST] for digest in self._digests())

    def _digests(self) -> list[bytes]:
        if self._file_digests is None:
            digests = []
            for at, (_, count) in enumerate(self._segments):
                data = self._tokens_of(at).view(np.uint8)
                digest = hashlib.sha256(f"{count} {self._files[at].checksum or ''}".encode())
                digest.update(data[:_EDGE].tobytes())
                digest.update(data[-_EDGE:].tobytes())
                if self._documents is not None:
                    bounds = self._documents.offsets(at)
                    digest.update(bounds[:: max(1, len(bounds) // _EDGE)].tobytes())
                digests.append(digest.digest())
            self.verify()
            self._file_digests = digests
        return self._file_digests

    def __getstate__(self) -> dict[str, Any]:
        offsets = None
        if self._documents is not None:
            offsets = [self._documents.offsets(at) for at in range(len(self._files))]
        state = {"files": self._files, "block_size": self.block_size, "stride": self.stride}
        return {**state, "options": self._options, "offsets": offsets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for file in state["files"]:
            size = os.stat(file.path).st_size
            if size != file.size:
                raise ValueError(f"{file.path}: expected {file.size} bytes, as when pickled, got {size}")
        self._open(store=open_store(state["files"]), **state)

    def _indices(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> NDArray[np.int64]:
        """As an array of 0 <= index < len, from indices that may count from the end."""
        count = len(self)
        try:
            array = np.fromiter(map(operator.index, indices), np.int64, len(indices))
        except OverflowError:
            raise IndexError(f"index: expected {-count} to {count - 1}, got one beyond 64 bits") from None
        padding = array == _C.PADDING
        outside = ((array < -count) | (array >= count)) & ~padding
        if outside.any():
            raise IndexError(f"index: expected {-count} to {count - 1}, got {array[outside][0]}")
        return np.where((array < 0) & ~padding, array + count, array)

    def _fill(self, rows: NDArray[np.int64]) -> list[Tensor]:
        return fill_rows(self.filler(pads=True), rows)

    def _extract(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        assert self._windows is not None
        offsets = torch.from_numpy(self._windows.offsets(indices))
        batch = ops.extract_batch(self._arena, offsets, self.block_size)
        self._windows.verify(indices)
        return batch

    def _tokens_of(self, file: int) -> NDArray[Any]:
        begin, count = self._segments[file]
        tokens: NDArray[Any] = self._arena[begin : begin + count].numpy()
        return tokens

    def _check_ids(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {vocab_size}")
        threads = len(os.sched_getaffinity(0))
        for at, file in enumerate(self._files):
            where = _C.scan_ids(self._store, at, 0, file.tokens, min(vocab_size, 2**63 - 1), threads)[2]
            if where >= 0:
                raise ValueError(
                    f"{file.path}: expected ids 0 to {vocab_size - 1} (vocab_size {vocab_size}), got "
                    f"{self._tokens_of(at)[where]} at token {where}"
                )
        self.verify()
