"""The directive ``aegis-help``: what ``aegis COMMAND --help`` prints. Its argument is the command, or nothing."""

from __future__ import annotations

import contextlib
import io
import os
from unittest import mock

from aegis.cli import main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class AegisHelp(SphinxDirective):
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = io.StringIO()
        plain = mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"})
        with plain, contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*self.arguments, "--help"])
        if not text.getvalue():
            raise self.error(f"aegis {' '.join(self.arguments)}: no such command")
        return [nodes.literal_block(text.getvalue(), text.getvalue(), language="none")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("aegis-help", AegisHelp)
    return {"parallel_read_safe": True}
