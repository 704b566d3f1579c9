"""Which data sets C++ can read by itself, and what their batches look like."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from aegis import _C
from aegis.data.dtypes import CODES
from aegis.data.mixture import TokenMixture
from aegis.data.narrow import Windows
from aegis.data.record_dataset import RecordDataset
from aegis.data.record_fields import RecordField, record_filler
from aegis.data.token_dataset import TokenDataset

__all__ = ["NativeSource", "native_source"]


class NativeSource:
    """What writes batches of a data set without Python, and what makes a batch of the tensors written.

    ``structure`` is None where a batch is the list of them. ``rows`` are tensors whose memory is read by its address.
    ``sample_bytes``: of a sample as the user gets it, where that is not what is written.
    """

    def __init__(
        self,
        filler: _C.BatchFiller,
        structure: Callable[[list[Tensor]], Any] | None = None,
        rows: tuple[Tensor, ...] = (),
        sample_bytes: int | None = None,
    ) -> None:
        self.filler = filler
        self.structure = structure
        if sample_bytes is None:
            sample_bytes = sum(math.prod(shape) * bits // 8 for _, bits, shape in filler.fields)
        self.sample_bytes = sample_bytes
        self._addresses = [(tensor, tensor.data_ptr()) for tensor in rows]
        self.check: Callable[[], None] | None = self._check_memory if rows else None
        """RuntimeError where the memory to read is gone. None where it cannot go."""

    def hold(self) -> None:
        """Before threads read by address: lets ``resize_`` fail, instead of giving back the memory under them.

        That is what torch does for a tensor whose memory NumPy knows, and lasts as long as the tensor. Nothing stops
        ``share_memory_``.
        """
        for tensor, _ in self._addresses:
            torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()

    def _check_memory(self) -> None:
        for tensor, address in self._addresses:
            if tensor.data_ptr() != address:
                raise RuntimeError(
                    "the memory of a tensor in this data set was replaced (by resize_, share_memory_ or sending it to "
                    "another process) while an iterator reads it: make a new iterator"
                )


def native_source(dataset: object, *, pads: bool = False, narrow: bool = False) -> NativeSource | None:
    """How C++ reads ``dataset`` as it is now, or None where its samples, or collating them, need Python.

    ``pads``: the order may ask for rows of padding. ``narrow``: plain windows are wanted as they lie in their files.
    """
    if not _collation_is_torchs():
        return None
    if narrow and type(dataset) is TokenDataset and dataset.plain:
        return NativeSource(dataset.filler(widen=False), Windows.of, sample_bytes=16 * dataset.block_size)
    if type(dataset) is TokenMixture and all(_untouched(source, TokenDataset) for source in dataset.sources):
        return NativeSource(dataset.filler(), dataset.structure)
    if isinstance(dataset, TokenDataset) and _untouched(dataset, TokenDataset):
        return NativeSource(dataset.filler(pads=pads), dataset.structure)
    if isinstance(dataset, RecordDataset) and _untouched(dataset, RecordDataset):
        return _of_fields(dataset.record_fields, dataset.structure)
    # Another class may mean other samples, and an attribute of this name is what torch would call for a batch.
    if type(dataset) is TensorDataset and "__getitems__" not in vars(dataset):
        tensors = dataset.tensors
        if tensors and all(map(_plain, tensors)) and len({len(tensor) for tensor in tensors}) == 1:
            return _of_fields(tuple(RecordField(t, t.dtype, tuple(t.shape[1:])) for t in tensors), None)
    return None


def _of_fields(fields: tuple[RecordField, ...], structure: Callable[[list[Tensor]], Any] | None) -> NativeSource | None:
    if len(fields) > _C.MAX_FIELDS or any(1 + len(field.shape) > _C.MAX_DIMS for field in fields):
        return None
    memory = tuple(field.rows for field in fields if field.store is None)
    return NativeSource(record_filler(fields), structure, memory)


def _collation_is_torchs() -> bool:
    """Whether tensors, tuples and dicts are collated as torch does it: the table of that is public."""
    return all(
        known is collate_tensor_fn
        for key, known in default_collate_fn_map.items()
        if any(issubclass(kind, key) for kind in (Tensor, tuple, dict))
    )


def _untouched(dataset: object, known: type) -> bool:
    """Whether samples are still made by ``known``'s own methods: a subclass may have changed what they mean."""
    return all(
        getattr(type(dataset), name, None) is getattr(known, name, None)
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def _plain(tensor: object) -> bool:
    """Whether a batch of this tensor's rows is a copy of their bytes."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in CODES
        and tensor.ndim > 0
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and tensor[0].is_contiguous()
    )
