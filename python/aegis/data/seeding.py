"""What ``seed=`` of a loader asks of its other arguments, and the sampler that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from aegis.data.mixture import TokenMixture
from aegis.data.order import SeededSampler
from aegis.data.ranks import own_rank
from aegis.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from aegis.data.loader import FlatArenaDataLoader

__all__ = ["seeded_sampler"]


def seeded_sampler(
    loader: FlatArenaDataLoader,
    dataset: Any,
    batch_size: int | None,
    shuffle: bool,
    drop_last: bool,
    others: dict[str, Any],
) -> SeededSampler:
    """The order of a loader whose ``seed``, ``tail``, ``rank`` and ``world_size`` are set, before it is torch's class.

    Args:
        others: arguments that choose an order too, by name. All have to be None.

    Raises:
        ValueError: an argument does not go with ``seed``, or is out of range.
    """
    seed, tail = loader.seed, loader.tail
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name}: expected None beside seed=, which chooses the order, got {value!r}")
    if isinstance(dataset, IterableDataset):
        raise ValueError("seed: expected a map-style dataset, got an IterableDataset, which orders itself")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size <= 0):
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
    assert seed is not None
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0 to 2**63 - 1, got {seed}")
    if tail not in (None, "pad", "wrap"):
        raise ValueError(f"tail: expected None, 'pad' or 'wrap', got {tail!r}")
    if tail is not None and drop_last:
        raise ValueError(f"drop_last: expected False with tail={tail!r}, which fills the last batch up")
    if tail == "pad" and not isinstance(dataset, TokenDataset | TokenMixture):
        raise ValueError(f"tail: expected 'pad' with token data alone, got a {type(dataset).__name__}")
    rank, world_size = own_rank()
    return SeededSampler(
        dataset,
        batch_size or 1,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        rank=rank if loader.rank is None else loader.rank,
        world_size=world_size if loader.world_size is None else loader.world_size,
        tail=tail,
    )
