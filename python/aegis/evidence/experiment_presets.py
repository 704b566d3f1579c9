"""Experiments that put a claim of the forerunners beside what is measured here."""

from __future__ import annotations

from dataclasses import dataclass

from aegis.evidence.arm import Arm

__all__ = ["EXPERIMENTS", "Claim", "Preset"]


@dataclass(frozen=True)
class Claim:
    """What somebody said of two arms.

    Attributes:
        theirs: in their figures.
        kind: "throughput": tokens/s of ``arm`` over those of ``against``, less one. "divergence": how far the losses of
            ``arm`` lie from those of the first arm, over how far those of ``against`` do, less one.
        reading: what it is taken to mean, where their words leave that open.
    """

    theirs: str
    kind: str
    arm: str
    against: str
    reading: str


@dataclass(frozen=True)
class Preset:
    """Arms, the first of which the others are compared with, and the claims that they bear on."""

    about: str
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]


EXPERIMENTS = {
    "audited": Preset(
        about="a loader in C++ and a checksum of every batch, end to end",
        arms=(
            Arm("torch", loader="torch"),
            Arm("aegis"),
            Arm("aegis-audited", audit="on"),
        ),
        claims=(
            Claim("+0.36 %", "throughput", "aegis-audited", "torch", "audited run over the stock loader"),
            Claim("none", "throughput", "aegis-audited", "aegis", "what the audit costs"),
        ),
    ),
    "matched-bf16": Preset(
        about="bfloat16 on matched arms",
        arms=(
            Arm("torch-float32", loader="torch"),
            Arm("torch-bfloat16", loader="torch", dtype="bfloat16"),
            Arm("aegis-float32"),
            Arm("aegis-bfloat16", dtype="bfloat16"),
        ),
        claims=(
            Claim("+16.5 %", "throughput", "aegis-bfloat16", "torch-bfloat16", "loaders, both in bfloat16"),
            Claim("+16.5 %", "throughput", "aegis-bfloat16", "aegis-float32", "bfloat16 over float32"),
        ),
    ),
    "nearest-even": Preset(
        about="how weights are rounded to bfloat16 after each update",
        arms=(
            Arm("float32"),
            Arm("nearest", master="nearest"),
            Arm("stochastic", master="stochastic"),
            Arm("truncate", master="truncate"),
        ),
        claims=(
            Claim("-70 % to -93.5 %", "divergence", "nearest", "truncate", "rounding to nearest even over truncation"),
            Claim("-70 % to -93.5 %", "divergence", "nearest", "stochastic", "the same over stochastic rounding"),
        ),
    ),
}
