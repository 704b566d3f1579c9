"""aegis.data.pack makes the same file whoever worked on its parts, however often it was killed."""

import os
import signal
import subprocess
import sys

import pytest
from aegis.data import pack as pack_module
from aegis.data.pack import pack
from packed import write_lines


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
