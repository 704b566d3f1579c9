"""What runs once per token: the sampler."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aegis.decode.sampler import FusedLogitsSampler

__all__ = ["FusedLogitsSampler"]

_MODULES = {"FusedLogitsSampler": "sampler"}


def __getattr__(name: str) -> Any:
    """Each module is imported when its name is first asked for: some import transformers, which is optional."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
