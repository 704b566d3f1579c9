"""From text to token ids: bytes, or a tokenizer in a file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["BYTES", "TextTokenizer", "TokenizerFile", "load_tokenizer"]

BYTES = hashlib.sha256(b"aegis: every byte is a token").digest()
"""In place of a hash where no tokenizer was used but bytes are tokens."""


class TextTokenizer(Protocol):
    """What packing needs of a tokenizer."""

    vocab_size: int

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        """The ids of each text, without any that mark its begin or end."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token by its text."""
        ...


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer by its file, so that worker processes can load it.

    ``pattern`` is the regular expression that a tiktoken file does not contain.
    """

    path: str
    pattern: str | None = None

    def sha256(self) -> bytes:
        """Of the file and the pattern."""
        digest = hashlib.sha256(Path(self.path).read_bytes())
        if self.pattern is not None:
            digest.update(self.pattern.encode())
        return digest.digest()


def load_tokenizer(file: TokenizerFile) -> TextTokenizer:
    """The tokenizer of a file, by what is in it: the JSON of Hugging Face's ``tokenizers``, the ranks of
    ``tiktoken`` (a token in base64 and its rank on each line), else a model of ``sentencepiece``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is none of these, or a pattern is missing or superfluous.
        ImportError: the package that it is for is not installed.
    """
    data = Path(file.path).read_bytes()
    ranks = _tiktoken_ranks(data)
    if (ranks is None) != (file.pattern is None):
        raise ValueError(
            f"{file.path}: a tiktoken file needs the pattern that splits text before its ranks are used: give --pattern"
            if ranks
            else f"{file.path}: expected a pattern only beside a tiktoken file"
        )
    try:
        if ranks is not None and file.pattern is not None:
            return _Tiktoken(ranks, file.pattern, os.path.basename(file.path))
        return _HuggingFace(file.path) if data.lstrip()[:1] == b"{" else _SentencePiece(file.path)
    except ImportError as error:
        raise ImportError(f"{file.path}: needs a package that is not installed: {error}") from None
    except Exception as error:  # the packages' own errors are of every kind
        raise ValueError(f"{file.path}: not a readable tokenizer: {error}") from None


def _tiktoken_ranks(data: bytes) -> dict[bytes, int] | None:
    """The ranks of a tiktoken file; None where it is none."""
    ranks = {}
    for line in data.splitlines():
        token, _, rank = line.partition(b" ")
        if not rank.isdigit():
            return None
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except binascii.Error:
            return None
    return ranks or None


class _HuggingFace:
    def __init__(self, path: str) -> None:
        import tokenizers

        self._tokenizer: Any = tokenizers.Tokenizer.from_file(path)
        self._tokenizer.no_truncation()  # a file may ask for it; documents stay whole
        self._tokenizer.no_padding()
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def id_of(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found


class _Tiktoken:
    def __init__(self, ranks: dict[bytes, int], pattern: str, name: str) -> None:
        import tiktoken

        self._ranks = ranks
        self._encoding: Any = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self.vocab_size = max(ranks.values()) + 1

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        found: list[Sequence[int]] = self._encoding.encode_ordinary_batch(texts, num_threads=1)
        return found

    def id_of(self, token: str) -> int | None:
        return self._ranks.get(token.encode())


class _SentencePiece:
    def __init__(self, path: str) -> None:
        import sentencepiece

        self._processor: Any = sentencepiece.SentencePieceProcessor(model_file=path)
        self.vocab_size = int(self._processor.vocab_size())

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        found: list[Sequence[int]] = self._processor.encode(texts, out_type=int, num_threads=1)
        return found

    def id_of(self, token: str) -> int | None:
        found = int(self._processor.piece_to_id(token))
        return found if self._processor.id_to_piece(found) == token else None
