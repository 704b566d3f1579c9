"""Text, JSON lines or token files into one aegis v1 file."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from tqdm import tqdm

from aegis.data.formats import TokenFile, describe, parse_dtype
from aegis.data.pack_chunk import Job, Packer
from aegis.data.pack_merge import MERGED, merge, part_path, parts_folder, take_name
from aegis.data.pack_plan import CHUNK_BYTES, Chunk, Input, fingerprint, plan_chunks
from aegis.data.paths import Paths, expand_paths
from aegis.data.text_tokenizers import BYTES, TokenizerFile, load_tokenizer

__all__ = ["KINDS", "Packed", "pack"]

KINDS = ("text", "jsonl", "tokens")
_VERSION = 1  # of what parts are; parts of another version are not used
_BYTE_VOCABULARY = 256
_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class Packed:
    """The file that was written, and how many chunks were there from an earlier attempt."""

    file: TokenFile
    chunks: int
    reused: int


def pack(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    kind: str = "text",
    key: str = "text",
    tokenizer: TokenizerFile | None = None,
    bos: int | str | None = None,
    eos: int | str | None = None,
    format: str = "auto",
    input_dtype: Any = None,
    vocab_size: int | None = None,
    dtype: Any = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: bool | None = False,
) -> Packed:
    """Write tokens, with the boundaries of their documents, as one aegis v1 file.

    The work is cut into chunks that do not depend on ``workers``, and neither do the bytes of the result. Each chunk
    becomes a file in the folder ``OUTPUT.parts``, which is removed at the end: a pack that was killed goes on where
    it was when it is begun again, and the result is the same.

    Args:
        paths: files or patterns (:func:`~aegis.data.paths.expand_paths`), in the order in which they are packed.
        output: the file to write. It gets its name when it is complete and on disk.
        kind: "text": each file is a document. "jsonl": each line is a JSON object with a document under ``key``.
            "tokens": token files of any format, whose documents are kept where all of the files record them.
        tokenizer: for text, a tokenizer in a file; None makes every byte of the text (of a JSON text, its UTF-8) a
            token. Text that spells a special token of a Hugging Face tokenizer becomes that token.
        bos, eos: for text, the id of a token, or its spelling for a tokenizer, that is put before or behind each
            document.
        format, input_dtype: for tokens, as ``format`` and ``dtype`` of :class:`aegis.TokenDataset`.
        vocab_size: recorded in the file, and ids outside of it are an error. None for the tokenizer's, or that of
            aegis files where they agree.
        dtype: what to store tokens as; None for the smallest of uint8, uint16, uint32 and int64 that holds the
            largest id. Ids never wrap.
        workers: processes; each takes about two seconds to start, as it loads torch. 1 works in this one.
        overwrite: whether ``output`` may be replaced.
        progress: show a bar; None for only on a terminal.

    Raises:
        FileExistsError: ``output`` exists; also where a pack was killed between giving it its name and removing its
            parts.
        OSError, RuntimeError: a file cannot be read or written, or a worker was killed.
        ValueError: text is not what it should be; an input changed meanwhile; parts are there of a pack of other
            inputs or with other options; an id does not fit into ``dtype``; there is no token at all.

    Cost: bytes are packed at some hundred MB/s a core (benchmarks/python/bench_pack.py). The result is on disk twice
    for a moment. Memory: some ten times 16 MiB for each worker, and 8 bytes a document; a text file that a tokenizer
    reads is one chunk, whatever its size.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if workers < 1:
        raise ValueError(f"workers: expected at least 1, got {workers}")
    if vocab_size is not None and not 1 <= vocab_size <= _LARGEST_ID:
        raise ValueError(f"vocab_size: expected 1 to {_LARGEST_ID}, got {vocab_size}")
    stored = None if dtype is None else _native(dtype)
    target = Path(os.path.abspath(os.fspath(output)))
    if target.is_dir():
        raise IsADirectoryError(f"{target}: expected the name of a file to write, got a folder")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target}: exists, and overwrite was not asked for")

    inputs = [Input.look(path) for path in expand_paths(paths)]
    if target.exists() and any(target.samefile(source.path) for source in inputs):
        raise ValueError(f"{target}: expected an output that is none of the inputs")
    if kind == "tokens":
        job = _tokens_job(inputs, format, input_dtype, vocab_size, [tokenizer, bos, eos])
        sizes = [Input(file.path, file.tokens, 0) for file in job.files]
        chunks = plan_chunks(sizes, divisible=True, chunk_bytes=CHUNK_BYTES // 4)
    else:
        job = _text_job(kind, key, tokenizer, bos, eos, vocab_size)
        chunks = plan_chunks(inputs, divisible=kind == "jsonl" or tokenizer is None, chunk_bytes=CHUNK_BYTES)
    settings = [_VERSION, CHUNK_BYTES, job]
    with parts_folder(target, fingerprint(inputs, settings)) as folder:
        parts = [part_path(folder, number) for number in range(len(chunks))]
        reused = _write_parts(job, chunks, parts, workers, progress)
        for source in inputs:
            if Input.look(source.path) != source:
                raise ValueError(f"{source.path}: changed while it was packed: remove {folder} and begin again")
        merged = folder / MERGED
        merge(job, chunks, parts, merged, stored)
        take_name(merged, target)
    return Packed(describe(target, "aegis"), len(chunks), reused)


def _native(dtype: Any) -> str:
    found = parse_dtype(dtype)
    if found.swapped:
        raise ValueError(f"dtype: expected one in this machine's byte order, got {dtype}")
    return found.name


def _tokens_job(inputs: Sequence[Input], format: str, dtype: Any, vocab_size: int | None, others: Sequence[Any]) -> Job:
    if any(other is not None for other in others):
        raise ValueError("tokenizer, bos, eos: expected none for files that are tokens already")
    files = tuple(describe(source.path, format, dtype) for source in inputs)
    sizes, hashes = {file.vocab_size for file in files}, {file.tokenizer for file in files}
    if vocab_size is None and len(sizes) == 1:
        vocab_size = sizes.pop()
    tokenizer = hashes.pop() if len(hashes) == 1 else None
    return Job("tokens", vocab_size=vocab_size, hash=bytes.fromhex(tokenizer or "00" * 32), files=files)


def _text_job(
    kind: str, key: str, file: TokenizerFile | None, bos: int | str | None, eos: int | str | None, size: int | None
) -> Job:
    tokenizer = load_tokenizer(file) if file else None

    def id_of(name: str, token: int | str | None) -> int | None:
        if isinstance(token, str):
            found = tokenizer.id_of(token) if tokenizer else None
            if found is None:
                raise ValueError(f"{name}: {'the tokenizer has' if tokenizer else 'bytes have'} no token {token!r}")
            token = found
        if token is not None and not 0 <= token < _LARGEST_ID:
            raise ValueError(f"{name}: expected an id from 0 to {_LARGEST_ID - 1}, got {token}")
        return token

    marks = id_of("bos", bos), id_of("eos", eos)
    if size is None:
        base = tokenizer.vocab_size if tokenizer else _BYTE_VOCABULARY
        size = max(base, *(mark + 1 for mark in marks if mark is not None), 1)
    return Job(kind, key, file, *marks, vocab_size=size, hash=file.sha256() if file else BYTES)


def _write_parts(job: Job, chunks: Sequence[Chunk], parts: Sequence[Path], workers: int, progress: bool | None) -> int:
    """Writes the parts that are not there yet; how many were."""
    missing = [(chunk, part) for chunk, part in zip(chunks, parts, strict=True) if not part.exists()]
    total, left = sum(chunk.size for chunk in chunks), sum(chunk.size for chunk, _ in missing)
    unit = " tokens" if job.kind == "tokens" else "B"
    hidden = None if progress is None else not progress
    with tqdm(total=total, initial=total - left, unit=unit, unit_scale=True, disable=hidden) as bar:
        if workers == 1 or len(missing) <= 1:
            packer = Packer(job) if missing else None
            for chunk, part in missing:
                assert packer is not None
                packer.write(chunk, str(part))
                bar.update(chunk.size)
        else:
            _write_in_processes(job, missing, min(workers, len(missing)), bar)
    return len(parts) - len(missing)


_packer: Packer | None = None  # of this process, if it is a worker


def _start_worker(job: Job) -> None:
    global _packer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which lets chunks be finished
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _packer = Packer(job)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write_part(chunk: Chunk, part: str) -> int:
    assert _packer is not None
    _packer.write(chunk, part)
    return chunk.size


def _write_in_processes(job: Job, missing: Sequence[tuple[Chunk, Path]], workers: int, bar: Any) -> None:
    # Spawned, not forked: the caller may have threads, and torch has.
    executor = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (job,))
    try:
        rest = iter(missing)
        running: set[Future[int]] = set()
        while True:
            for chunk, part in itertools.islice(rest, 2 * workers - len(running)):
                running.add(executor.submit(_write_part, chunk, str(part)))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                bar.update(future.result())
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process was killed, perhaps for want of memory: begin again, with fewer workers; what was done "
            "is kept"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)
