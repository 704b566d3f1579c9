"""What a run can show for itself afterwards."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aegis.evidence.chain import IntegrityChain
from aegis.evidence.receipt import LossDigest, Receipt
from aegis.evidence.receipt_file import read_receipt
from aegis.evidence.replay import Replay
from aegis.evidence.telemetry import Telemetry
from aegis.evidence.telemetry_file import read_telemetry
from aegis.evidence.verify import Check, verify_receipt

if TYPE_CHECKING:
    from aegis.evidence.experiment_run import experiment
    from aegis.evidence.soak_run import soak

__all__ = [
    "Check",
    "IntegrityChain",
    "LossDigest",
    "Receipt",
    "Replay",
    "Telemetry",
    "experiment",
    "read_receipt",
    "read_telemetry",
    "soak",
    "verify_receipt",
]

_LAZY = {"experiment": "experiment_run", "soak": "soak_run"}  # these train, and so import aegis.train


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"aegis.evidence.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
