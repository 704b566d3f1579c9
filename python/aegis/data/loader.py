"""FlatArenaDataLoader: torch's DataLoader, with batches written into reused memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from aegis.data.delivery import Delivery
from aegis.data.device_iter import DeviceIter, shadow_of
from aegis.data.device_memory import Transfer
from aegis.data.link import make_link, named_device, require, require_kernels
from aegis.data.mixture import TokenMixture
from aegis.data.narrow import check_windows
from aegis.data.native import NativeIter
from aegis.data.order import IndexOrder, Progress, SeededSampler
from aegis.data.ranks import check_agreement, in_group, own_rank
from aegis.data.resident import ResidentIter, ResidentTokens
from aegis.data.seeding import seeded_sampler
from aegis.data.state import make_state, order_of, restore
from aegis.data.state_data import data_state
from aegis.data.stats import loader_stats, page_faults
from aegis.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from aegis.evidence.chain import IntegrityChain

__all__ = ["FlatArenaDataLoader"]


class FlatArenaDataLoader(DataLoader[Any]):
    """A drop-in for :class:`torch.utils.data.DataLoader`.

    Over a :class:`~aegis.TokenDataset`, a :class:`~aegis.TokenMixture`, a :class:`~aegis.RecordDataset` or torch's
    ``TensorDataset`` of plain CPU tensors, with torch's default collation, C++ threads write the batches ahead of the
    consumer into a ring of pre-faulted, 64-byte-aligned slots: ``num_workers`` is the number of threads (0 fills in the
    calling thread) and ``prefetch_factor`` the slots per thread.

    Any other data set is loaded by torch's own machinery, with the large tensors of a batch in reused, pre-faulted
    slots: in this process as ``default_collate`` stacks them, with worker processes whatever makes them. That needs no
    ``/dev/shm`` and no file descriptor per tensor. With ``pin_memory``, batches of workers are copied into memory of
    torch's pinned allocator as they are asked for, without a thread. :attr:`path` says which way and why.

    Takes every argument of torch's class, with its defaults, errors and guards, and these by keyword:

    Args:
        seed: selects an order that is private, needs no memory and can be resumed in O(1) on any number of ranks:
            with ``shuffle=True`` a permutation keyed by (seed, epoch), else 0, 1, 2, … Nothing is drawn from torch's
            generators. Without ``seed``, the same draws and the same order as torch, bit for bit.
        rank, world_size: this process's share of the order; needs ``seed``. By default those of
            ``torch.distributed`` as soon as that is initialised, else 0 of 1; the first ``iter()`` then compares the
            data's fingerprint, the order and the position on all ranks, once. ``batch_size`` counts per rank.
        tail: how an epoch ends whose samples do not fill the last step of all ranks; needs ``seed``. None shares them
            equally, fewer than ``world_size`` go to nobody, and ``drop_last`` leaves the step out. "wrap" fills it up
            with the epoch's first samples. "pad" (token data alone) fills it up with rows whose inputs are 0 and whose
            targets are the ``ignore_index``; the field "valid" of :class:`~aegis.TokenDataset` tells them.
        reuse: batches alias the ring: one stays valid until the batch after the next is asked for. By default a
            slot is written again only when the last tensor over it (views, NumPy arrays and what autograd saved
            included) is gone, and when all slots are held a fresh one is made. Has an effect on the native path and
            with ``device`` alone.
        chain: an :class:`aegis.evidence.IntegrityChain` that every batch is added to as it is delivered, on whatever
            path and before the caller can change it. Its state travels in :meth:`state_dict`.

        device: where batches are handed out, on every path: a CUDA device, or the CPU, where they are. Slots are pinned
            once, when they are mapped, and copied on a stream of the loader's own; with ``num_workers`` one batch
            ahead. The current stream waits for a batch's copy when ``next()`` hands it out, the host does not, and a
            slot is written again only when its copy is done. Containers keep their types; what is not a plain CPU
            tensor is moved by its own ``to``. Batches are fresh memory that may be kept; with ``reuse`` they lie in
            buffers whose addresses do not change, by turns, and stay valid for work that was asked for (on the stream
            that was current) before the batch after the next is.
            A forked child cannot use the device: ``iter()`` says so there.
        narrow: with ``device``, for a :class:`~aegis.TokenDataset` of plain windows: tokens cross the bus once each and
            in the dtype of their files, and the device makes inputs and targets of them: an eighth of the bytes for
            uint16, a quarter for int32. The batches are the same. Where they stay on the CPU it has no effect. Rows
            with documents or fields, mixtures, ``tail="pad"`` and a ``collate_fn`` are refused.
        resident: puts all token files into the device's memory once, and cuts batches there; for a
            :class:`~aegis.TokenDataset` of plain windows. Threads have nothing to do then.

    Batches have the structure that torch returns: over tokens a list ``[inputs, targets]`` of fresh int64 tensors.
    They cannot be grown by ``resize_``, and those of workers are not shared memory, as torch's are.

    Threads read tensors and arrays in place: values may be changed at any time, but as long as an iterator lives, their
    memory must stay. ``resize_`` is refused from then on. ``share_memory_`` and sending a tensor to another process
    replace the memory without asking: ``next()`` raises where it finds that, but a thread that is reading at that
    moment may crash the process. Share such tensors before the first iterator is made. Errors in threads are raised by
    ``next()`` in their batch's turn, plain, as without workers: torch's "Caught X in DataLoader worker process" and the
    worker's traceback have no place there.

    After a fork(), parent and child may both go on with a loader that has no ``device``: each has slots, threads and
    workers of its own, and an iterator with threads or workers says in the child that it is the parent's.

    Epochs advance by themselves, one for each ``iter()``; :meth:`set_epoch` chooses one. Batches are always in order,
    whatever ``in_order`` says, when threads write them; ``worker_init_fn`` and ``multiprocessing_context`` have
    nothing to act on there, and a warning says so.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str | None = None,
        reuse: bool = False,
        chain: IntegrityChain | None = None,
        device: torch.device | str | int | None = None,
        narrow: bool = False,
        resident: bool = False,
    ) -> None:
        self.seed = seed
        self.tail = tail
        self._ranks_given = rank is not None or world_size is not None
        self._agreed = False
        self.rank = rank
        self.world_size = world_size
        self.reuse = reuse
        self.chain = _checked(chain)
        self.device = named_device(device)
        self.narrow = narrow
        self.resident = resident
        self._tokens: ResidentTokens | None = None
        if pin_memory and self.device is not None:
            raise ValueError(
                f"pin_memory: expected False with device={str(self.device)!r}, which pins its slots itself"
            )
        self._next = Progress(epoch=0)  # of the next iter()
        self._closed = False
        self._faults_at_start = page_faults()
        if seed is not None:
            given = {"sampler": sampler, "batch_sampler": batch_sampler, "generator": generator}
            sampler = seeded_sampler(self, dataset, batch_size, bool(shuffle), drop_last, given)
            self.rank, self.world_size = sampler.rank, sampler.world_size
            generator, shuffle = torch.Generator().manual_seed(seed), None
        elif rank is not None or world_size is not None:
            raise ValueError("rank and world_size: expected seed= beside them, so that all ranks share one order")
        elif tail is not None:
            raise ValueError(f"tail: expected seed= beside it, which makes the order, got tail={tail!r} alone")
        elif isinstance(dataset, TokenMixture):
            raise ValueError("seed: expected one with a TokenMixture, whose samples come in an order of its own")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if narrow:
            check_windows(self, "narrow")
        if resident:
            self._check_resident()
        self._set_up(self._next)
        if self._delivery.source is not None and num_workers > 0:
            self._warn_unused(worker_init_fn, multiprocessing_context)

    def _set_up(self, progress: Progress) -> None:
        moves = self.device is not None and self.device.type != "cpu" and not self.resident
        self._transfer = Transfer(make_link(self.device)) if self.device is not None and moves else None
        if self._transfer is not None and self.narrow:
            require_kernels(self._transfer.link.device, "narrow")
        if self._transfer is None:
            self._delivery = Delivery(progress, reuse=self.reuse, chain=self.chain)
        else:
            self._delivery = Delivery(progress, pins=self._transfer.link.pins, narrow=self.narrow)
        self._order: IndexOrder | None = None
        if not isinstance(self.dataset, IterableDataset):
            self._order = IndexOrder(self._delivery, super()._index_sampler, batched=self._auto_collation)
        self._delivery.choose_path(self)

    def _check_resident(self) -> None:
        check_windows(self, "resident")
        assert self.device is not None
        assert isinstance(self.dataset, TokenDataset)
        require(self.device)
        require_kernels(self.device, "resident")
        self._tokens = ResidentTokens(self.dataset, self.device)

    def _warn_unused(self, worker_init_fn: object, multiprocessing_context: object) -> None:
        given = {"worker_init_fn": worker_init_fn, "multiprocessing_context": multiprocessing_context}
        names = " and ".join(name for name, value in given.items() if value is not None)
        if names:
            kind = type(self.dataset).__name__
            warnings.warn(f"{names}: no effect here, threads write the batches of a {kind}", stacklevel=3)

    @property
    def path(self) -> str:
        """Which way batches come, and why: starts with "native", "arena", "torch" or "resident"."""
        if self.resident:
            return f"resident: windows of a {type(self.dataset).__name__} are cut on {self.device}"
        if self._transfer is None:
            return self._delivery.why
        how = "copied as they lie in their files, and widened on" if self.narrow else "copied to"
        return f"{self._delivery.why}, and are {how} {self._transfer.link.device}"

    # --- iteration ---------------------------------------------------------------------------------------------

    def _join_group(self) -> None:
        """Takes this process's share of a torch.distributed that was initialised after this loader was made."""
        if isinstance(self.sampler, SeededSampler) and not self._ranks_given and in_group():
            self.rank, self.world_size = own_rank()
            self.sampler.rank, self.sampler.world_size = self.rank, self.world_size

    def _check_agreement(self) -> None:
        sampler = self.sampler
        if self._agreed or self._ranks_given or not in_group() or not isinstance(sampler, SeededSampler):
            return
        shape = {"batch_size": self.batch_size, "drop_last": self.drop_last, "tail": self.tail}
        where = {"epoch": self._next.epoch, "position": self._next.start}
        check_agreement(lambda: {**order_of(self), **shape, **where, "mixture": data_state(sampler)["mixture"]})
        self._agreed = True

    def __len__(self) -> int:
        self._join_group()
        return super().__len__()

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._order is None else self._order

    def __iter__(self) -> Any:
        if self._closed:
            raise RuntimeError("this loader has been closed")
        if self._transfer is not None:
            self._transfer.check_process()
        self._join_group()
        self._check_agreement()
        progress = self._delivery.progress = self._next
        progress.started = True
        self._next = Progress(progress.epoch + 1)
        if isinstance(self.sampler, SeededSampler):
            self.sampler.set_epoch(progress.epoch)
            assert self.generator is not None
            self.generator.manual_seed(self.sampler.seed ^ progress.epoch)
        if self._tokens is not None:
            return ResidentIter(self, self._tokens, progress, self.chain)
        # The data set, or what collates it, may have changed since: an iterator kept for long then starts anew.
        self._delivery.choose_path(self)
        kept = self._iterator
        if kept is not None:
            native = self._delivery.source is not None
            if isinstance(kept, NativeIter) != native or getattr(kept, "_pid", os.getpid()) != os.getpid():
                self._iterator = None
        if self._transfer is None:
            return super().__iter__()
        shadow = self._delivery.progress = shadow_of(progress)
        try:
            host = super().__iter__()
        finally:
            self._delivery.progress = progress
        ahead = 1 if self.num_workers > 0 else 0
        return DeviceIter(host, self._transfer, progress, shadow, ahead=ahead, reuse=self.reuse, chain=self.chain)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return self._delivery.iterator(self)

    # --- state -------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next ``iter()`` goes through. Within a resumed epoch, its own number changes nothing."""
        if not 0 <= epoch < 2**63:
            raise ValueError(f"epoch: expected 0 to 2**63 - 1, got {epoch}")
        if epoch != self._next.epoch:
            news = self._delivery.progress is self._next
            self._next = Progress(epoch)
            if news:
                self._delivery.progress = self._next
        if not isinstance(self.sampler, SeededSampler) and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: a few plain values, counting batches *delivered* by the newest iterator.

        With ``seed`` the position is global and can be loaded on another number of ranks with another batch size;
        otherwise it is this rank's own. A batch that ended in an error counts: what follows comes behind it. Where
        there is a chain, its state is in it, after all that was added until now.

        Raises:
            ValueError: amid an epoch whose batches worker processes deliver as they come (``in_order=False``).
        """
        return make_state(self, self._delivery.progress)

    def load_state_dict(self, state: dict[str, Any], *, extend: bool = False) -> None:
        """The next ``iter()`` goes on where ``state`` was taken: in O(1) with ``seed``, after one ``torch.randperm``
        with torch's shuffle, and with a sampler of the user's by asking it for the batches before. It has to give the
        same ones: a SubsetRandomSampler or WeightedRandomSampler without a seeded ``generator`` does not.

        The loader's chain goes on from the one in ``state``, at once, so that it ends as that of a run without a break.
        A loader without a chain leaves the one in ``state`` alone.

        Args:
            state: of :meth:`state_dict`. With ``seed``, ranks, threads and batch_size may be others; so may the weights
                of a :class:`~aegis.TokenMixture`, whose shares then count from here.
            extend: accepts token data to which files were appended. The epoch under way ends with the samples that it
                began with, and the next has all of them; in a mixture, a source that has grown begins a new pass here.

        Raises:
            ValueError: ``state`` belongs to other data or to another order, or has no chain, or one of another kind,
                for this loader's; says which file or value differs. Nothing has changed then.
        """
        self._next = self._delivery.progress = restore(self, state, extend=extend)

    # --- numbers and end ---------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Counters since construction; times in seconds, sizes in bytes.

        Everywhere: ``minor_faults, major_faults`` of this process; ``slots, held_slots, fresh_slots``: mapped, leased,
        and made because no other was free and large enough; ``dropped_samples`` that an epoch never delivers.

        On the native path: ``batches, samples, bytes``, and ``tokens`` of token data, delivered; ``waits,
        wait_seconds``: how often and how long ``next()`` waited (filling in the calling thread included);
        ``fill_seconds`` summed over threads; ``ready``: batches filled and not taken; ``native_allocations`` after the
        ring's first round; ``tail_tokens`` of token data that no window covers.

        On the arena path: ``slot_batches``, of which large tensors lie in slots; ``small_batches``, which had none;
        ``torch_batches``, some tensor of which was left to torch (ragged, sparse, a subclass, on another device,
        requiring grad, shared already); ``no_memory``: batches for which a slot could not be had; ``slot_bytes`` of
        all slots together.

        With ``device``: ``device_batches, device_bytes`` copied; ``device_waits``: how often the host waited because
        the device lagged behind; ``pinned_slots, pinned_bytes`` now, and ``pins_refused``: slots that the driver did
        not pin, whose copies are slower.
        """
        return loader_stats(self, self._delivery, self._transfer, since=self._faults_at_start)

    def close(self) -> None:
        """Ends threads and worker processes. Batches already handed out stay valid. Can be repeated."""
        self._closed = True
        self._delivery.close()
        self._iterator = None
        if self._transfer is not None:
            self._transfer.finish()

    def __getstate__(self) -> dict[str, Any]:
        """A loader travels without its threads, slots, counters and chain; data files are opened again where it
        arrives."""
        left = {"_iterator", "_delivery", "_order", "_transfer", "_tokens"}
        state = {name: value for name, value in self.__dict__.items() if name not in left}
        return {**state, "_progress": self._delivery.progress, "chain": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = {name: value for name, value in state.items() if name != "_progress"}
        self.__dict__.update(kept, _iterator=None, _faults_at_start=page_faults())
        self._tokens = None
        if self.resident:
            self._check_resident()
        self._set_up(state["_progress"])

    def __enter__(self) -> FlatArenaDataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(chain: object) -> IntegrityChain | None:
    if chain is None:
        return None
    from aegis.evidence.chain import IntegrityChain  # which needs aegis to be complete

    if isinstance(chain, IntegrityChain):
        return chain
    raise TypeError(f"chain: expected an aegis.evidence.IntegrityChain or None, got {type(chain).__name__}")
