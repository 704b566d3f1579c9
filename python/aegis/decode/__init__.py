"""What runs once per token: the cache of keys and values, attention to it, sampling, and the loop around them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aegis.decode.attention import register_attention
    from aegis.decode.bench import bench_generate
    from aegis.decode.cache import SlottedStaticCache
    from aegis.decode.drafts import EarlyExit, PromptLookup
    from aegis.decode.generation import generate
    from aegis.decode.linears import skinny_linears
    from aegis.decode.page_table import PagesExhausted, PageTable
    from aegis.decode.paged_cache import PagedKVCache
    from aegis.decode.runner import CUDAGraphFastRunner
    from aegis.decode.sampler import FusedLogitsSampler
    from aegis.decode.speculative import SpeculativeFastRunner
    from aegis.decode.spsc_ring import SpscRing
    from aegis.decode.trees import TokenTree

__all__ = [
    "CUDAGraphFastRunner",
    "EarlyExit",
    "FusedLogitsSampler",
    "PageTable",
    "PagedKVCache",
    "PagesExhausted",
    "PromptLookup",
    "SlottedStaticCache",
    "SpeculativeFastRunner",
    "SpscRing",
    "TokenTree",
    "bench_generate",
    "generate",
    "register_attention",
    "skinny_linears",
]

# Some import transformers, which is optional: each module is imported when its name is first asked for.
_MODULES = {
    "CUDAGraphFastRunner": "runner",
    "EarlyExit": "drafts",
    "FusedLogitsSampler": "sampler",
    "PageTable": "page_table",
    "PagedKVCache": "paged_cache",
    "PagesExhausted": "page_table",
    "PromptLookup": "drafts",
    "SlottedStaticCache": "cache",
    "SpeculativeFastRunner": "speculative",
    "SpscRing": "spsc_ring",
    "TokenTree": "trees",
    "bench_generate": "bench",
    "generate": "generation",
    "register_attention": "attention",
    "skinny_linears": "linears",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(f"{name} needs transformers: pip install 'aegis-torch[generate]'", name=error.name) from error
    return getattr(module, name)
