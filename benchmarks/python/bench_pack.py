"""Packing text into tokens, checking and opening the result."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aegis
import numpy as np
from aegis import _C
from aegis.data.formats import describe
from aegis.data.pack import pack
from aegis.data.token_formats import aegis_v1
from harness import Table, main

RATE = 200.0
"""MB of input for a second of one core."""
FILES = 10_000


def processor_seconds(call: Callable[[], object], rounds: int) -> float:
    """The least of some calls, in seconds of this process's processor time: the disk's are not ours."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def corpus(folder: Path, megabytes: int) -> tuple[Path, Path]:
    """Words in one text file, and the same in lines of JSON of about 2 KB."""
    rng = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoin shrdlu cmfwyp  ", np.uint8)
    text, lines = folder / "a.txt", folder / "a.jsonl"
    data = letters[rng.integers(0, len(letters), megabytes * 1_000_000)].tobytes()
    text.write_bytes(data)
    with lines.open("w") as file:
        for begin in range(0, len(data), 2000):
            file.write(json.dumps({"id": begin, "text": data[begin : begin + 2000].decode() + "\n"}) + "\n")
    return text, lines


def many_files(folder: Path, count: int) -> list[str]:
    """Aegis files of 1,024 tokens each."""
    tokens = np.arange(1024, dtype=np.uint16)
    paths = [str(folder / f"{number:05}.aegis") for number in range(min(count, 100))]
    for path in paths:
        writer = _C.AegisWriter(path, "uint16")
        writer.add(tokens)
        writer.finish(0, bytes(32))
    data = Path(paths[0]).read_bytes()
    for number in range(len(paths), count):  # without 10,000 calls of fsync
        paths.append(str(folder / f"{number:05}.aegis"))
        Path(paths[-1]).write_bytes(data)
    return paths


def bench_pack(quick: bool) -> Table:
    """Packing, checking and opening token files."""
    table = Table("Packing and opening token files")
    megabytes, rounds = (8, 1) if quick else (200, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, lines = corpus(folder, megabytes)
        out = folder / "out.aegis"
        for what, source, options in (
            ("text, byte-level", text, {}),
            ("JSON lines of 2 KB, byte-level, eos", lines, {"kind": "jsonl", "eos": 0}),
        ):
            seconds = processor_seconds(lambda s=source, o=options: pack(s, out, overwrite=True, **o), rounds)
            table.rate(what, "what is asked for", RATE, source.stat().st_size / 1e6 / seconds, "MB/s", 1)
            aegis_v1.verify(out)
        assert describe(out).documents == -(-megabytes * 1_000_000 // 2000)
        seconds = processor_seconds(lambda: aegis_v1.verify(out, 1), rounds)
        table.figure("check every checksum and id", out.stat().st_size / 1e6 / seconds, "MB/s")

        paths = many_files(folder, FILES // 10 if quick else FILES)
        dataset = aegis.TokenDataset(paths, 128)
        assert dataset.tokens == 1024 * len(paths)
        seconds = processor_seconds(lambda: aegis.TokenDataset(paths, 128), rounds)
        table.limit(f"open {len(paths):,} aegis files", seconds, "s", 1)
    table.notes.append(
        "Rates are of input, for a second of processor time of one process (the parts, their checksums, fsync and the "
        "merged file included); opening is processor time too, files in the page cache."
    )
    return table


if __name__ == "__main__":
    main(bench_pack)
