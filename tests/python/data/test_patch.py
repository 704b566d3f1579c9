"""patch_torch(): plain loaders deliver the same batches, through aegis."""

import gc
import weakref

import aegis
import pytest
import torch
from aegis.data import patch
from aegis.data.native import NativeIter
from aegis.data.torch_iter import MultiProcessIter, SingleProcessIter
from samples import Numbered, NumberedStream, assert_same
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

TORCHS = DataLoader._get_iterator


@pytest.fixture(autouse=True)
def _unpatched():
    assert DataLoader._get_iterator is TORCHS
    yield
    assert DataLoader._get_iterator is TORCHS


def table(n=50):
    return TensorDataset(torch.arange(n * 3.0).reshape(n, 3), torch.arange(n))


def list_of(samples):
    return [index for _, index in samples]


def by_rank(i):
    torch.manual_seed(i)


class OddFirst(DataLoader):
    """Chooses indices by itself."""

    @property
    def _index_sampler(self):
        return BatchSampler([*range(1, len(self.dataset), 2), *range(0, len(self.dataset), 2)], 4, False)


class Own(DataLoader):
    def _get_iterator(self):
        return super()._get_iterator()


class Equal(DataLoader):
    def __eq__(self, other):
        return isinstance(other, Equal)


LOADERS = {
    "tensors": ("native", lambda: DataLoader(table(), 8, shuffle=True)),
    "tensors_2": ("native", lambda: DataLoader(table(), 8, shuffle=True, num_workers=2)),
    "kept": ("native", lambda: DataLoader(table(), 8, shuffle=True, num_workers=1, persistent_workers=True)),
    "generator": ("native", lambda: DataLoader(table(), 8, shuffle=True, generator=torch.Generator().manual_seed(3))),
    "batch_sampler": (
        "native",
        lambda: DataLoader(table(), batch_sampler=BatchSampler(RandomSampler(table()), 7, True)),
    ),
    "dataset": ("arena", lambda: DataLoader(Numbered(10), 4, shuffle=True)),
    "dataset_2": ("arena", lambda: DataLoader(Numbered(10), 4, shuffle=True, num_workers=2)),
    "kept_workers": ("arena", lambda: DataLoader(Numbered(8), 4, True, num_workers=2, persistent_workers=True)),
    "stream_2": ("arena", lambda: DataLoader(NumberedStream(11), 4, num_workers=2)),
    "collate_fn": ("torch", lambda: DataLoader(Numbered(10), 4, collate_fn=list_of)),
    "collate_fn_2": ("arena", lambda: DataLoader(Numbered(10), 4, collate_fn=list_of, num_workers=2)),
    "one_by_one": ("torch", lambda: DataLoader(table(), None)),
    "init_fn": ("arena", lambda: DataLoader(table(), 8, True, num_workers=2, worker_init_fn=by_rank)),
    "index_sampler": ("arena", lambda: OddFirst(table(), 8)),
}


def three_epochs(loader):
    """Batches, and the state of torch's generator afterwards."""
    torch.manual_seed(11)
    return [list(loader) for _ in range(3)], torch.get_rng_state()


@pytest.mark.parametrize("name", LOADERS)
def test_same_batches_and_draws_as_torch(name):
    path, make = LOADERS[name]
    expected, state = three_epochs(make())
    before = patch.stats()
    with aegis.patch_torch():
        loader = make()
        got, state_after = three_epochs(loader)
    assert_same(got, expected)
    assert torch.equal(state, state_after)
    count = sum(map(len, expected))
    assert patch.delivered(loader) == {"native": 0, "arena": 0, "torch": 0, path: count}
    assert patch.stats() == {**before, path: before[path] + count}


@pytest.mark.parametrize("workers", [0, 2])
def test_token_and_record_data(tokens, workers):
    for dataset in (tokens, aegis.RecordDataset(torch.arange(60).reshape(20, 3))):
        expected = list(DataLoader(dataset, 6, num_workers=workers, drop_last=True))
        with aegis.patch_torch():
            loader = DataLoader(dataset, 6, num_workers=workers, drop_last=True)
            assert_same(list(loader), expected)
        assert patch.delivered(loader)["native"] == len(expected)


