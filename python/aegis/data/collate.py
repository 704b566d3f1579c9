"""torch's default collation, with large tensors stacked into reused slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map
from torch.utils.dlpack import from_dlpack

from aegis import _C
from aegis.data.dtypes import CODES, MAX_DIMS

if TYPE_CHECKING:
    from aegis.data.transport import Transport

__all__ = ["InProcessCollate", "collate_map", "stack_into", "stackable"]


def stackable(batch: Sequence[Any]) -> bool:
    """Whether ``torch.stack(batch, out=memory)`` is what torch's collation comes to.

    True for plain CPU tensors of one dtype that DLPack knows. Shapes are left to ``stack`` itself, which refuses
    ragged ones.
    """
    first = batch[0]
    if type(first) is not Tensor or first.layout is not torch.strided or first.is_nested or first.dim() >= MAX_DIMS:
        return False
    dtype = first.dtype
    if dtype not in CODES or first.device.type != "cpu":
        return False
    return all(type(x) is Tensor and x.dtype is dtype and not x.requires_grad for x in batch)


def stack_into(out: Tensor, batch: Any, *, stream_from: int) -> Tensor:
    """``torch.stack(batch, 0, out=out)`` for samples that are :func:`stackable`. Raises what that raises.

    From ``stream_from`` bytes on, rows are written past the caches: so much would not stay in them.
    """
    # More of torch's threads beat one that streams.
    if out.nbytes >= stream_from and torch.get_num_threads() == 1 and _rows_of(out, batch):
        _C.copy_rows(out.data_ptr(), [x.data_ptr() for x in batch], out.nbytes // len(batch))
        return out
    return torch.stack(batch, 0, out=out)


def _rows_of(out: Tensor, batch: Sequence[Tensor]) -> bool:
    """Whether every sample is the bytes of a row of ``out``."""
    shape = out.shape[1:]
    return all(
        x.is_cpu
        and x.layout is torch.strided
        and x.shape == shape
        and x.is_contiguous()
        and not x.is_conj()
        and not x.is_neg()
        for x in batch
    )


def collate_map(stack: Callable[..., Tensor]) -> dict[Any, Callable[..., Any]]:
    """torch's table of collate functions, as it is now, with ``stack`` in place of torch's own for tensors.

    An entry for tensors that the user has put there stays.
    """
    return {key: stack if known is collate_tensor_fn else known for key, known in default_collate_fn_map.items()}


class InProcessCollate:
    """``default_collate`` for one iterator, in the process that uses the batch.

    With ``pinned``, a function of a shape and a dtype, tensors are stacked into memory that it gives, instead of slots:
    one copy less than pinning afterwards.
    """

    # Where a slot begins to pay: below, malloc gives the same warm memory again, and for less.
    MIN_BYTES = 4 << 20
    # One slot or two are in use, of which smaller ones stay in the cache.
    STREAM_FROM = 16 << 20

    def __init__(
        self,
        transport: Transport,
        pinned: Callable[[tuple[int, ...], torch.dtype], Tensor] | None = None,
    ) -> None:
        self._transport = transport
        self._pinned = pinned
        # A copy to a device from anything else would be made by the host.
        self._min_bytes = self.MIN_BYTES if transport.pins is None else 1
        self._placed = 0  # tensors of this batch in slots
        self._left = 0
        self._no_memory = False

    def __call__(self, samples: list[Any]) -> Any:
        self._placed = self._left = 0
        self._no_memory = False
        batch = collate(samples, collate_fn_map=collate_map(self._stack))
        self._transport.count(slots=self._placed, left=self._left, no_memory=self._no_memory)
        return batch

    def _stack(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        nbytes = len(batch) * first.numel() * first.element_size()
        if nbytes < self._min_bytes and self._pinned is None:
            return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        # With four and more dimensions, stack may choose another order of them in memory.
        if stackable(batch) and (first.dim() < 4 or first.is_contiguous()):
            out = self._memory((len(batch), *first.shape), first.dtype, nbytes)
            if out is not None:
                with suppress(Exception):  # torch says below what is wrong with the samples
                    return stack_into(out, batch, stream_from=self.STREAM_FROM)
        self._left += 1
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    def _memory(self, shape: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> Tensor | None:
        if self._pinned is not None:
            return self._pinned(shape, dtype)
        try:
            slot = self._transport.lane(self._placed).acquire(nbytes)
        except RuntimeError:
            self._no_memory = True
            return None
        self._placed += 1
        return from_dlpack(slot.view(*CODES[dtype], shape))
