"""A chunk of text or JSON lines into a part: a small aegis file. Runs in worker processes."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, AnyStr

import numpy as np
import torch
from numpy.typing import NDArray

from aegis import _C
from aegis.data.formats import TokenFile
from aegis.data.pack_plan import Chunk, Piece
from aegis.data.text_tokenizers import TextTokenizer, TokenizerFile, load_tokenizer

__all__ = ["Job", "Packer", "smallest_dtype"]

_BATCH = 1 << 20  # characters that a tokenizer gets at a time, or bytes that are written
_BUFFER = 1 << 18  # bytes of lines read at a time: they stay in the cache
_BYTE = 255
_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Job:
    """What is to be done with every chunk."""

    kind: str  # "text", "jsonl" or "tokens"
    key: str = ""
    tokenizer: TokenizerFile | None = None
    bos: int | None = None
    eos: int | None = None
    vocab_size: int | None = None
    hash: bytes = bytes(32)  # of the tokenizer
    files: tuple[TokenFile, ...] = ()  # those of kind "tokens", whose pieces are counted in tokens


def smallest_dtype(largest_id: int) -> str:
    """The smallest token type that holds ids up to ``largest_id``."""
    return next((name for name in ("uint8", "uint16", "uint32") if largest_id <= np.iinfo(name).max), "int64")


class Packer:
    """Turns chunks into parts; loads the tokenizer once."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tokenizer: TextTokenizer | None = load_tokenizer(job.tokenizer) if job.tokenizer else None
        self._files = {file.path: file for file in job.files}

    def write(self, chunk: Chunk, part: str) -> None:
        """Writes the part of a chunk. A document that goes on in the next chunk has an end in the part all the same.

        Raises:
            OSError, RuntimeError: a file cannot be read or written.
            ValueError: text that is not UTF-8 where a tokenizer needs it, or a line that is no JSON object with a
                text under the key; names the file and the byte.
        """
        if self._job.kind == "tokens":
            return self._copy(chunk, part)
        if self._job.kind == "jsonl" and self._tokenizer is None and self._marks_are_bytes:
            return self._write_lines(chunk, part)
        ids, ends = self._tokens(chunk)
        if ids.dtype == np.uint8 or len(ids) == 0:
            dtype = "uint8"
        elif ids.min() < 0:
            raise ValueError(f"{chunk.pieces[0].path}: the tokenizer gave the id {ids.min()}")
        else:
            dtype = smallest_dtype(int(ids.max()))
        writer = _C.AegisWriter(part, dtype)
        writer.add(ids)
        writer.end_documents(ends)
        writer.finish(0, bytes(32))

    @property
    def _marks_are_bytes(self) -> bool:
        return max(self._job.bos or 0, self._job.eos or 0) <= _BYTE

    def _write_lines(self, chunk: Chunk, part: str) -> None:
        """The part of a chunk of lines whose ids are their bytes: as they are read, so that they stay in the caches."""
        job = self._job
        bos, eos = (b"" if mark is None else bytes([mark]) for mark in (job.bos, job.eos))
        writer = _C.AegisWriter(part, "uint8")
        for piece in chunk.pieces:
            for texts in _batches(_read_lines(piece, job.key)):
                before = writer.tokens
                writer.add(np.frombuffer(b"".join((bos, (eos + bos).join(texts), eos)), np.uint8))
                lengths = np.array([len(text) for text in texts], np.int64) + len(bos) + len(eos)
                writer.end_documents(before + np.cumsum(lengths))
        writer.finish(0, bytes(32))

    def _copy(self, chunk: Chunk, part: str) -> None:
        """The part of a chunk of token files. It records no documents."""
        limit = _NO_LIMIT if self._job.vocab_size is None else self._job.vocab_size
        stores = [_open(self._files[piece.path], piece) for piece in chunk.pieces]
        largest = max(_scan(store, piece, limit) for store, piece in zip(stores, chunk.pieces, strict=True))
        writer = _C.AegisWriter(part, smallest_dtype(largest))
        for store in stores:
            writer.add(torch.utils.dlpack.from_dlpack(store.dlpack()).numpy())
            store.verify(0)  # a file cut short meanwhile reads as zeroes
        writer.finish(0, bytes(32))

    def _tokens(self, chunk: Chunk) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of a chunk, and where its documents end."""
        job = self._job
        if job.kind == "jsonl":
            documents = [text for piece in chunk.pieces for text in _read_lines(piece, job.key)]
            begins = ends = [True] * len(documents)
        else:
            documents = [_read(piece) for piece in chunk.pieces]
            begins = [piece.begin == 0 for piece in chunk.pieces]
            ends = [piece.whole for piece in chunk.pieces]
        if self._tokenizer is not None:
            ids, lengths = self._encode([_decode(text, chunk, at) for at, text in enumerate(documents)])
        elif not self._marks_are_bytes:
            ids, lengths = _bytes_of(documents)
        else:
            bos, eos = (b"" if mark is None else bytes([mark]) for mark in (job.bos, job.eos))
            if bos or eos:
                documents = [
                    b"".join((bos * begin, text, eos * end))
                    for text, begin, end in zip(documents, begins, ends, strict=True)
                ]
            ids, lengths = _bytes_of(documents)
            return ids, np.cumsum(lengths)
        return _mark(ids, lengths, begins, ends, job)

    def _encode(self, texts: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        assert self._tokenizer is not None
        lengths: list[int] = []
        pieces: list[NDArray[np.int64]] = []
        for batch in _batches(texts):
            encoded = self._tokenizer.encode(batch)
            lengths += map(len, encoded)
            pieces.append(np.fromiter(itertools.chain.from_iterable(encoded), np.int64, sum(map(len, encoded))))
        ids = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        return ids, np.array(lengths, np.int64)


def _batches(texts: Iterable[AnyStr]) -> Iterator[list[AnyStr]]:
    """The texts in order, in lists of about _BATCH characters or bytes."""
    batch: list[AnyStr] = []
    room = _BATCH
    for text in texts:
        batch.append(text)
        room -= len(text)
        if room <= 0:
            yield batch
            batch, room = [], _BATCH
    if batch:
        yield batch


def _bytes_of(documents: Sequence[bytes]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return np.frombuffer(b"".join(documents), np.uint8), np.array([len(document) for document in documents], np.int64)


def _mark(
    ids: NDArray[Any], lengths: NDArray[np.int64], begins: Sequence[bool], ends: Sequence[bool], job: Job
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The ids with ``bos`` where documents begin and ``eos`` where they end, and the positions of the ends."""
    last = np.cumsum(lengths)
    marks = [
        (positions, where, value)
        for positions, where, value in ((last - lengths, begins, job.bos), (last, ends, job.eos))
        if value is not None
    ]
    if not marks:
        return ids, last
    # Document by document, its begin before its end: in the order in which they are to stand.
    positions = np.stack([positions for positions, _, _ in marks], 1)
    values = np.broadcast_to([value for _, _, value in marks], positions.shape)
    wanted = np.array([where for _, where, _ in marks], bool).T
    dtype = np.promote_types(ids.dtype, smallest_dtype(max(value for _, _, value in marks)))
    marked = np.insert(ids.astype(dtype, copy=False), positions[wanted], values[wanted])
    return marked, last + np.cumsum(wanted.sum(1))


