"""aegis.data.pack: what comes out is what went in."""

import os

import aegis
import numpy as np
import pytest
import torch
from aegis.data import pack as pack_module
from aegis.data import pack_chunk
from aegis.data.formats import describe
from aegis.data.pack import pack
from aegis.data.pack_plan import Input, plan_chunks
from aegis.data.text_tokenizers import BYTES
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import contents, write_lines
from written import write_datatrove, write_litdata, write_megatron

# --- bytes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=6).filter(any),
    st.sampled_from([None, 0, 255, 256, 70_000]),
    st.sampled_from([None, 1, 300]),
    st.sampled_from([7, 40, 1000]),
    st.sampled_from(["text", "jsonl"]),
)
def test_bytes_come_out_as_they_went_in(tmp_path_factory, texts, eos, bos, chunk, kind):
    folder = tmp_path_factory.mktemp("pack")
    if kind == "text":
        paths = [folder / f"{number}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text.encode())
    else:
        paths = [write_lines(folder / "a.jsonl", texts)]
    before, pack_module.CHUNK_BYTES = pack_module.CHUNK_BYTES, chunk
    try:
        packed = pack(paths, folder / "out.aegis", kind=kind, bos=bos, eos=eos)
    finally:
        pack_module.CHUNK_BYTES = before
    start, end = ([] if mark is None else [mark] for mark in (bos, eos))
    expected = [start + list(text.encode()) + end for text in texts]
    assert contents(folder / "out.aegis") == expected
    largest = max(max(document, default=0) for document in expected)
    assert packed.file.largest_id == largest
    assert packed.file.dtype == ("uint8" if largest < 256 else "uint16" if largest < 65_536 else "uint32")
    assert packed.file.vocab_size == max(256, (eos or 0) + 1, (bos or 0) + 1)
    assert packed.file.tokenizer == BYTES.hex()
    assert sorted(os.listdir(folder)) == sorted([path.name for path in paths] + ["out.aegis"])


def test_lines_are_cut_anywhere(tmp_path):
    lines = ['{"text": "one"}', "", "  ", '{"text": "zw\u00f6lf", "more": [1]}', '{"text": ""}', '{"text": "end"}']
    for ending in ("", "\n", "\r\n\n"):
        data = "\ufeff".encode() + "\n".join(lines).encode() + ending.encode()
        (tmp_path / "a.jsonl").write_bytes(data)
        source = Input.look(str(tmp_path / "a.jsonl"))
        packer = pack_chunk.Packer(pack_chunk.Job("jsonl", "text"))
        for size in range(1, len(data) + 2):
            found = b""
            for chunk in plan_chunks([source], divisible=True, chunk_bytes=size):
                ids, ends = packer._tokens(chunk)
                found += b"|".join(np.split(ids, ends[:-1])) + b"|" if len(ends) else b""
            assert found.decode() == "one|zwölf||end|"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"text": "a"}\n{"text": 5}\n', r"a\.jsonl: line at byte 14: expected a text under 'text', got int"),
        (b'{"text": "a"}\n{"txt": "b"}\n', r"line at byte 14: expected an object with the key 'text'"),
        (b'\n\n["text"]\n', r"line at byte 2: list indices must be"),
        (b'{"text": "a"\n}\n', r"line at byte 0: "),
        (b'{"text": "\xff"}\n', r"line at byte 0: .*can't decode byte 0xff"),
        (rb'{"text": "\ud800"}', r"line at byte 0: .*surrogates not allowed"),
        (b"[" * 100_000, r"line at byte 0: "),
        (b"\x00\x00", r"line at byte 0: "),
    ],
)
def test_lines_that_are_no_text_are_named(tmp_path, data, message):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        pack(tmp_path / "a.jsonl", tmp_path / "out.aegis", kind="jsonl")
    assert not (tmp_path / "out.aegis").exists()


