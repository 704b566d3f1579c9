"""What a batch of tokens is when it has more than inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

__all__ = ["FIELDS", "TokenBatch"]

FIELDS = ("document_ids", "position_ids", "valid", "cu_seqlens")
"""Of a batch beside its inputs and targets, in the order in which they are written."""


class TokenBatch(dict[str, Tensor]):
    """A dict of tensors that is also read by attributes: ``batch["inputs"]`` is ``batch.inputs``.

    ============  =====  ========  ==================================================================================
    inputs        int64  (B, T)
    targets       int64  (B, T)    the token after each input in its document; ``ignore_index`` at a document's end
    document_ids  int32  (B, T)    0 for the first document of a row, 1 for its second, …
    position_ids  int32  (B, T)    from 0 for the first token of each document in the row
    valid         bool   (B,)      False for rows that only fill up the last batch (``tail="pad"``)
    cu_seqlens    int32  (n + 1,)  where documents begin when rows lie one behind the other, B · T last
    ============  =====  ========  ==================================================================================

    A document that a row cuts off begins anew in the next: its part there has an id and positions of its own, and is
    what "document" means above. Positions that begin anew do not keep documents apart: attention does, by
    ``document_ids`` or ``cu_seqlens``.

    Whatever takes a dict takes this and gives back its like: ``default_collate``, torch's pinning, the transfers of
    Accelerate and Lightning. A sample is one too, without the first dimension; ``default_collate`` joins the
    ``cu_seqlens`` of samples to those of the batch.
    """

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"expected one of {', '.join(self)}, got {name!r}") from None

    def to(self, *arguments: Any, **keywords: Any) -> TokenBatch:
        """All tensors moved by ``Tensor.to`` with these arguments: a device, ``non_blocking=True``."""
        return TokenBatch({name: tensor.to(*arguments, **keywords) for name, tensor in self.items()})

    def pin_memory(self, device: str | None = None) -> TokenBatch:
        """All tensors in pinned memory."""
        pinned = (tensor.pin_memory() if device is None else tensor.pin_memory(device) for tensor in self.values())
        return TokenBatch(zip(self, pinned, strict=True))


class Structure:
    """Makes a batch of the tensors that C++ has written for it, or a sample."""

    def __init__(self, fields: Sequence[str], max_documents: int | None) -> None:
        self._names = ("inputs", "targets", *fields)
        self._max_documents = max_documents

    def __call__(self, tensors: list[Tensor]) -> TokenBatch:
        batch = TokenBatch(zip(self._names, tensors, strict=True))
        if self._names[-1] == "cu_seqlens" and tensors[-1].ndim == 2:
            batch["cu_seqlens"] = self._bounds(tensors[-1])
        return batch

    def _bounds(self, written: Tensor) -> Tensor:
        """Of the memory that RowFiller writes: flat, with the number of documents last. The feeder has done it."""
        flat = written.view(-1)
        if self._max_documents is None:
            return flat[: int(flat[-1]) + 1]
        return flat[: written.shape[0] * (written.shape[1] - 2) + 1]

    def sample(self, tensors: list[Tensor]) -> TokenBatch:
        """Of tensors of one row."""
        batch = self(tensors)
        return TokenBatch({name: t if name == "cu_seqlens" else t[0] for name, t in batch.items()})


def _collate(samples: list[TokenBatch], *, collate_fn_map: Any = None) -> TokenBatch:
    names = list(samples[0])
    batch = TokenBatch({n: default_collate([s[n] for s in samples]) for n in names if n != "cu_seqlens"})
    if "cu_seqlens" in names:
        batch["cu_seqlens"] = _joined([sample["cu_seqlens"] for sample in samples])
    return batch


def _joined(rows: list[Tensor]) -> Tensor:
    """Those of fixed length have their last entry repeated, and so has the result."""
    real = [row[: int((row[1:] > row[:-1]).sum()) + 1] for row in rows]
    starts, out = 0, [torch.zeros(1, dtype=torch.int32)]
    for row in real:
        out.append(row[1:] + starts)
        starts += int(row[-1])
    filled = sum(len(row) - len(own) for row, own in zip(rows, real, strict=True))
    return torch.cat([*out, torch.full((filled,), starts, dtype=torch.int32)])


# The table is torch's way to teach default_collate a type of one's own.
default_collate_fn_map[TokenBatch] = _collate
