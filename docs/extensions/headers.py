"""The directive ``csrc-headers``: the headers of a folder of csrc, with the sentence that each begins with."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def purpose(header: Path) -> str:
    """The first sentence of the comment at the top."""
    comment = itertools.takewhile(lambda line: line.startswith("// "), header.read_text().splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(line.removeprefix("// ") for line in comment), maxsplit=1)[0]


class Headers(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        items = nodes.definition_list()
        for header in sorted((CSRC / self.arguments[0]).glob("*.h")):
            self.env.note_dependency(str(header))
            term = nodes.term("", "", nodes.literal("", str(header.relative_to(CSRC))))
            items += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", purpose(header))))
        if not len(items):
            raise self.error(f"csrc/{self.arguments[0]}: no headers there")
        return [items]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("csrc-headers", Headers)
    return {"parallel_read_safe": True}
