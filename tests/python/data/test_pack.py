"""aegis.data.pack: what comes out is what went in, whoever worked on it, however often it was killed."""

import base64
import itertools
import json
import os
import signal
import subprocess
import sys

import aegis
import numpy as np
import pytest
import torch
from aegis.data import document_offsets, pack_chunk
from aegis.data import pack as pack_module
from aegis.data.formats import describe
from aegis.data.pack import pack
from aegis.data.pack_plan import Input, plan_chunks
from aegis.data.text_tokenizers import BYTES, TokenizerFile
from aegis.data.token_formats import aegis_v1
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write_datatrove, write_litdata, write_megatron


def contents(path):
    """The ids of an aegis file, document by document; one document where none are recorded."""
    file = describe(path)
    aegis_v1.verify(path)
    ids = np.fromfile(path, file.dtype, file.tokens, offset=file.byte_offset)
    offsets = document_offsets(file)
    offsets = [0, file.tokens] if offsets is None else offsets
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def write_lines(path, texts, key="text"):
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts))
    return path


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 64 bytes, or of 16 tokens."""
    monkeypatch.setattr(pack_module, "CHUNK_BYTES", 64)


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


# --- tokenizers ------------------------------------------------------------------------------------------------------


def hugging_face(path):
    tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError, reason="tokenizers cannot be imported")
    words = {"a": 0, "b": 1, "[UNK]": 2, "</s>": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)  # what a file may bring along from training
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return TokenizerFile(str(path))


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_tokenizer_of_hugging_face(tmp_path, kind):
    tokenizer = hugging_face(tmp_path / "tokenizer.json")
    texts = ["a b a b", "", "b c"]
    if kind == "text":
        paths = [tmp_path / f"{number}.txt" for number in range(3)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
    else:
        paths = write_lines(tmp_path / "a.jsonl", texts)
    packed = pack(paths, tmp_path / "out.aegis", kind=kind, tokenizer=tokenizer, bos=1, eos="</s>")
    assert contents(tmp_path / "out.aegis") == [[1, 0, 1, 0, 1, 7], [1, 7], [1, 1, 2, 7]]
    assert (packed.file.vocab_size, packed.file.dtype) == (8, "uint8")
    assert packed.file.tokenizer == tokenizer.sha256().hex()
    with pytest.raises(ValueError, match=r"eos: the tokenizer has no token 'x'"):
        pack(paths, tmp_path / "x.aegis", kind=kind, tokenizer=tokenizer, eos="x")


def test_tokenizer_of_tiktoken(tmp_path):
    pytest.importorskip("tiktoken", exc_type=ImportError, reason="tiktoken cannot be imported")
    ranks = [bytes([byte]) for byte in range(256)] + [b"ab"]
    lines = [base64.b64encode(token).decode() + f" {rank}" for rank, token in enumerate(ranks)]
    (tmp_path / "a.tiktoken").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_text("abc <|endoftext|>")
    tokenizer = TokenizerFile(str(tmp_path / "a.tiktoken"), r"\w+|\W+")
    packed = pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer, eos="ab")
    assert contents(tmp_path / "out.aegis") == [[256, *b"c <|endoftext|>", 256]]
    assert packed.file.vocab_size == 257
    with pytest.raises(ValueError, match="needs the pattern"):
        pack(tmp_path / "a.txt", tmp_path / "x.aegis", tokenizer=TokenizerFile(tokenizer.path))


def test_tokenizer_of_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip(
        "sentencepiece", exc_type=ImportError, reason="sentencepiece cannot be imported"
    )
    (tmp_path / "a.txt").write_text("one two three two one\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "a.txt"), model_prefix=str(tmp_path / "m"), vocab_size=12, minloglevel=2
    )
    tokenizer = TokenizerFile(str(tmp_path / "m.model"))
    pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer, eos="</s>")
    expected = sentencepiece.SentencePieceProcessor(model_file=tokenizer.path).encode((tmp_path / "a.txt").read_text())
    assert contents(tmp_path / "out.aegis") == [[*expected, 2]]


@pytest.mark.parametrize("data", [b"{}", b"\x00\x01", b"", b"YQ== 0\nYQ== x"])
def test_file_that_is_no_tokenizer_is_refused(tmp_path, data):
    for package in ("tokenizers", "sentencepiece"):
        pytest.importorskip(package, exc_type=ImportError, reason=f"{package} cannot be imported")
    (tmp_path / "t").write_bytes(data)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"/t: "):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=TokenizerFile(str(tmp_path / "t")))


def test_text_that_is_not_utf8_is_named(tmp_path):
    tokenizer = hugging_face(tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_bytes(b"a b\xff")
    with pytest.raises(ValueError, match=r"a\.txt: expected UTF-8, got 0xff at byte 3"):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer)
    pack(tmp_path / "a.txt", tmp_path / "out.aegis")  # bytes are bytes
    assert contents(tmp_path / "out.aegis") == [list(b"a b\xff")]


# --- processes, kills, and what is refused ---------------------------------------------------------------------------


def test_result_does_not_depend_on_the_number_of_workers(tmp_path, small_chunks):
    source = write_lines(tmp_path / "a.jsonl", [f"text {number} " * (number % 7) for number in range(40)])
    for workers in (1, 2):
        packed = pack(source, tmp_path / f"{workers}.aegis", kind="jsonl", eos=300, workers=workers)
        assert packed.chunks > 20
    assert (tmp_path / "1.aegis").read_bytes() == (tmp_path / "2.aegis").read_bytes()


_KILLED = """
import os, signal, sys
from aegis.data import pack as pack_module, pack_chunk, pack_merge
pack_module.CHUNK_BYTES = 64
left = int(sys.argv[3])
def count(function):
    def counted(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return counted
pack_chunk.Packer.write = count(pack_chunk.Packer.write)
pack_module.take_name = count(pack_merge.take_name)
pack_module.pack(sys.argv[1], sys.argv[2], eos=0)
"""


@pytest.mark.parametrize("done", [3, 16])  # in the middle of the 16 chunks, and when all but the name was done
def test_pack_that_was_killed_goes_on_where_it_was(tmp_path, small_chunks, done):
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 255)) * 4)
    pack(tmp_path / "a.txt", tmp_path / "whole.aegis", eos=0)
    out = tmp_path / "out.aegis"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "a.txt"), str(out), str(done)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    packed = pack(tmp_path / "a.txt", out, eos=0)
    assert (packed.chunks, packed.reused) == (16, done)
    assert out.read_bytes() == (tmp_path / "whole.aegis").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out.aegis", "whole.aegis"]


def interrupted(tmp_path, monkeypatch, **options):
    """A pack of a.txt that failed when its parts were written."""
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "merge", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            pack(tmp_path / "a.txt", tmp_path / "out.aegis", **options)


@pytest.mark.parametrize("change", ["options", "input", "order"])
def test_parts_of_another_pack_are_not_used(tmp_path, monkeypatch, small_chunks, change):
    (tmp_path / "a.txt").write_bytes(bytes(500))
    interrupted(tmp_path, monkeypatch)
    options, paths = {}, tmp_path / "a.txt"
    if change == "options":
        options = {"eos": 0}
    elif change == "input":
        os.utime(tmp_path / "a.txt", ns=(1, 1))
    else:
        paths = [paths, paths]
    with pytest.raises(ValueError, match=r"out\.aegis\.parts: holds parts of a pack of other inputs"):
        pack(paths, tmp_path / "out.aegis", **options)


@pytest.mark.parametrize("name", ["plan", "merged", "00000000.aegis"])
def test_what_a_killed_attempt_was_writing_is_removed_and_never_read(tmp_path, monkeypatch, small_chunks, name):
    (tmp_path / "a.txt").write_bytes(bytes(500))
    pack(tmp_path / "a.txt", tmp_path / "whole.aegis")
    out = tmp_path / name
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "take_name", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            pack(tmp_path / "a.txt", out)
    folder = tmp_path / f"{name}.parts"
    for rest in ("00000001.aegis.x3Xk2p", "merged.u3UMkw"):  # of AegisWriter
        (folder / rest).write_bytes(bytes(10_000))
    monkeypatch.setattr(pack_module, "merge", lambda *_: (_ for _ in ()).throw(OSError(sorted(os.listdir(folder)))))
    with pytest.raises(OSError, match="plan") as seen:
        pack(tmp_path / "a.txt", out)
    assert seen.value.args == ([*(f"{number:08d}.aegis" for number in range(8)), "plan"],)
    monkeypatch.undo()
    monkeypatch.setattr(pack_module, "CHUNK_BYTES", 64)
    assert pack(tmp_path / "a.txt", out).reused == 8
    assert out.read_bytes() == (tmp_path / "whole.aegis").read_bytes()
    assert not folder.exists()


def test_a_pack_that_failed_before_its_first_part_leaves_nothing(tmp_path):
    write_lines(tmp_path / "a.jsonl", ["a"], key="text")
    with pytest.raises(ValueError, match="expected an object with the key 'txt'"):
        pack(tmp_path / "a.jsonl", tmp_path / "out.aegis", kind="jsonl", key="txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder: expected the name of a file to write"):
        pack(tmp_path / "a.jsonl", tmp_path / "folder", kind="jsonl", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "folder"]


def test_damaged_part_is_named(tmp_path, monkeypatch, small_chunks):
    (tmp_path / "a.txt").write_bytes(bytes(500))
    interrupted(tmp_path, monkeypatch)
    part = tmp_path / "out.aegis.parts" / "00000003.aegis"
    data = bytearray(part.read_bytes())
    data[200] ^= 1
    part.write_bytes(data)
    with pytest.raises(ValueError, match=r"00000003\.aegis: block 0 .* is damaged.*; remove this part"):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis")
    part.unlink()
    assert pack(tmp_path / "a.txt", tmp_path / "out.aegis").reused == 7


def test_input_that_changes_meanwhile_is_refused(tmp_path, monkeypatch, small_chunks):
    (tmp_path / "a.txt").write_bytes(bytes(500))
    real = pack_module._write_parts

    def change_behind(*arguments):
        real(*arguments)
        (tmp_path / "a.txt").write_bytes(bytes(499))

    monkeypatch.setattr(pack_module, "_write_parts", change_behind)
    with pytest.raises(ValueError, match=r"a\.txt: changed while it was packed"):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis")


def test_two_packs_do_not_share_parts(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(bytes(500))

    def pack_again(*_):
        with pytest.raises(ValueError, match="another process is packing there"):
            pack(tmp_path / "a.txt", tmp_path / "out.aegis")
        raise OSError("seen")

    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "_write_parts", pack_again)
        with pytest.raises(OSError, match="seen"):
            pack(tmp_path / "a.txt", tmp_path / "out.aegis")


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
