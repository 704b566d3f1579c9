"""This process among its peers: its share of the order, and whether all of them have the same one."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

__all__ = ["check_agreement", "in_group", "own_rank"]


def in_group() -> bool:
    """Whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def own_rank() -> tuple[int, int]:
    """(rank, world_size) of torch.distributed, or 0 of 1."""
    return (dist.get_rank(), dist.get_world_size()) if in_group() else (0, 1)


def check_agreement(mine: dict[str, Any]) -> None:
    """ValueError, on every rank, naming the first of ``mine`` that two ranks differ in. Called on all of them."""
    everyones: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    for name, value in everyones[0].items():
        for rank, other in enumerate(everyones):
            if other[name] != value:
                what = "the ranks read different data: " if name in ("samples", "fingerprint", "files") else ""
                raise ValueError(f"{name}: {what}expected {value!r}, as on rank 0, got {other[name]!r} on rank {rank}")
