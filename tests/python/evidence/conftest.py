"""Training runs that are small enough to be started in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aegis.train.settings import Settings
from aegis.train.text import pack_text


@pytest.fixture(autouse=True)
def small_models(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models lose more to a second thread than they gain, in the processes that tests start, too."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """About 40 kB of text that a byte model learns fast."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} times {n + 1} is {n * (n + 1)}, and so on.\n" for n in range(1200)))
    return path


@pytest.fixture
def settings(text: Path, tmp_path: Path) -> Callable[..., Settings]:
    packed = pack_text(tmp_path / "packed", [text])
    given = {"data": str(packed.train), "val_data": str(packed.validation), "dtype": "uint8", "preset": "small"}
    return lambda **changes: Settings.resolve({**given, "block_size": 16, "batch_size": 2, **changes})
