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
from aegis.data.formats import TokenFile, describe
from aegis.data.paths import Paths, expand_paths

__all__ = ["TokenDataset", "open_store"]

_EDGE = 4096  # bytes of each end of a file that go into the fingerprint


def open_store(files: Sequence[TokenFile]) -> _C.TokenStore:
    """Map the files one after another."""
    return _C.TokenStore([(f.path, f.dtype, f.byte_offset, f.tokens, f.swapped) for f in files])


class TokenDataset(Dataset[tuple[Tensor, Tensor]]):
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
    ) -> None:
        block_size = operator.index(block_size)
        stride = block_size if stride is None else operator.index(stride)
        files = [describe(path, format, dtype) for path in expand_paths(paths)]
        self._open(files, block_size, stride)
        if vocab_size is not None:
            self._check_ids(operator.index(vocab_size))

    def _open(self, files: Sequence[TokenFile], block_size: int, stride: int) -> None:
        self._files = tuple(files)
        self._store = open_store(files)
        self._windows = _C.TokenWindows(self._store, block_size, stride)
        self._arena: Tensor = torch.utils.dlpack.from_dlpack(self._store.dlpack())
        self._fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Window ``index``: two int64 tensors of ``block_size`` tokens. Negative indices count from the end."""
        index = operator.index(index)
        count = len(self._windows)
        if not -count <= index < count:
            raise IndexError(f"index: expected {-count} to {count - 1}, got {index}")
        at = index if index >= 0 else index + count
        offset = torch.tensor([self._windows.offset(at)])
        x, y = torch.ops.aegis.extract_batch(self._arena, offset, self.block_size)
        self._windows.verify_one(at)  # after reading: a file cut short reads as zeroes
        return x.view(-1), y.view(-1)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Many windows by one call, as views of two matrices; torch's DataLoader calls this for a batch."""
        x, y = self._extract(self._indices(indices))
        return list(zip(x.unbind(), y.unbind(), strict=True))

    def __repr__(self) -> str:
        return (
            f"TokenDataset({len(self)} windows: block_size={self.block_size}, stride={self.stride}; "
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
        return self._store.segments

    @property
    def windows(self) -> _C.TokenWindows:
        """The windows as the C++ feeder takes them."""
        return self._windows

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
        return self._windows.block_size

    @property
    def stride(self) -> int:
        """Tokens from one window to the next in a file."""
        return self._windows.stride

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
        """Tokens at the ends of files, after the last window, that are never delivered."""
        return self._windows.tail_tokens

    def offsets(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> Tensor:
        """(len(indices),) int64: where these windows begin in the arena. IndexError where there is no such."""
        return torch.from_numpy(self._windows.offsets(self._indices(indices)))

    def verify(self) -> None:
        """RuntimeError, with the path, if a file is shorter than when it was opened, or a read of it failed since. A
        file that was cut short and made whole again, and not read meanwhile, is not noticed.

        Reading through this data set or a loader checks this by itself; reading ``arena`` does not. A data
        set made anew reads the files as they are now. Cost: one system call per file.
        """
        self._store.verify_all()

    def fingerprint(self) -> str:
        """16 hex digits that change with the data, its order or how it is cut, and not with its place.

        From SHA-256 of dtype, block_size, stride and, for each file, its token count and the first and last
        4 KiB of its tokens. Two ranks, or a run and its resumption, read the same when these agree. Computed
        once. Cost: two pages per file.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256()
            digest.update(f"{self._store.dtype} {self.block_size} {self.stride}".encode())
            for at, (_, count) in enumerate(self.segments):
                data = self._tokens_of(at).view(np.uint8)
                digest.update(f" {count} ".encode())
                digest.update(data[:_EDGE].tobytes())
                digest.update(data[-_EDGE:].tobytes())
            self.verify()
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self._files, "block_size": self.block_size, "stride": self.stride}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for file in state["files"]:
            size = os.stat(file.path).st_size
            if size != file.size:
                raise ValueError(f"{file.path}: expected {file.size} bytes, as when pickled, got {size}")
        self._open(**state)

    def _indices(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> NDArray[np.int64]:
        """As an array of 0 <= index < len, from indices that may count from the end."""
        count = len(self)
        try:
            array = np.fromiter(map(operator.index, indices), np.int64, len(indices))
        except OverflowError:
            raise IndexError(f"index: expected {-count} to {count - 1}, got one beyond 64 bits") from None
        outside = (array < -count) | (array >= count)
        if outside.any():
            raise IndexError(f"index: expected {-count} to {count - 1}, got {array[outside][0]}")
        return np.where(array < 0, array + count, array)

    def _extract(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        offsets = torch.from_numpy(self._windows.offsets(indices))
        batch = ops.extract_batch(self._arena, offsets, self.block_size)
        self._windows.verify(indices)
        return batch

    def _tokens_of(self, file: int) -> NDArray[Any]:
        begin, count = self.segments[file]
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
