"""What a loader saves to go on later: its meaning, and the checks when it comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from aegis.data.mixture import TokenMixture
from aegis.data.order import Progress, SeededSampler
from aegis.data.state_data import check_data, data_state, take_up

if TYPE_CHECKING:
    from aegis.data.loader import FlatArenaDataLoader

__all__ = ["make_state", "order_of", "restore"]

_VERSION = 1


def order_of(loader: FlatArenaDataLoader) -> dict[str, Any]:
    """What must agree for a position to mean the same samples."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise TypeError("state_dict: expected a map-style dataset; an IterableDataset keeps its own position")
    fingerprint = getattr(dataset, "fingerprint", None)
    order = {
        "samples": dataset.total if isinstance(dataset, TokenMixture) else len(dataset),  # type: ignore[arg-type]
        "fingerprint": fingerprint() if callable(fingerprint) else None,
    }
    if isinstance(loader.sampler, SeededSampler):
        return {**order, "seed": loader.seed, "shuffle": loader.sampler.shuffle}
    return {**order, "sampler": type(loader.sampler).__name__, "batch_size": loader.batch_size}


def _undrawn(loader: FlatArenaDataLoader, progress: Progress) -> dict[str, Any] | None:
    """What an order will be drawn from that is begun but not drawn: the user's generator as it is now."""
    generator = getattr(loader.sampler, "generator", None)
    if not progress.started or not isinstance(generator, torch.Generator):
        return None
    return {"state": generator.get_state().tolist()}


def make_state(loader: FlatArenaDataLoader, progress: Progress) -> dict[str, Any]:
    """The state at ``progress``. Once its last batch is delivered an epoch is over, and the next has not begun."""
    state = {"version": _VERSION, **order_of(loader)}
    if loader.chain is not None:
        state["chain"] = loader.chain.state()
    if isinstance(loader.sampler, SeededSampler):
        schedule = loader.sampler.counts(progress.epoch, progress.start)
        done, position = progress.batches >= schedule.steps, schedule.position_after(progress.batches)
        state.update(data_state(loader.sampler))
    else:
        position = progress.start + progress.batches
        done = position >= len(loader)
    if done and progress.started:
        return {**state, "epoch": progress.epoch + 1, "position": 0, "started": False, "rng": None}
    by_workers = loader.num_workers > 0 and not loader.path.startswith(("native", "resident"))
    if progress.batches > 0 and by_workers and not loader.in_order:
        raise ValueError(
            f"in_order: expected True for a state amid an epoch, got {loader.in_order!r}: how many batches came does "
            "not tell which"
        )
    return {
        **state,
        "epoch": progress.epoch,
        "position": position,
        "started": progress.started,
        "rng": progress.rng if progress.rng is not None else _undrawn(loader, progress),
    }


def restore(loader: FlatArenaDataLoader, state: dict[str, Any], *, extend: bool = False) -> Progress:
    """The progress that ``state`` stands for. Raises ValueError, and changes nothing, where it does not fit ``loader``.

    ``extend`` accepts token data that has grown by files at its end.
    """
    expected = {"version": _VERSION, **order_of(loader)}
    for name in (*expected, "epoch", "position"):
        if name not in state:
            raise ValueError(f"state: expected the key {name!r}, got only {sorted(state)}")
    if extend and not isinstance(loader.sampler, SeededSampler):
        raise ValueError("extend: expected a loader with seed=, got one in torch's order")
    grown = check_data(loader.dataset, expected, state, extend=extend)
    for name, value in expected.items():
        if name not in ("samples", "fingerprint") and state[name] != value:
            raise ValueError(f"state: expected {name} {value!r} (this loader's), got {state[name]!r}")
    for name in ("epoch", "position"):
        if not isinstance(state[name], int) or not 0 <= state[name] < 2**63:
            raise ValueError(f"state: expected {name} to be an int from 0 to 2**63 - 1, got {state[name]!r}")
    chain = loader.chain
    if chain is not None and "chain" not in state:
        raise ValueError("state: expected the key 'chain', for this loader has one; the state is of one without")
    before = None if chain is None else chain.state()
    if chain is not None:
        chain.restore(state["chain"])
    try:
        if isinstance(loader.sampler, SeededSampler):
            take_up(loader.sampler, state, grown)
        elif state["position"] > expected["samples"]:
            raise ValueError(f"state: expected position 0 to {expected['samples']}, got {state['position']}")
    except BaseException:
        if chain is not None and before is not None:
            chain.restore(before)
        raise
    started = bool(state.get("started"))
    return Progress(state["epoch"], state["position"], rng=state.get("rng"), started=started, resumed=started)
