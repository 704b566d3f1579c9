"""One side of a comparison: everything about a training run that may differ from the other sides."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

__all__ = ["Arm", "parse_arm"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "loader": ("aegis", "torch"),
    "audit": ("on", "off"),
    "dtype": ("float32", "bfloat16"),
    "master": ("float32", "nearest", "stochastic", "truncate"),
    "tf32": ("on", "off"),
    "step": ("eager", "compiled", "graphed"),
}


@dataclass(frozen=True)
class Arm:
    """A training run of the Micro-GPT; what is not named here is the same in all arms.

    Attributes:
        name: for tables and file names.
        loader: aegis.FlatArenaDataLoader or torch.utils.data.DataLoader.
        audit: an :class:`~aegis.evidence.IntegrityChain` over step, loss and whole batch, at every step.
        dtype: of the computation; bfloat16 is torch's autocast.
        master: what the weights are kept as between two steps. float32, or bfloat16 values (in float32 storage) that
            every update is rounded to: to nearest even, stochastically, or by cutting the lower bits off.
        tf32: float32 products on tensor cores, with 10 bits of mantissa; CUDA only.
        step: eager; compiled by torch.compile; or graphed, compiled with CUDA graphs, CUDA only.
    """

    name: str
    loader: str = "aegis"
    audit: str = "off"
    dtype: str = "float32"
    master: str = "float32"
    tf32: str = "off"
    step: str = "eager"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", self.name):  # it becomes part of file names
            raise ValueError(f"name: expected letters, digits, dots, dashes and underscores, got {self.name!r}")

    def check(self, device: torch.device) -> None:
        """Raises ValueError where this arm cannot run on ``device``."""
        if device.type != "cuda":
            if self.tf32 == "on":
                raise ValueError(f"tf32: expected off on {device.type}, which has no TF32, got on")
            if self.step == "graphed":
                raise ValueError(f"step: expected eager or compiled on {device.type}, got graphed (CUDA graphs)")

    def settings(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if name != "name"}


def parse_arm(text: str, default: Arm) -> Arm:
    """An arm from ``name:key=value,key=value``; without a name its values are the name, and ``default`` fills in.

    Raises:
        ValueError: not of that form, an unknown key or value.
    """
    name, _, rest = text.rpartition(":")
    changes: dict[str, Any] = {}
    known = [field.name for field in fields(Arm) if field.name != "name"]
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if not sign or key not in known:
            raise ValueError(f"arm: expected KEY=VALUE with a key of {', '.join(known)}, got {part!r}")
        changes[key] = value
    if not name:
        name = "-".join(f"{key}-{value}" for key, value in changes.items()) or default.name
    return replace(default, name=name, **changes)
