"""aegis: training batches and decoded tokens for PyTorch, from flat, aligned, reused memory."""

from __future__ import annotations

import torch  # noqa: F401  (loads the libraries that the operators link to)

from aegis import ops
from aegis._C import ArenaExhausted, build_info, cpu_isa
from aegis.arena import Arena
from aegis.data.loader import FlatArenaDataLoader
from aegis.data.patch import patch_torch
from aegis.data.record_dataset import RecordDataset
from aegis.data.token_dataset import TokenDataset

__version__ = build_info()["version"]
__all__ = [
    "Arena",
    "ArenaExhausted",
    "FlatArenaDataLoader",
    "RecordDataset",
    "TokenDataset",
    "build_info",
    "cpu_isa",
    "ops",
    "patch_torch",
]

cpu_isa()  # an AEGIS_FORCE_ISA that cannot be honoured is an error here, not at the first batch
