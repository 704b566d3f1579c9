"""Titled lists of names and values, aligned, for people to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["print_section", "readable_bytes"]


def print_section(title: str, rows: Sequence[tuple[str, str]], width: int = 0) -> None:
    """Print a title, bold on a terminal, and its rows under it; names take ``width`` columns or more."""
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[1m{title}\033[0m" if bold else title)
    width = max(width, *(len(name) for name, _ in rows))
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def readable_bytes(count: int) -> str:
    """1,536 -> '1.5 KiB'."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
