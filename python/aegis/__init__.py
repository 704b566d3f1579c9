"""aegis: training batches and decoded tokens for PyTorch, from flat, aligned, reused memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (loads the libraries that the operators link to)

from aegis import ops
from aegis._C import ArenaExhausted, build_info, cpu_isa
from aegis.arena import Arena
from aegis.data.loader import FlatArenaDataLoader
from aegis.data.mixture import TokenMixture
from aegis.data.patch import patch_torch
from aegis.data.record_dataset import RecordDataset
from aegis.data.token_batch import TokenBatch
from aegis.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from aegis.decode import (
        CUDAGraphFastRunner,
        FusedLogitsSampler,
        PagedKVCache,
        PageTable,
        SlottedStaticCache,
        SpeculativeFastRunner,
        SpscRing,
        bench_generate,
        generate,
    )
    from aegis.runtime.graphed_step import GraphedTrainStep

__version__ = build_info()["version"]
__all__ = [
    "Arena",
    "ArenaExhausted",
    "CUDAGraphFastRunner",
    "FlatArenaDataLoader",
    "FusedLogitsSampler",
    "GraphedTrainStep",
    "PageTable",
    "PagedKVCache",
    "RecordDataset",
    "SlottedStaticCache",
    "SpeculativeFastRunner",
    "SpscRing",
    "TokenBatch",
    "TokenDataset",
    "TokenMixture",
    "bench_generate",
    "build_info",
    "cpu_isa",
    "decode",
    "evidence",
    "generate",
    "ops",
    "patch_torch",
    "quant",
    "runtime",
]

_PACKAGES = frozenset({"decode", "evidence", "quant", "runtime"})
_OF_DECODE = frozenset(
    {
        "CUDAGraphFastRunner",
        "FusedLogitsSampler",
        "PageTable",
        "PagedKVCache",
        "SlottedStaticCache",
        "SpeculativeFastRunner",
        "SpscRing",
        "bench_generate",
        "generate",
    }
)

cpu_isa()  # an AEGIS_FORCE_ISA that cannot be honoured is an error here, not at the first batch


def __getattr__(name: str) -> Any:
    """Packages, and what needs transformers, are imported when they are first asked for."""
    if name in _PACKAGES:
        return import_module(f"aegis.{name}")
    if name in _OF_DECODE:
        return getattr(import_module("aegis.decode"), name)
    if name == "GraphedTrainStep":
        return import_module("aegis.runtime.graphed_step").GraphedTrainStep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
