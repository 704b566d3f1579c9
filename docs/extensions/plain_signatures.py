"""Signatures as a reader would write them, and docstrings of properties as they are."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

ANY_ARRAY = r"~?numpy\.ndarray\[tuple\[~?(?:typing\.)?Any, \.\.\.\], ~?numpy\.dtype\[([^\[\]]+)\]\]"
SHORTER = (
    (re.compile(ANY_ARRAY), r"NDArray[\1]"),
    (re.compile(r"<factory>"), "..."),
    (re.compile(r"self: aegis\._C\.\w+(, )?"), ""),  # pybind11's
    (re.compile(r"(?:typing\.)?SupportsInt \| (?:typing\.)?SupportsIndex"), "int"),
)


def shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    for pattern, text in SHORTER:
        signature = signature and pattern.sub(text, signature)
        returns = returns and pattern.sub(text, returns)
    return signature, returns


def keep_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """An empty comment in front: napoleon takes what stands before a colon in the first line for a type."""
    if what in ("attribute", "data", "property") and lines:
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
