"""The counters of a loader, put together."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from aegis.data.mixture import TokenMixture
from aegis.data.order import SeededSampler
from aegis.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from aegis.data.delivery import Delivery
    from aegis.data.device_memory import Transfer
    from aegis.data.loader import FlatArenaDataLoader

__all__ = ["loader_stats", "page_faults"]


def page_faults() -> tuple[int, int]:
    """(minor, major) of this process until now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt


def loader_stats(
    loader: FlatArenaDataLoader, delivery: Delivery, transfer: Transfer | None, *, since: tuple[int, int]
) -> dict[str, float]:
    """What :meth:`FlatArenaDataLoader.stats` returns; page faults are counted from ``since``."""
    totals = delivery.stats()
    minor, major = page_faults()
    totals["minor_faults"] = minor - since[0]
    totals["major_faults"] = major - since[1]
    if delivery.source is not None:
        totals["bytes"] = totals.get("samples", 0) * delivery.source.sample_bytes
        if isinstance(loader.dataset, TokenDataset | TokenMixture):
            totals["tokens"] = totals.get("samples", 0) * loader.dataset.block_size
            totals["tail_tokens"] = loader.dataset.tail_tokens
    if transfer is not None:
        totals.update(transfer.stats())
    if isinstance(loader.sampler, SeededSampler):
        totals["dropped_samples"] = loader.sampler.counts(loader.sampler.epoch).dropped
    return totals
