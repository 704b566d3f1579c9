"""Warns of a public name that is on no page: one in ``__all__`` of aegis or of a package that aegis names there."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import aegis
from sphinx.application import Sphinx
from sphinx.util import logging


def public() -> Iterator[tuple[str, ...]]:
    """Where each name may be documented: what a package has from aegis itself may be there instead."""
    for name in aegis.__all__:
        yield (f"aegis.{name}",)
        package = getattr(aegis, name)
        if isinstance(package, ModuleType):
            for inner in package.__all__:
                same = getattr(aegis, inner, None) is getattr(package, inner)
                yield (f"aegis.{name}.{inner}", f"aegis.{inner}") if same else (f"aegis.{name}.{inner}",)


def check(app: Sphinx, env: Any) -> None:
    documented = {name for name, *_ in env.get_domain("py").get_objects()}
    for names in public():
        if documented.isdisjoint(names):
            logging.getLogger(__name__).warning("%s is public and on no page", names[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
