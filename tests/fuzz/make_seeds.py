"""Write seeds for the fuzzers: small valid files of every format, from the published layouts.

    python tests/fuzz/make_seeds.py FOLDER

Makes FOLDER/NAME/* for each tests/fuzz/fuzz_NAME.cpp, with the numbers in front that the fuzzer takes from its input.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path


def llmc_header() -> Iterator[bytes]:
    for magic, version, item in ((20240520, 1, 2), (20240801, 7, 4), (20240522, 1, 2)):
        for order in "<>":
            header = struct.pack(f"{order}256i", magic, version, 10, *[0] * 253)
            yield struct.pack("<q", 10 * item) + header  # tokens that are not read
            yield struct.pack("<q", 0) + header + bytes(10 * item)


def megatron_index() -> Iterator[bytes]:
    for code, item in ((1, 1), (4, 4), (5, 8), (8, 2)):
        for lengths, documents in (([3, 0, 4], [0, 1, 1, 3]), ([7], [0, 1]), ([1] * 40, [0, 40])):
            ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
            pointers = [(end - length) * item for end, length in zip(ends, lengths, strict=True)]
            index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
            index += struct.pack(f"<{len(lengths)}i{len(lengths)}q", *lengths, *pointers)
            index += struct.pack(f"<{len(documents)}q", *documents)
            for modes in (b"", bytes(len(lengths))):
                yield struct.pack("<q", ends[-1] * item) + index + modes


def datatrove_index() -> Iterator[bytes]:
    for ends in ([9], [3, 3, 9], list(range(1, 50))):
        for item in (2, 4):
            yield struct.pack("<q", ends[-1] * item) + struct.pack(f"<{len(ends)}Q", *ends)


def litdata_chunk() -> Iterator[bytes]:
    for item in (1, 2, 4, 8):
        for lengths in ([3], [3, 0, 2], [1] * 20):
            header = 4 * (len(lengths) + 2)
            starts = [header + item * sum(lengths[:number]) for number in range(len(lengths) + 1)]
            yield struct.pack(f"<{len(lengths) + 2}I", len(lengths), *starts) + bytes(item * sum(lengths))


def aegis_file() -> Iterator[bytes]:
    for code, item in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 8)):
        for tokens, offsets in ((9, [0, 3, 3, 9]), (9, []), (40, [0, 40]), (0, [])):
            tokens_end = -(-(192 + tokens * item) // 64) * 64
            at = tokens_end if offsets else 0
            checksums_at = -(-(tokens_end + 8 * len(offsets)) // 64) * 64
            blocks = int(checksums_at > 192)
            header = b"\x89AEGIS\r\n" + struct.pack("<IIB3xI", 1, 0x01020304, code, 1 << 20)
            counts = (tokens, max(len(offsets) - 1, 0), 192, at, checksums_at, 0, 0)
            header += struct.pack("<9Q", 192, checksums_at + 4 * blocks, *counts)
            body = bytes(tokens * item).ljust(tokens_end - 192, b"\0") + struct.pack(f"<{len(offsets)}q", *offsets)
            file = header.ljust(192, b"\0") + body.ljust(checksums_at - 192, b"\0") + bytes(4 * blocks)
            yield b"\1" + file  # the fuzzer gives it the checksums
            yield b"\0" + file


def main(folder: Path) -> None:
    for make in (llmc_header, megatron_index, datatrove_index, litdata_chunk, aegis_file):
        (folder / make.__name__).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(make()):
            (folder / make.__name__ / f"{number:03}").write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
