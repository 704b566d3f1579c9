import json

import numpy as np
import pytest
import torch
from aegis.cli import bench, main

OPTIONS = ("--block-size", "8", "--batch-size", "4", "--num-workers", "0")


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(8 * 4 * 30 + 1, dtype=np.uint16))
    return str(path)


def test_figures_of_both_loaders(capsys, tokens):
    assert main(["bench", tokens, *OPTIONS, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() == {"torch.utils.data.DataLoader", "aegis.FlatArenaDataLoader"}
    for row in figures.values():
        assert all(value > 0 for value in row.values())
        assert row["median_us"] <= row["p99_us"]


def test_table_says_what_was_measured(capsys, tokens):
    assert main(["bench", tokens, *OPTIONS, "--batches", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 x 10 batches of 4 x 8 tokens, the first 10 equal"
    assert [line.split()[0] for line in lines[2:4]] == list(bench._LOADERS)
    assert "the loader alone" in lines[4]


def test_worker_processes(capsys, tokens):
    assert main(["bench", tokens, *OPTIONS[:-1], "1", "--batches", "3"]) == 0
    assert "3 x 3 batches" in capsys.readouterr().out


def test_batches_that_differ_are_an_error(capsys, tokens, monkeypatch):
    class Shifted(torch.utils.data.DataLoader):
        def __iter__(self):
            return ([tensor + 1 for tensor in batch] for batch in super().__iter__())

    monkeypatch.setitem(bench._LOADERS, "torch.utils.data.DataLoader", Shifted)
    assert main(["bench", tokens, *OPTIONS]) == 1
    assert capsys.readouterr().out == "batches differ, first at number 1\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-size", "0"), "--block-size: expected at least 1, got 0"),
        (("--num-workers", "-1"), "--num-workers: expected at least 0, got -1"),
        (("--batches", "1"), "--batches: expected at least 2, got 1"),
        (("--batch-size", "100"), "expected at least 2 batches, got 120 windows"),
    ],
)
def test_bad_input_is_one_line(capsys, tokens, options, message):
    assert main(["bench", tokens, *OPTIONS, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("aegis bench: error: ")
    assert message in line


def test_a_missing_file_is_one_line(capsys, tmp_path):
    assert main(["bench", str(tmp_path / "none.bin"), "--dtype", "uint16"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.bin" in line
