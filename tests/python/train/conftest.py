"""A tiny model, a tiny text, and loaders over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aegis.train import presets
from aegis.train.settings import Settings
from aegis.train.text import pack_text

TINY = presets.Preset(layers=1, heads=2, width=32, block_size=32, batch_size=8, steps=40, lr=1e-2)


@pytest.fixture(autouse=True)
def small_models(one_thread: None) -> None:
    """A tiny model loses more to a second thread than it gains."""


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "small", TINY)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """About 40 kB of text that a byte model learns fast."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} times {n + 1} is {n * (n + 1)}, and so on.\n" for n in range(1200)))
    return path


@pytest.fixture
def settings(text: Path, tmp_path: Path) -> Callable[..., Settings]:
    """Settings for the packed text; keywords replace single ones."""
    packed = pack_text(tmp_path / "packed", [text])
    given = {
        "data": str(packed.train),
        "val_data": str(packed.validation),
        "dtype": "uint8",
        "preset": "small",
    }
    return lambda **changes: Settings.resolve({**given, **changes})
