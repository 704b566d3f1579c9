"""Named sizes for ``aegis train``: the RFC's model, one that a laptop's CPU trains in two minutes, and a pair that two
cores train in twenty, of which the second guesses for the first and is a sixth of its size."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """Defaults of the command line; options given there win."""

    layers: int
    heads: int
    width: int
    block_size: int
    batch_size: int
    steps: int
    lr: float


PRESETS = {
    "small": Preset(layers=4, heads=4, width=128, block_size=128, batch_size=16, steps=1000, lr=2e-3),
    "micro": Preset(layers=6, heads=6, width=384, block_size=256, batch_size=64, steps=5000, lr=1e-3),
    "target": Preset(layers=6, heads=6, width=384, block_size=256, batch_size=8, steps=800, lr=3e-3),
    "draft": Preset(layers=2, heads=4, width=256, block_size=256, batch_size=8, steps=800, lr=3e-3),
}
