"""Files of aegis.evidence.Telemetry: rotated, read, on disks that fill up or hang, after a process that was killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aegis.evidence import Telemetry, read_telemetry
from aegis.evidence.telemetry_file import RotatingCsv
from waiting import WAIT, until


def test_files_rotate_by_size_and_the_newest_stay(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with Telemetry(path, interval=1e-3, max_bytes=4096, keep=2) as telemetry:
        for _ in range(40):
            written = telemetry.stats()["rows"]
            for _ in range(10):
                telemetry.step()
            until(lambda written=written: telemetry.stats()["rows"] > written)
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert len(parts) == 3
    assert "t.csv" in parts
    table = read_telemetry(path)
    assert table["step"][-1] == 400
    assert (np.diff(table["step"]) == 1).all()
    for part in tmp_path.iterdir():
        assert part.read_text().startswith("step,")


def test_an_older_file_is_left_alone_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    Telemetry(path).close()
    (tmp_path / "t.3.csv").write_text("older\n")
    with pytest.raises(FileExistsError, match=r"path: expected no such file \(or replace=True\), but there is .*t.csv"):
        Telemetry(path)
    Telemetry(path, replace=True).close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


class Disk:
    """Stands between RotatingCsv and the kernel: has room for so many bytes, and takes a part before it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr("aegis.evidence.telemetry_file.os.write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._write(fd, data[: self.room])
        self.room -= count
        return count


def test_a_full_disk_is_told_once_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    telemetry = Telemetry(tmp_path / "t.csv", interval=1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        telemetry.step()
        until(lambda: telemetry.stats()["rows"] == 1)
        disk.room = 30  # the middle of a line
        for _ in range(3):
            telemetry.step()
        until(lambda: telemetry.stats()["lost_rows"] == 3)
        telemetry.step()
        until(lambda: telemetry.stats()["lost_rows"] == 4)
        disk.room = None
        telemetry.step()
        telemetry.close()
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1
    assert "t.csv cannot be written, rows are lost until it can: [Errno 28]" in messages[0]
    assert telemetry.stats() == {"rows": 2, "dropped_rows": 0, "lost_rows": 4, "clock_steps": 0}
    assert read_telemetry(tmp_path / "t.csv")["step"].tolist() == [1, 6]


def test_a_disk_that_fills_up_as_files_rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    file = RotatingCsv(tmp_path / "t.csv", ["step"], max_bytes=8, keep=None)
    file.append(b"1\n2\n")
    disk.room = 0
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.append(b"3\n")
    disk.room = None
    file.append(b"4\n")
    file.close()
    assert read_telemetry(tmp_path / "t.csv")["step"].tolist() == [1, 2, 4]


def test_a_file_that_cannot_be_put_away_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    file = RotatingCsv(tmp_path / "t.csv", ["step"], max_bytes=8, keep=None)
    file.append(b"1\n2\n")
    with monkeypatch.context() as patched:
        patched.setattr("aegis.evidence.telemetry_file.os.replace", refuse)
        for _ in range(2):
            with pytest.raises(PermissionError):
                file.append(b"3\n")
    file.append(b"4\n")
    file.close()
    assert read_telemetry(tmp_path / "t.csv")["step"].tolist() == [1, 2, 4]


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, released = threading.Event(), threading.Event()
    append = RotatingCsv.append

    def hang(self: RotatingCsv, lines: bytes) -> None:
        hanging.set()
        assert released.wait(WAIT)
        append(self, lines)

    monkeypatch.setattr(RotatingCsv, "append", hang)
    telemetry = Telemetry(tmp_path / "t.csv", interval=1e-3, capacity=10)
    telemetry.step()
    assert hanging.wait(WAIT)
    for _ in range(30):
        telemetry.step()
    assert telemetry.stats()["dropped_rows"] == 20
    released.set()
    telemetry.close()
    assert telemetry.stats() == {"rows": 11, "dropped_rows": 20, "lost_rows": 0, "clock_steps": 0}
    assert read_telemetry(tmp_path / "t.csv")["step"].tolist() == list(range(1, 12))


@pytest.mark.parametrize("blocked", ["file in the way", "folder in the way", "read-only folder"])
def test_a_folder_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path: Path, blocked: str) -> None:
    path = tmp_path / "folder" / "t.csv"
    if blocked == "file in the way":
        path.parent.write_text("")
    elif blocked == "folder in the way":
        path.mkdir(parents=True)
    elif os.geteuid() == 0:
        path = Path("/proc/t.csv")  # root may write to every folder but such ones
    else:
        path.parent.mkdir(mode=0o500)
    threads = threading.active_count()
    with pytest.raises(OSError, match=str(path.parent)):
        Telemetry(path)
    assert threading.active_count() <= threads  # one of an earlier test may have ended


PROGRAM = """
import os, signal, sys, time
from aegis.evidence import Telemetry
telemetry = Telemetry(sys.argv[1], interval=0.01)
for step in range(1, 200):
    telemetry.step(loss=step)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        for step in range(5000):
            telemetry.step()
        assert telemetry.stats()["dropped_rows"] == 5000
        telemetry.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
if sys.argv[2] == "SIGKILL":
    while telemetry.stats()["rows"] < 199:
        time.sleep(0.01)
    telemetry.step()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "status"), [("fork", 0), ("SIGKILL", -9)])
def test_however_a_process_ends_whole_lines_stay(tmp_path: Path, end: str, status: int) -> None:
    path = tmp_path / "t.csv"
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(path), end], capture_output=True, timeout=WAIT * 2)
    assert ended.returncode == status, ended.stderr
    text = path.read_text()
    assert text.endswith("\n")
    assert read_telemetry(path)["loss"][:199].tolist() == list(range(1, 200))
    assert len(text.splitlines()) in ((200, 201) if end == "SIGKILL" else (200,))


def test_reading_tells_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    cases = {
        "": "expected a header, got an empty file",
        "a,b\n1,2\n3\n": "line 3: expected 2 cells as in the header, got 1",
        "a,b\n1," + "9" * 200_000 + "\n": "expected CSV, got: field larger than",
        "a,b\n1,x\n": "line 2: expected numbers, got: could not convert string to float: 'x'",
    }
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_telemetry(path)
    path.write_text("a,b\n1,2\n3,")
    assert read_telemetry(path)["a"].tolist() == [1.0]
    (tmp_path / "t.1.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match="expected the header of the parts before it, got a,b"):
        read_telemetry(path)
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        read_telemetry(tmp_path / "none.csv")


def test_file_size_limit_of_the_kernel(tmp_path: Path) -> None:
    program = """
import resource, sys, warnings
from aegis.evidence import Telemetry
telemetry = Telemetry(sys.argv[1], interval=0.005)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    step = 0
    while telemetry.stats()["lost_rows"] < 50:
        step += 1
        telemetry.step(step=step)
        if step % 5 == 0:
            written = telemetry.stats()
            while sum(telemetry.stats().values()) < step:
                pass
    telemetry.close()
assert len(caught) == 1, caught
assert "File too large" in str(caught[0].message)
"""
    path = tmp_path / "t.csv"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=WAIT * 2)
    assert path.stat().st_size <= 6000
    assert len(read_telemetry(path)["step"]) > 5
