import itertools
import json

import numpy as np
import pytest
from aegis.cli import main
from aegis.data import document_offsets
from aegis.data.formats import describe


def pack(*arguments):
    return main(["pack", "--workers", "1", *map(str, arguments)])


@pytest.mark.parametrize(
    ("name", "data", "options", "expected"),
    [
        ("a.txt", b"abc", [], [b"abc"]),
        ("a.jsonl", b'{"text": "abc"}\n{"text": "d"}\n', ["--eos", "0"], [b"abc\0", b"d\0"]),
        ("a.json", b'{"body": "abc"}\n', ["--key", "body", "--bos", "1"], [b"\1abc"]),
        ("a.bin", bytes(range(1, 7)), ["--dtype", "uint8"], [bytes(range(1, 7))]),
        ("a.jsonl", b'{"text": "abc"}\n', ["--from", "text"], [b'{"text": "abc"}\n']),
    ],
)
def test_packs_what_the_file_is(tmp_path, capsys, name, data, options, expected):
    (tmp_path / name).write_bytes(data)
    out = tmp_path / "out.aegis"
    assert pack(tmp_path / name, "-o", out, *options) == 0
    file = describe(out)
    ids = out.read_bytes()[192 : 192 + file.tokens]
    offsets = document_offsets(file)
    offsets = [0, file.tokens] if offsets is None else offsets.tolist()
    assert [ids[begin:end] for begin, end in itertools.pairwise(offsets)] == expected
    told, err = capsys.readouterr()
    assert str(out) in told
    assert f"{file.tokens:,} of uint8" in told
    assert err == ""  # no bar: this is no terminal


def test_recognised_token_files_are_copied(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(300))
    assert pack(tmp_path / "a.npy", "-o", tmp_path / "out.aegis", "--store-as", "uint32", "--vocab-size", 300) == 0
    assert "300 of uint32" in capsys.readouterr().out
    assert pack(tmp_path / "out.aegis", "-o", tmp_path / "b.aegis", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert describe(tmp_path / "b.aegis").vocab_size == 300


def test_errors_are_one_line(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"abc")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": 5}))
    out = tmp_path / "out.aegis"
    for arguments, message in (
        ([tmp_path / "a.txt", tmp_path / "b.jsonl", "-o", out], "the files are of different kinds (jsonl, text)"),
        ([tmp_path / "b.jsonl", "-o", out], "expected a text under 'text', got int"),
        ([tmp_path / "none", "-o", out], "No such file"),
        ([tmp_path / "a.txt", "-o", tmp_path / "none" / "x"], "none"),
        ([tmp_path / "a.txt", "-o", out, "--pattern", "x"], "expected a --tokenizer of tiktoken"),
        ([tmp_path / "a.txt", "-o", tmp_path], "expected the name of a file to write, got a folder"),
    ):
        assert pack(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("aegis pack: error: ")
        assert message in line
