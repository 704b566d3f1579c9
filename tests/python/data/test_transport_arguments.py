"""Arguments of torch's DataLoader where batches of any data set come through slots, against torch's class."""

import multiprocessing
import pickle
import random
import warnings

import aegis
import numpy as np
import pytest
import torch
from aegis.data.torch_iter import MultiProcessIter, SingleProcessIter
from samples import Numbered, Samples, assert_both_same, assert_same, large, outcomes
from torch.utils.data import DataLoader, Dataset

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("every_size_in_slots", "one_thread")


class Drawing(Dataset):
    """Every generator a worker seeds, and what it knows of itself."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        where = (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed % 2**31)
        drawn = (float(torch.rand(())), random.random(), np.random.random_sample())  # noqa: NPY002
        return i, *where, *(drawn if info is not None else ())


def draw_also(worker):
    torch.rand(worker + 1)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_seeded_as_torchs_case22(persistent):
    arguments = {"batch_size": 3, "num_workers": 2, "worker_init_fn": draw_also, "persistent_workers": persistent}
    assert_both_same(Drawing(), shuffle=True, **arguments)
    theirs, ours = (
        [*loader_type(Drawing(), generator=torch.Generator().manual_seed(5), **arguments)]
        for loader_type in (DataLoader, FlatArenaDataLoader)
    )
    assert_same(ours, theirs)


def test_draws_in_this_process_are_torchs():
    assert_both_same(Drawing(), batch_size=3, shuffle=True)


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_prefetching_and_the_last_batch(prefetch, drop_last):
    assert_both_same(Numbered(22), batch_size=4, num_workers=2, prefetch_factor=prefetch, drop_last=drop_last)


class Waiting(Dataset):
    """Item 0 is not ready before item 5 is."""

    def __init__(self):
        self.last = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 0:
            assert self.last.wait(60)
        if i == 5:
            self.last.set()
        return large(i)


def test_in_order_false_gives_batches_as_they_come_case34():
    orders = []
    for loader_type in (DataLoader, FlatArenaDataLoader):
        loader = loader_type(
            Waiting(), None, num_workers=2, in_order=False, prefetch_factor=1, multiprocessing_context="fork"
        )
        orders.append([int(x.view(-1)[0]) for x in loader])
    assert orders == [[1, 2, 3, 4, 5, 0]] * 2


class Unready(Dataset):
    def __init__(self, event):
        self.event = event

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.event.wait(60)
        return large(i)


def test_timeout_has_torchs_message():
    event = multiprocessing.get_context("fork").Event()
    loader = FlatArenaDataLoader(Unready(event), num_workers=1, timeout=0.2, multiprocessing_context="fork")
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iterator)
    event.set()


class Ending(Samples):
    def __getitem__(self, i):
        if i == 5:
            raise StopIteration
        return super().__getitem__(i)


def test_stop_iteration_in_getitem_is_as_in_torch_case66():
    for workers in (0, 1):
        ours, theirs = (
            outcomes(loader_type(Ending(["tensor"] * 3), batch_size=4, num_workers=workers))
            for loader_type in (FlatArenaDataLoader, DataLoader)
        )
        assert_same(ours, theirs)


def test_empty_data_sets_case64():
    for workers in (0, 1):
        assert list(FlatArenaDataLoader([], num_workers=workers)) == []
        with pytest.raises(ValueError, match="num_samples=0"):
            FlatArenaDataLoader([], shuffle=True, num_workers=workers)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_case12_case14(context):
    arguments = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": context}
    loader = FlatArenaDataLoader(Numbered(24), **arguments)
    assert_same(list(loader), list(DataLoader(Numbered(24), batch_size=4)))
    assert loader.stats()["slot_batches"] == 6
    assert loader.stats()["torch_batches"] == 0


def test_what_cannot_be_sent_to_a_spawned_worker_fails_as_in_torch_case13_case14():
    class Local(Numbered):
        pass

    for dataset, collate_fn in ((Numbered(4), lambda samples: samples), (Local(4), None)):
        errors = []
        for loader_type in (DataLoader, FlatArenaDataLoader):
            loader = loader_type(dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=collate_fn)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
                    iter(loader)
            errors.append((caught.type, str(caught.value)))
        assert errors[0] == errors[1]


def test_a_loader_pickles_also_after_use_case13():
    for workers in (0, 1):
        loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=workers)
        first = list(loader)
        assert_same(list(pickle.loads(pickle.dumps(loader))), first)


def test_two_iterators_of_one_loader_do_not_mix():
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=1)
    for (one, _), (other, _) in zip(loader, loader, strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert len(loader._delivery.transport._arenas) == 2


def test_iterators_are_torchs_classes_and_say_what_they_do():
    for workers, kind in ((0, SingleProcessIter), (1, MultiProcessIter)):
        loader = FlatArenaDataLoader(Numbered(4), num_workers=workers)
        assert loader.path.startswith("arena: the samples of a Numbered are made by Python; ")
        assert type(iter(loader)) is kind
