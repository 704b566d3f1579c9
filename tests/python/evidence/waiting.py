from __future__ import annotations

import time
from collections.abc import Callable

WAIT = 60.0
"""Seconds that a loaded machine may need."""


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)
