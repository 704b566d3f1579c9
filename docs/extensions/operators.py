"""Puts the schemas that torch has registered for an operator under the docstring of its Python function.

Warns of an operator that has no function in ``aegis.ops``, and so no place in the documentation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from sphinx.application import Sphinx
from sphinx.util import logging

PREFIX = "aegis.ops."


def registered() -> dict[str, list[str]]:
    """Every overload's schema, by the operator's name; the default overload comes first."""
    import aegis  # noqa: F401  (brings the operators)

    schemas: defaultdict[str, list[str]] = defaultdict(list)
    for schema in sorted(torch._C._jit_get_all_schemas(), key=lambda schema: schema.overload_name):
        if schema.name.startswith("aegis::"):
            schemas[schema.name.removeprefix("aegis::")].append(str(schema))
    return dict(schemas)


def add_schemas(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    schemas = registered().get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    if schemas:
        lines += ["", ".. rubric:: Schemas", "", ".. code-block:: none", "   :class: schemas", ""]
        lines += [f"   {schema}" for schema in schemas]
        lines += [""]


def check(app: Sphinx, env: Any) -> None:
    documented = {name for name, *_ in env.get_domain("py").get_objects()}
    for name in registered():
        if PREFIX + name not in documented:
            logging.getLogger(__name__).warning("operator %s is on no page", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", add_schemas)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