# --- token files -----------------------------------------------------------------------------------------------------


def _open(file: TokenFile, piece: Piece) -> _C.TokenStore:
    """The piece's tokens alone."""
    at = file.byte_offset + piece.begin * np.dtype(file.dtype).itemsize
    return _C.TokenStore([(file.path, file.dtype, at, piece.end - piece.begin, file.swapped)])


def _scan(store: _C.TokenStore, piece: Piece, limit: int) -> int:
    """The largest id. ValueError where one is outside of the vocabulary."""
    _, largest, outside = _C.scan_ids(store, 0, 0, store.tokens, limit)
    if outside >= 0:
        bad = torch.utils.dlpack.from_dlpack(store.dlpack())[outside].item()
        known = "0 and above" if limit == _NO_LIMIT else f"0 to {limit - 1} (vocab_size {limit})"
        raise ValueError(f"{piece.path}: expected ids {known}, got {bad} at token {piece.begin + outside}")
    return largest


# --- text -----------------------------------------------------------------------------------------------------------


def _read(piece: Piece) -> bytes:
    with open(piece.path, "rb") as file:
        file.seek(piece.begin)
        data = file.read(piece.end - piece.begin)
    if len(data) != piece.end - piece.begin:
        raise ValueError(
            f"{piece.path}: expected {piece.end} bytes, as when packing began, got {piece.begin + len(data)}"
        )
    return data


def _decode(text: bytes, chunk: Chunk, at: int) -> str:
    """Document ``at`` of a chunk as text; of lines it is known to be UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        where = f"got {text[error.start]:#04x} at byte {error.start}"
        raise ValueError(f"{chunk.pieces[at].path}: expected UTF-8, {where}") from None


def _read_lines(piece: Piece, key: str) -> Iterator[bytes]:
    """The text of every line that begins within the piece, in UTF-8; lines of nothing but space are passed over."""
    with open(piece.path, "rb", buffering=_BUFFER) as file:
        at = piece.begin
        if at > 0:  # the line that this byte is in began before, unless the byte before ended it
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while at < piece.end:
            line = file.readline()
            if not line:
                raise ValueError(f"{piece.path}: expected {piece.end} bytes, as when packing began, got {at}")
            if not line.isspace():
                yield _text_of(line.removeprefix(codecs.BOM_UTF8) if at == 0 else line, key, piece.path, at)
            at += len(line)


_decode_json = json.JSONDecoder().decode  # without the guess at an encoding that json.loads begins with


def _text_of(line: bytes, key: str, path: str, at: int) -> bytes:
    try:
        text = _decode_json(line.decode())[key]
        if not isinstance(text, str):
            raise TypeError(f"expected a text under {key!r}, got {type(text).__name__}")
        return text.encode()  # half of a surrogate pair is no text
    except KeyError:
        raise ValueError(f"{path}: line at byte {at}: expected an object with the key {key!r}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: line at byte {at}: {error}") from None
