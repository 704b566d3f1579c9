"""Lets links that are right on the repository's pages lead to the pages that are made here of the same files."""

from __future__ import annotations

from sphinx.application import Sphinx

PAGES = {
    "../../benchmarks/README.md": "../benchmarks.md",
    "../../CONTRIBUTING.md": "../contributing.md",
    "../../CHANGELOG.md": "../changelog.md",
}


def to_pages(app: Sphinx, name: str, source: list[str]) -> None:
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"({file}", f"({page}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", to_pages)
    return {"parallel_read_safe": True}
