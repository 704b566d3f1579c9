"""A running checksum over the batches and losses of a training run."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections import UserString, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aegis import _C

__all__ = ["IntegrityChain"]

_NOTHING: tuple[()] = ()
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
        background: hash on a thread of its own. Tensors are copied first; at most 16 records wait, then :meth:`add`
            does. The thread ends with :meth:`close` or with this object, after what waits for it.

    One thread may add at a time; with ``background`` still one.

    Cost: one pass over the batch; a record without tensors takes about 1 µs (bench_integrity_chain.py).
    """

    def __init__(self, *, bits: int = 32, lanes: bool = True, background: bool = False) -> None:
        self._chain = _C.IntegrityChain(bits, lanes)
        self._worker = _Worker(self._chain) if background else None
        if self._worker is not None:
            weakref.finalize(self, _Worker.close, self._worker)

    def add(self, step: int, loss: float, batch: Any = _NOTHING) -> None:
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
            RuntimeError: the background thread has failed; says of what.
        """
        step, loss = operator.index(step), float(loss)
        if not -(2**63) <= step < 2**63:
            raise ValueError(f"step: expected a number of 64 bits, got {step}")
        parts = [] if batch is _NOTHING else [_memory(leaf) for leaf in _leaves(batch)]
        if self._worker is None:
            self._chain.add(step, loss, parts)
        else:
            self._worker.put(step, loss, [part.copy() for part in parts])

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
        """All that the chain is, as plain values, for a checkpoint."""
        if self._worker is not None:
            self._worker.wait()
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
        if self._worker is not None:
            self._worker.wait()
        self._chain.restore((bits, lanes, value, records))

    def close(self) -> None:
        """Ends the background thread, after what waits for it. Without one, nothing happens."""
        if self._worker is not None:
            self._worker.close()


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


class _Worker:
    """Hashes records in their order on a thread of its own."""

    _WAITING = 16

    def __init__(self, chain: _C.IntegrityChain) -> None:
        self._chain = chain
        self._process = os.getpid()
        self._records: deque[tuple[int, float, list[np.ndarray[Any, Any]]]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="aegis-chain", daemon=True)
        self._thread.start()

    def put(self, step: int, loss: float, parts: list[np.ndarray[Any, Any]]) -> None:
        self._check_process()
        with self._changed:
            self._until(lambda: len(self._records) < self._WAITING)
            if self._closed:
                raise RuntimeError("IntegrityChain: expected to be open, but close() was called")
            self._records.append((step, loss, parts))
            self._changed.notify_all()

    def wait(self) -> None:
        self._check_process()
        with self._changed:
            self._until(lambda: not self._records and not self._busy)

    def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # on which a garbage collection may end up here
            self._thread.join()

    def _check_process(self) -> None:
        """A forked child has no such thread, and the lock may be held in it for ever."""
        if self._process != os.getpid():
            raise RuntimeError("IntegrityChain: the background thread does not run in this process")

    def _until(self, ready: Callable[[], bool]) -> None:
        """Waits in slices, so that Ctrl-C gets through."""
        while not ready() and self._error is None:
            self._changed.wait(0.1)
        if self._error is not None:
            raise RuntimeError(f"IntegrityChain: the background thread failed: {self._error}") from self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._records or self._closed)
                if not self._records:
                    return
                record = self._records.popleft()
                self._busy = True
                self._changed.notify_all()
            try:
                self._chain.add(*record)
            except BaseException as error:
                self._error = error
                return
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
