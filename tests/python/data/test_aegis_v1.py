"""aegis v1 by its description: read by a few lines that know nothing of the library, and refused when damaged."""

import os
import resource
import signal
import struct

import aegis
import numpy as np
import pytest
from aegis import _C
from aegis.data import document_offsets
from aegis.data.formats import describe
from aegis.data.token_formats import aegis_v1
from hypothesis import given
from hypothesis import strategies as st

TYPES = {1: "<u1", 2: "<u2", 3: "<u4", 4: "<i4", 5: "<i8"}


def fnv1a(data, state=0x811C9DC5):
    for byte in data:
        state = (state ^ byte) * 0x01000193 % 2**32
    return state


def checksum(data):
    """Of docs/notes/aegis_v1.md: 64 lanes of FNV-1a, then FNV-1a of the lanes and the size."""
    lanes = np.full(64, 0x811C9DC5, np.uint32)
    rows = np.frombuffer(data.ljust(-(-len(data) // 64) * 64, b"\0"), np.uint8).reshape(-1, 64)
    for at, row in enumerate(rows):
        part = min(64, len(data) - 64 * at)
        lanes[:part] = (lanes[:part] ^ row[:part]) * np.uint32(0x01000193)
    return fnv1a(lanes.tobytes() + struct.pack("<Q", len(data)))


def read_by_the_book(data):
    """(ids, document offsets or None, vocabulary size, largest id, tokenizer)."""
    magic, version, order, code, block = struct.unpack_from("<8sIIB3xI", data)
    assert (magic, version, order, block) == (b"\x89AEGIS\r\n", 1, 0x01020304, 1 << 20)
    header, size, tokens, documents, at, documents_at, checksums_at, vocabulary, largest = struct.unpack_from(
        "<9Q", data, 24
    )
    tokenizer, table_sum, header_sum = data[96:128], *struct.unpack_from("<II", data, 184)
    assert (header, size, at % 64, checksums_at % 64, data[128:184]) == (192, len(data), 0, 0, bytes(56))
    assert header_sum == checksum(data[:188])
    assert table_sum == checksum(data[checksums_at:])
    blocks = [data[begin : min(begin + block, checksums_at)] for begin in range(at, checksums_at, block)]
    assert list(struct.unpack_from(f"<{len(blocks)}I", data, checksums_at)) == list(map(checksum, blocks))
    ids = np.frombuffer(data, TYPES[code], tokens, at)
    offsets = np.frombuffer(data, "<i8", documents + 1, documents_at).tolist() if documents_at else None
    return ids, offsets, vocabulary, largest, tokenizer


def write(path, ids, ends=(), dtype="uint16", vocab_size=0, tokenizer=bytes(32)):
    writer = _C.AegisWriter(str(path), dtype)
    writer.add(np.asarray(ids))
    writer.end_documents(np.asarray(ends, np.int64))
    writer.finish(vocab_size, tokenizer)
    return path


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("count", [1, 1000, 600_000])
def test_file_is_what_its_description_says(tmp_path, dtype, count):
    ids = np.arange(count, dtype=np.int64) % 200
    ends = [count // 2, count // 2, count]
    path = write(tmp_path / "a.aegis", ids, ends, dtype, 300, b"h" * 32)
    found, offsets, *rest = read_by_the_book(path.read_bytes())
    assert np.array_equal(found, ids)
    assert offsets == [0, *ends]
    assert rest == [300, ids.max(), b"h" * 32]
    file = describe(path)
    assert (file.format, file.dtype, file.tokens, file.documents) == ("aegis", dtype, count, 3)
    assert (file.vocab_size, file.largest_id, file.tokenizer) == (300, ids.max(), (b"h" * 32).hex())
    assert document_offsets(file).tolist() == offsets
    aegis_v1.verify(path)
    if count > 1:
        x, _ = aegis.TokenDataset(path, count - 1)[0]
        assert np.array_equal(x, ids[:-1])


def test_documents_need_not_be_recorded(tmp_path):
    path = write(tmp_path / "a.aegis", np.arange(9))
    assert read_by_the_book(path.read_bytes())[1] is None
    assert document_offsets(describe(path)) is None


@given(st.data())
def test_damage_of_any_kind_is_found(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("damage") / "a.aegis", np.arange(300), [100, 300])
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "insert", "zero"]))
    if change == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    elif change == "cut":
        del content[at:]
    elif change == "insert":
        content.insert(at, data.draw(st.integers(0, 255)))
    else:
        content[at:] = bytes(len(content) - at)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.aegis: "):
        aegis_v1.verify(path)


def test_damage_is_told_by_its_place(tmp_path):
    path = write(tmp_path / "a.aegis", np.zeros(3 << 20, np.uint8), dtype="uint8")
    with open(path, "r+b") as file:
        file.seek(192 + (2 << 20) + 5)
        file.write(b"\1")
    describe(path)  # opening looks at the header alone
    with pytest.raises(ValueError, match=r"a\.aegis: block 2 \(bytes 2097344 to 3145919\) is damaged: expected checks"):
        aegis_v1.verify(path)


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"\x89AEGIS\n\n", r"give the dtype"),  # as a transfer in text mode leaves it
        (8, b"\2\0\0\0", "expected aegis version 1, got 2"),
        (12, b"\1\2\3\4", "this one is big-endian"),
        (40, b"\xff" * 8, "the header is damaged"),
    ],
)
def test_header_is_checked_at_opening_case51(tmp_path, at, data, message):
    path = write(tmp_path / "a.aegis", np.arange(9))
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.aegis: .*" + message):
        describe(path)


def test_file_cut_short_or_grown_is_refused_at_opening_case49(tmp_path):
    path = write(tmp_path / "a.aegis", np.arange(9))
    size = path.stat().st_size
    for now, message in ((size - 1, r"\(1 missing\)"), (size + 3, r"\(3 too many\)"), (100, "ends after 100")):
        os.truncate(path, now)
        with pytest.raises(ValueError, match=r"a\.aegis: expected .*" + message):
            describe(path)


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.aegis: expected at least 1 token"):
        describe(write(tmp_path / "a.aegis", np.zeros(0, np.uint8)))


def test_writer_takes_what_it_can_hold_case44(tmp_path):
    writer = _C.AegisWriter(str(tmp_path / "a"), "uint16")
    for bad, message in (
        (np.array([70_000]), r"a: expected ids from 0 to 65535 \(uint16\), got 70000"),
        (np.array([1, -3], np.int32), "got -3"),
        (np.zeros((2, 2), np.uint8), "expected a contiguous, aligned 1-D array"),
        (np.zeros(8, np.uint8)[::2], "expected a contiguous, aligned 1-D array"),
        (np.zeros(9, np.uint8)[1:].view(np.int32), "got 1 dimensions, not aligned"),
        (np.zeros(8, ">u2"), "got 1 dimensions, another byte order"),
        (np.zeros(8, np.float32), "got float32"),
        (np.zeros(8, np.int16), "got int16"),
    ):
        with pytest.raises(ValueError, match=message):
            writer.add(bad)
    with pytest.raises(ValueError, match="expected a hash of 32 bytes, got 3"):
        writer.finish(0, b"abc")
    assert writer.tokens == 0
    del writer
    assert os.listdir(tmp_path) == []


def test_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    child = os.fork()
    if child == 0:  # a limit of the process's own, in place of a disk that is full
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            try:
                write(tmp_path / "a.aegis", np.zeros(4 << 20, np.uint8))
            except RuntimeError as error:
                # At once, although the traceback holds the writer still: a full disk wants its room back.
                code = 0 if "could not write" in str(error) and not os.listdir(tmp_path) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
