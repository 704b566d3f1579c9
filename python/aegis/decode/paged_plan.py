"""Which layers of a paged cache share their pages, and how many of them there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from aegis.decode.cache_plan import LayerPlan

__all__ = ["GroupPlan", "check_number", "plan_groups"]


@dataclass(frozen=True)
class GroupPlan:
    """Kinds of layers that keep the same positions: the last ``keep`` of a row, or all. Queries see ``window``."""

    kinds: tuple[str, ...]
    keep: int | None
    window: int
    pages: int


def check_number(name: str, value: Any) -> None:
    """Raises for what is no number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: expected an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")


def plan_groups(
    plans: Sequence[LayerPlan],
    rows: int,
    max_cache_len: int,
    rollback: int,
    *,
    pages: int | Mapping[str, int] | None,
    block_size: int,
    prefill_chunk: int | None,
) -> list[GroupPlan]:
    """The groups, those that keep most first: see :class:`aegis.PagedKVCache`.

    Raises:
        ValueError: pages for a kind of layer that there is none of.
    """
    kept: dict[str, int] = {}
    for plan in plans:
        if plan.stored:
            kept[plan.kind] = max(kept.get(plan.kind, 0), plan.slots(max_cache_len, rollback))
    if isinstance(pages, Mapping) and not pages.keys() <= kept.keys():
        raise ValueError(f"pages: expected numbers for {sorted(kept)}, got some for {sorted(map(str, pages))}")
    groups: list[GroupPlan] = []
    for keep in sorted(set(kept.values()), reverse=True):
        kinds = tuple(kind for kind, its in kept.items() if its == keep)
        most = min(max_cache_len, keep + (prefill_chunk or max_cache_len) + block_size - 1)
        count = rows * -(-most // block_size)
        if isinstance(pages, Mapping):
            count = max((pages[kind] for kind in kinds if kind in pages), default=count)
        elif pages is not None:
            count = min(pages, count) if groups else pages
        trims = keep < max_cache_len
        groups.append(GroupPlan(kinds, keep if trims else None, keep - rollback - 1 if trims else keep, count))
    return groups
