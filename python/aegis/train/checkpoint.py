"""Checkpoints: tensors, numbers and strings only, read back without running any code they might hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from aegis.evidence.chain import IntegrityChain
from aegis.files import atomic_file
from aegis.train.meter import StepRecord
from aegis.train.trainer import Trainer

__all__ = ["load_checkpoint", "restore", "save_checkpoint"]

_FORMAT = 2
_KEYS = {"format", "settings", "loader", "model", "optimizer", "records", "random_state", "chains"}


def save_checkpoint(
    path: Path,
    trainer: Trainer,
    settings: dict[str, Any],
    loader_state: dict[str, Any],
    chains: Mapping[str, IntegrityChain] = MappingProxyType({}),
) -> None:
    """Write the state between two steps; an older file stands until the new one is complete.

    Args:
        settings: what the caller needs to build the same trainer again; plain values.
        loader_state: ``loader.state_dict()``: the batches delivered so far, not those prefetched.
        chains: the run's, by name; their states are saved.
    """
    state = {
        "format": _FORMAT,
        "settings": settings,
        "loader": loader_state,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "records": torch.tensor([record.row() for record in trainer.records], dtype=torch.float64),
        "random_state": torch.get_rng_state(),
        "chains": {name: chain.state() for name, chain in chains.items()},
    }
    with atomic_file(path) as file:
        torch.save(state, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The saved state, on the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not a checkpoint of this format.
    """
    with path.open("rb") as file:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file raises anything, from EOFError to UnpicklingError
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path}: expected a checkpoint of aegis train, got: {reason}") from error
    if not isinstance(state, dict) or state.keys() != _KEYS or state["format"] != _FORMAT:
        raise ValueError(f"{path}: expected a checkpoint of aegis train, format {_FORMAT}")
    return state


def restore(trainer: Trainer, state: dict[str, Any]) -> None:
    """Put ``trainer`` and torch's CPU generator where they were when ``state`` was saved."""
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.records[:] = [StepRecord.from_row(row) for row in state["records"].tolist()]
    torch.set_rng_state(state["random_state"])
