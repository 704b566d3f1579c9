"""This process among its peers: its share of the order, and whether all of them have the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

__all__ = ["check_agreement", "in_group", "own_rank"]


def in_group() -> bool:
    """Whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def own_rank() -> tuple[int, int]:
    """(rank, world_size) of torch.distributed, or 0 of 1."""
    return (dist.get_rank(), dist.get_world_size()) if in_group() else (0, 1)


def check_agreement(describe: Callable[[], dict[str, Any]]) -> None:
    """ValueError, on every rank, naming the first thing in what ``describe`` returns that two ranks differ in.

    Called on all of them. Where ``describe`` raises on one rank, that error is raised there and a RuntimeError on the
    others, which would otherwise wait for it.
    """
    mine: dict[str, Any] = {}
    failure: Exception | None = None
    try:
        mine = describe()
    except Exception as error:
        failure = error
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (mine, None if failure is None else str(failure)))
    if failure is not None:
        raise failure
    for rank, (_, failed) in enumerate(everyones):
        if failed is not None:
            raise RuntimeError(f"rank {rank} cannot read its data: {failed}")
    for name, value in everyones[0][0].items():
        for rank, (other, _) in enumerate(everyones):
            if other[name] != value:
                what = "the ranks read different data: " if name in ("samples", "fingerprint", "mixture") else ""
                raise ValueError(f"{name}: {what}expected {value!r}, as on rank 0, got {other[name]!r} on rank {rank}")
