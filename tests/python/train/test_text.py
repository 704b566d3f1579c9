from __future__ import annotations

from pathlib import Path

import pytest
from aegis.train.text import atomic_file, pack_text, standard_library, text_files
from hypothesis import given, settings
from hypothesis import strategies as st


def joined(folder: Path) -> bytes:
    return (folder / "train.bin").read_bytes() + (folder / "val.bin").read_bytes()


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8))
def test_every_byte_is_a_token_and_documents_end_with_zero(
    tmp_path_factory: pytest.TempPathFactory, documents: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    paths = []
    for i, document in enumerate(documents):
        paths.append(folder / f"{i}.txt")
        paths[-1].write_bytes(document)
    packed = pack_text(folder, paths)
    assert joined(folder) == b"".join(document + b"\0" for document in documents)
    assert packed.train.stat().st_size == packed.train_tokens
    assert packed.validation.stat().st_size == packed.validation_tokens == len(joined(folder)) // 20
    assert packed.documents == len(documents)


def test_the_standard_library_is_packed_by_default_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = standard_library()
    names = {path.name for path in files}
    assert {"argparse.py", "zipfile.py"} <= names or {"argparse.py", "zipfile"} <= names
    assert not any({"site-packages", "test", "tests"} & set(path.parts) for path in files)
    monkeypatch.setattr("aegis.train.text.standard_library", lambda: files[:20])
    pack_text(tmp_path / "first")
    pack_text(tmp_path / "second")
    assert joined(tmp_path / "first") == joined(tmp_path / "second")
    assert joined(tmp_path / "first").startswith(files[0].read_bytes() + b"\0")


def test_folders_are_walked_in_order_without_hidden_binary_and_test_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/.hidden", ".git/config", "test/t.txt", "c.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    binary = tmp_path / "image.png"
    binary.write_bytes(b"\x89PNG\0")
    found = [path.relative_to(tmp_path).as_posix() for path in text_files([tmp_path])]
    assert found == ["b.txt", "c.txt", "a/z.txt"]
    assert text_files([binary]) == [binary]  # a file named is taken as it is


def test_missing_path_and_empty_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"text: expected a file or a folder, got .*nowhere"):
        pack_text(tmp_path, [tmp_path / "nowhere"])
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(ValueError, match=r"text: expected at least one byte, found none in .*empty\.txt"):
        pack_text(tmp_path / "out", [empty])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"old")

    def write_and_fail() -> None:
        with atomic_file(path) as file:
            file.write(b"half of the n")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.bin"]
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_packing_that_fails_half_way_keeps_the_older_tokens(tmp_path: Path, text: Path) -> None:
    pack_text(tmp_path / "out", [text])
    before = joined(tmp_path / "out")
    unreadable = tmp_path / "dangling"
    unreadable.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        pack_text(tmp_path / "out", [text, unreadable])
    assert joined(tmp_path / "out") == before
