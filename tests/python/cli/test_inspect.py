import json
import os

import numpy as np
import pytest
from aegis.cli import main


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(1000, dtype=np.uint16))
    return str(path)


def report(capsys, *arguments):
    status = main(["inspect", "--json", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


def test_says_what_is_in_a_file(capsys, tokens):
    assert main(["inspect", tokens]) == 0
    lines = dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()[1:])
    told = {name: value.strip() for name, value in lines.items()}
    assert told == {
        "format": "npy, tokens from byte 128",
        "dtype": "uint16",
        "tokens": "1,000 in 2.1 KiB",
        "documents": "not recorded in this format",
        "first tokens": "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...",
        "largest id": "999",
        "problems": "none",
    }


def test_json_is_for_programs(capsys, tokens):
    status, (file,), err = report(capsys, tokens)
    assert (status, err) == (0, "")
    assert (file["path"], file["tokens"], file["dtype"], file["largest_id"]) == (tokens, 1000, "uint16", 999)
    assert file["documents"] is None
    assert file["problems"] == []


def test_looks_no_further_than_asked(capsys, tokens):
    assert report(capsys, tokens, "--scan", "10")[1][0]["largest_id"] == 9
    main(["inspect", tokens, "--scan", "10"])
    assert "largest id    9 (in the first 10 tokens)" in capsys.readouterr().out


def test_ids_outside_the_vocabulary_are_a_problem_case44(capsys, tokens):
    assert report(capsys, tokens, "--vocab-size", "1000")[0] == 0
    status, (file,), _ = report(capsys, tokens, "--vocab-size", "999")
    assert status == 1
    assert "expected 0 to 998" in file["problems"][0]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([5, -7, 3], "int32", "ids below 0 (the smallest is -7)"),
        (np.zeros(50), "uint16", "every id is 0"),
        (np.stack([np.arange(1, 101), np.zeros(100)], 1).ravel(), "uint16", "look like uint32 read as uint16"),
    ],
)
def test_contents_that_look_wrong_are_a_problem_case45(capsys, tmp_path, values, dtype, message):
    path = tmp_path / "a.bin"
    np.asarray(values).astype(dtype).tofile(path)
    status, (file,), _ = report(capsys, path, "--dtype", dtype)
    assert status == 1
    assert message in file["problems"][0]


def test_errors_are_one_line_and_the_rest_is_shown_case46(capsys, tmp_path, tokens):
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"123")
    status, files, err = report(capsys, odd, tokens, tmp_path / "none.bin", tmp_path)
    assert status == 1
    assert [file["path"] for file in files] == [tokens]
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("aegis inspect: error: ") for line in lines)
    assert "odd.bin: nothing in the file says" in lines[0]
    assert main(["inspect", str(odd), "--dtype", "uint16"]) == 1
    assert "1 left over" in capsys.readouterr().err


def test_a_file_cut_short_meanwhile_is_an_error_case50(capsys, tokens, monkeypatch):
    from aegis.cli import inspect

    def cut_before_opening_is_done(files, real=inspect.open_store):
        store = real(files)
        os.truncate(tokens, 200)
        return store

    monkeypatch.setattr(inspect, "open_store", cut_before_opening_is_done)
    status, files, err = report(capsys, tokens)
    assert (status, files) == (1, [])
    assert "cut short" in err


def test_wrong_options_end_with_usage(capsys, tokens):
    for wrong in (["--dtype", "float32"], ["--format", "parquet"], ["--scan", "0"], ["--vocab-size", "x"]):
        with pytest.raises(SystemExit) as stopped:
            main(["inspect", tokens, *wrong])
        assert stopped.value.code == 2
        assert wrong[0] in capsys.readouterr().err


def test_every_format_is_known(capsys, tmp_path):
    from aegis.data.pack import pack

    (tmp_path / "a.txt").write_bytes(b"abc" * 100)
    path = tmp_path / "a.aegis"
    pack(tmp_path / "a.txt", path, eos=0)
    status, (file,), _ = report(capsys, path, "--verify")
    assert (status, file["documents"], file["longest_document"]) == (0, 1, 301)
    assert (file["vocab_size"], file["largest_id_recorded"], file["checksums"]) == (256, 99, "as they should be")
    main(["inspect", str(path)])
    told = capsys.readouterr().out
    assert "1, of 301 to 301 tokens" in told
    assert "not checked" in told
    with open(path, "r+b") as changed:
        changed.seek(200)
        changed.write(b"x")
    status, (file,), _ = report(capsys, path, "--vocab-size", str(2**64))
    assert (status, file["problems"]) == (1, ["the largest id is 120, but the header says 99"])
    status, files, err = report(capsys, path, "--verify")
    assert (status, files) == (1, [])
    assert "a.aegis: block 0 (bytes 192 to" in err


def test_vocabulary_is_looked_for_in_all_tokens_case44(capsys, tmp_path):
    ids = np.zeros(3_000_000, np.uint32)
    ids[2_999_000:] = 70_000
    ids[0] = 3
    np.save(tmp_path / "a.npy", ids)
    status, (file,), _ = report(capsys, tmp_path / "a.npy", "--vocab-size", "65536")
    assert status == 1
    assert file["problems"] == ["ids outside the vocabulary: expected 0 to 65535, got 70000 at token 2999000"]
    assert report(capsys, tmp_path / "a.npy", "--vocab-size", "65536", "--scan", "1000")[0] == 0