# --- token files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "documents"),
    [
        (lambda p: [write_megatron(p / "a", [9, 20, 5], [0, 1, 1, 3], "int32")], [9, 0, 25]),
        (lambda p: [write_datatrove(p / "a.ds", [9, 34], "uint32")], [9, 25]),
        (lambda p: write_litdata(p, [[9], [20, 5]], "no_header_tensor:18", "int64"), [9, 20, 5]),
        (lambda p: [(np.save(p / "a.npy", np.arange(34, dtype=">u2")), p / "a.npy")[1]], [34]),
    ],
)
def test_token_files_of_every_format(tmp_path, small_chunks, write, documents):
    paths = write(tmp_path)
    packed = pack(paths, tmp_path / "out.aegis", kind="tokens")
    found = contents(tmp_path / "out.aegis")
    assert list(map(len, found)) == documents
    assert packed.file.dtype == "uint8"
    assert packed.file.documents is None if paths[0].suffix == ".npy" else packed.file.documents == len(documents)
    ids = [token for document in found for token in document]
    expected = [token for file in map(describe, paths) for token in range(file.tokens)]
    assert ids == expected
    # And an aegis file into another: nothing is lost.
    pack(tmp_path / "out.aegis", tmp_path / "again.aegis", kind="tokens")
    assert (tmp_path / "again.aegis").read_bytes() == (tmp_path / "out.aegis").read_bytes()


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(255, "uint8"), (256, "uint16"), (65_535, "uint16"), (65_536, "uint32"), (2**32 - 1, "uint32"), (2**32, "int64")],
)
def test_dtype_is_chosen_by_the_largest_id_case44(tmp_path, small_chunks, largest, dtype):
    ids = np.zeros(100, np.int64)
    ids[70] = largest
    np.save(tmp_path / "a.npy", ids)
    packed = pack(tmp_path / "a.npy", tmp_path / "out.aegis", kind="tokens")
    assert (packed.file.dtype, packed.file.largest_id) == (dtype, largest)
    assert contents(tmp_path / "out.aegis") == [ids.tolist()]


def test_ids_never_wrap_case44(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 70_000], np.int32))
    np.save(tmp_path / "b.npy", np.array([1, -1], np.int32))
    with pytest.raises(ValueError, match="dtype: expected one that holds the largest id, 70000, got uint16"):
        pack(tmp_path / "a.npy", tmp_path / "out.aegis", kind="tokens", dtype="uint16")
    with pytest.raises(ValueError, match=r"a\.npy: expected ids 0 to 69999 .*, got 70000 at token 1"):
        pack(tmp_path / "a.npy", tmp_path / "v.aegis", kind="tokens", vocab_size=70_000)
    with pytest.raises(ValueError, match=r"b\.npy: expected ids 0 and above, got -1 at token 1"):
        pack(tmp_path / "b.npy", tmp_path / "n.aegis", kind="tokens")
    packed = pack(tmp_path / "a.npy", tmp_path / "w.aegis", kind="tokens", vocab_size=70_001, dtype="int64")
    assert (packed.file.dtype, packed.file.vocab_size) == ("int64", 70_001)
    assert not (tmp_path / "out.aegis").exists()


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_packed_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")
    (tmp_path / "empty.txt").write_bytes(b"")
    out = tmp_path / "out.aegis"
    for options, message in (
        ({"kind": "csv"}, "kind: expected one of text, jsonl, tokens, got 'csv'"),
        ({"workers": 0}, "workers: expected at least 1, got 0"),
        ({"eos": -1}, "eos: expected an id from 0 to"),
        ({"bos": 2**63 - 1}, "bos: expected an id from 0 to"),
        ({"eos": "</s>"}, "eos: bytes have no token '</s>'"),
        ({"vocab_size": 0}, "vocab_size: expected 1 to"),
        ({"dtype": ">u2"}, "dtype: expected one in this machine's byte order"),
        ({"dtype": "float32"}, "dtype: expected one of uint8"),
        ({"kind": "tokens", "eos": 1, "input_dtype": "uint8"}, "expected none for files that are tokens already"),
        ({"vocab_size": 98}, "vocab_size: expected ids below it, 98, the largest is 99"),
    ):
        with pytest.raises(ValueError, match=message):
            pack(tmp_path / "a.txt", out, **options)
    with pytest.raises(ValueError, match="expected at least one token"):
        pack(tmp_path / "empty.txt", tmp_path / "out2.aegis")
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "none.txt", out)
    os.mkfifo(tmp_path / "pipe")  # whose size says nothing
    for path, message in ((tmp_path, "got a folder"), (tmp_path / "pipe", "got a device, socket or pipe")):
        with pytest.raises(ValueError, match=message):
            pack([tmp_path / "a.txt", path], out)
    with pytest.raises(ValueError, match=r"a\.txt: expected an output that is none of the inputs"):
        pack(tmp_path / "a.txt", tmp_path / "a.txt", overwrite=True)
    out.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"out\.aegis: exists"):
        pack(tmp_path / "a.txt", out)
    assert out.read_bytes() == b"mine"


def test_packed_file_trains(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    pack(tmp_path / "a.txt", tmp_path / "out.aegis")
    x, y = aegis.TokenDataset(tmp_path / "out.aegis", 9)[1]
    assert torch.equal(x, torch.arange(9, 18))
    assert torch.equal(y, torch.arange(10, 19))