@pytest.mark.parametrize(("batch_size", "path"), [(8, "native"), (5, "arena")])
def test_the_seeded_order_of_a_loader_rebuilt_as_a_plain_one(batch_size, path):
    flat = aegis.FlatArenaDataLoader(table(), 8, shuffle=True, seed=4)
    for batches in (BatchSampler(flat.sampler, batch_size, False), None):
        given = {"batch_size": batch_size, "sampler": flat.sampler} if batches is None else {"batch_sampler": batches}
        for epoch in range(2):
            flat.sampler.set_epoch(epoch)
            expected = list(DataLoader(table(), **given))
            with aegis.patch_torch():
                loader = DataLoader(table(), **given)
                assert_same(list(loader), expected)
            assert patch.delivered(loader)[path] == len(expected)
            if batch_size == 8:
                flat.set_epoch(epoch)
                assert_same(list(flat), expected)


def test_loaders_that_exist_already_and_errors_of_torch():
    loader = DataLoader(table(), 8)
    with aegis.patch_torch():
        assert type(iter(loader)) is NativeIter
        assert type(iter(DataLoader(Numbered(4)))) is SingleProcessIter
        with pytest.raises(ValueError, match="num_workers"):
            DataLoader(table(), num_workers=-1)
    assert type(iter(loader)) is _SingleProcessDataLoaderIter


def test_nested_in_any_order():
    loader = DataLoader(table(), 8)

    def ours():
        return type(iter(loader)) is NativeIter

    first = aegis.patch_torch()
    with aegis.patch_torch() as second:
        assert ours()
        first.undo()
        first.undo()
        assert ours()
    assert not ours()
    second.undo()
    with aegis.patch_torch():
        with aegis.patch_torch():
            assert ours()
        assert ours()
    assert not ours()


def test_an_exception_inside_the_block_restores():
    with pytest.raises(KeyError, match="inside"), aegis.patch_torch():
        raise KeyError("inside")
    assert DataLoader._get_iterator is TORCHS


def test_somebody_elses_patch_above_ours_stays(monkeypatch):
    def theirs(loader):
        calls.append(loader)
        return under(loader)

    calls, ours = [], aegis.patch_torch()
    under = DataLoader._get_iterator
    DataLoader._get_iterator = theirs
    try:
        ours.undo()
        assert DataLoader._get_iterator is theirs
        loader = DataLoader(table(), 8)
        assert type(iter(loader)) is _SingleProcessDataLoaderIter
        assert calls == [loader]
    finally:
        DataLoader._get_iterator = TORCHS


@pytest.mark.parametrize("name", ["tensors_2", "dataset_2"])
def test_iterators_live_on_after_the_patch(name):
    make = LOADERS[name][1]
    torch.manual_seed(5)
    expected = list(make())
    torch.manual_seed(5)
    with aegis.patch_torch():
        iterator = iter(make())
        first = next(iterator)
    assert type(iterator) in (NativeIter, MultiProcessIter)
    assert_same([first, *iterator], expected)


@pytest.mark.parametrize("name", ["kept", "kept_workers"])
def test_persistent_iterators_start_anew_after_the_patch(name):
    make = LOADERS[name][1]
    expected, _ = three_epochs(make())
    loader = make()
    torch.manual_seed(11)
    with aegis.patch_torch():
        iterator = iter(loader)
        got = [list(iterator)]
    got += [list(loader) for _ in range(2)]
    assert loader._iterator is iterator
    assert_same(got, expected)


def test_subclasses_with_iterators_of_their_own_are_left_alone():
    with aegis.patch_torch():
        arena = aegis.FlatArenaDataLoader(table(), 8)
        assert type(iter(arena)) is NativeIter
        assert arena.path.startswith("native")
        for kind in (Own, Equal):
            loader = kind(table(), 8)
            assert type(iter(loader)) is _SingleProcessDataLoaderIter
        assert patch.delivered(arena) == {"native": 0, "arena": 0, "torch": 0}


def test_torchdatas_loader_is_left_alone():
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    before = patch.stats()
    with aegis.patch_torch():
        got = list(stateful.StatefulDataLoader(table(), 8))
    assert_same(got, list(DataLoader(table(), 8)))
    assert patch.stats() == before


@pytest.mark.parametrize("name", ["tensors_2", "dataset_2", "kept"])
def test_nothing_is_kept_of_a_loader_that_is_gone(name):
    with aegis.patch_torch():
        loader = LOADERS[name][1]()
        next(iter(loader))
        delivery = weakref.ref(patch._deliveries[loader])
        del loader
        gc.collect()
        assert delivery() is None
