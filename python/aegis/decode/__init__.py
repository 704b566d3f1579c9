"""What runs once per token: the cache of keys and values, and attention to it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aegis.decode.attention import register_attention
    from aegis.decode.cache import SlottedStaticCache

__all__ = ["SlottedStaticCache", "register_attention"]

# These import transformers, which is optional: each module is imported when its name is first asked for.
_MODULES = {"SlottedStaticCache": "cache", "register_attention": "attention"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
