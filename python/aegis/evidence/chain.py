"""A running checksum over the batches and losses of a training run."""

from __future__ import annotations

import operator
from collections import UserString
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aegis import _C

__all__ = ["IntegrityChain"]

_NO_SEQUENCES = (str, bytes, bytearray, memoryview, range, UserString)  # have no tensors; items of text are text again
_STATE_KEYS = {"bits", "lanes", "value", "records"}


class IntegrityChain:
    """FNV-1a over records of a step, its loss and its batch, in the order they are added.

    Two runs with the same chain value saw the same batches and losses in the same order, as far as 32 or 64 bits can
    tell; where values are kept along the way, they say at which step two runs parted. It finds accidents: FNV-1a
    (Fowler, Noll, Vo; draft-eastlake-fnv) is no cryptographic function, and somebody who wants to can make another run
    with the same value.

    Args:
        bits: 32 or 64.
        lanes: hash tensors through 64 interleaved 32-bit chains, of which the digest is added to this one: as fast as
            memory. Without, their bytes go through this chain itself, one multiplication after the other.
        background: hash on a thread of the core, which takes its records out of a ring. :meth:`add` copies the bytes of
            tensors, which may be overwritten as soon as it returns; at most 16 records wait, then :meth:`add` does. The
            memory of the copies is kept and used again. The thread ends with :meth:`close` or with this object, after
            what waits for it, and is missing in a forked child.

    Cost: one pass over the batch, with ``background`` a copy of it and the waking of a thread; a record without tensors
    takes less than 1 µs, with ``background`` a few (bench_integrity_chain.py).
    """

    def __init__(self, *, bits: int = 32, lanes: bool = True, background: bool = False) -> None:
        self._chain = _C.BackgroundChain(bits, lanes) if background else _C.IntegrityChain(bits, lanes)

    def add(self, step: int, loss: float, batch: Any = ()) -> None:
        """Adds a record.

        Args:
            step: its number, of 64 bits.
            loss: a number, or a tensor that is one, which is read now. NaN counts like any other value.
            batch: what the step was trained on: tensors and arrays in any nesting of sequences, mappings and
                dataclasses, in their order; mappings by sorted key. Other values are left out. Tensors on another
                device are copied to the host. What counts are the bytes of the values in row-major order, of sparse
                tensors those of their indices and values; shapes and dtypes do not.

        Raises:
            TypeError, ValueError, OverflowError: step or loss is no such number. Nothing was added.
            RuntimeError: the background thread has failed, was closed, or is that of the process that forked this one.
        """
        step, loss = operator.index(step), float(loss)
        if not -(2**63) <= step < 2**63:
            raise ValueError(f"step: expected a number of 64 bits, got {step}")
        parts: list[np.ndarray[Any, Any]] = []
        _collect(batch, parts)
        self._chain.add(step, loss, parts)

    def add_batch(self, batch: Any) -> None:
        """Adds a batch that has no loss yet: the record of step -1 with loss 0, in which only the batch counts.

        ``FlatArenaDataLoader(..., chain=chain)`` calls this for every batch that it delivers.
        """
        self.add(-1, 0.0, batch)

    @property
    def value(self) -> int:
        """The checksum of all records added."""
        return self.state()["value"]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        state = self.state()
        return f"{state['value']:0{state['bits'] // 4}x}"

    def state(self) -> dict[str, Any]:
        """All that the chain is, as plain values, for a checkpoint; waits for the background thread."""
        return dict(zip(("bits", "lanes", "value", "records"), self._chain.state(), strict=True))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of a chain of the same kind.

        Raises:
            ValueError: the state is of another kind, or none.
        """
        if not isinstance(state, Mapping) or state.keys() != _STATE_KEYS:
            raise ValueError(f"state: expected {', '.join(sorted(_STATE_KEYS))}, got {state!r}")
        bits, lanes, value, records = (state[name] for name in ("bits", "lanes", "value", "records"))
        if type(lanes) is not bool:
            raise ValueError(f"state: expected lanes to be a bool, got {lanes!r}")
        for name, number in (("bits", bits), ("value", value), ("records", records)):
            if type(number) is not int or not 0 <= number < 2**64:
                raise ValueError(f"state: expected {name} to be an int of 64 bits, got {number!r}")
        self._chain.restore((bits, lanes, value, records))

    def close(self) -> None:
        """Ends the background thread, after what waits for it. Without one, nothing happens."""
        if isinstance(self._chain, _C.BackgroundChain):
            self._chain.close()


def _collect(batch: Any, parts: list[np.ndarray[Any, Any]]) -> None:
    """Appends the memory of all leaves. Plain tensors in sequences take few calls: right after a step the code of each
    has left the caches, and the general way takes 200 µs instead of the 12 that it takes otherwise."""
    if type(batch) is Tensor:
        try:
            parts.append(batch.numpy().ravel())
        except (TypeError, RuntimeError):  # not on the host, with a gradient, not strided, of a dtype NumPy has not
            parts.extend(_memory(leaf) for leaf in _leaves(batch))
    elif type(batch) in (list, tuple):
        for item in batch:
            _collect(item, parts)
    else:
        parts.extend(_memory(leaf) for leaf in _leaves(batch))


def _leaves(batch: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    if isinstance(batch, Tensor):
        yield from _dense(batch)
    elif isinstance(batch, np.ndarray):
        if not batch.dtype.hasobject:
            yield batch
    elif isinstance(batch, Mapping):
        for key in sorted(batch, key=str):
            yield from _leaves(batch[key])
    elif isinstance(batch, Sequence):
        for item in () if isinstance(batch, _NO_SEQUENCES) else batch:
            yield from _leaves(item)
    elif hasattr(batch, "__dataclass_fields__"):
        for name in batch.__dataclass_fields__:
            yield from _leaves(getattr(batch, name))


def _dense(tensor: Tensor) -> Iterator[Tensor]:
    """``tensor``, or the strided ones that it is made of."""
    if tensor.is_nested:
        for part in tensor.detach().unbind():
            yield from _dense(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        whole = tensor.detach().coalesce()
        yield from (whole.indices(), whole.values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield from _dense(tensor.to_dense())


def _memory(leaf: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Its bytes in row-major order, without a copy where it lies so."""
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
