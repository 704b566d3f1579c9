"""FlatArenaDataLoader over records and torch's TensorDataset against torch's DataLoader."""

import gc
import os
import pickle
import weakref

import aegis
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader
ROWS = 1000


def tensors():
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (ROWS, 3, 4, 5), dtype=torch.uint8, generator=random)
    return torch.randn(ROWS, 7, generator=random), torch.arange(ROWS), images


DATASETS = {
    "TensorDataset": lambda: TensorDataset(*tensors()),
    "TensorDataset of one": lambda: TensorDataset(torch.arange(ROWS).bfloat16()),
    "bare records": lambda: aegis.RecordDataset(tensors()[0]),
    "tuples": lambda: aegis.RecordDataset(tensors()),
    "dicts": lambda: aegis.RecordDataset(dict(zip("xyz", tensors(), strict=True))),
    "scaled": lambda: aegis.RecordDataset(tensors()[2], scale=[0.1, 0.2, 0.3], bias=-1, out_dtype=torch.bfloat16),
}


@pytest.fixture(params=DATASETS)
def dataset(request):
    return DATASETS[request.param]()


def copied(batch):
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    return {k: v.clone() for k, v in batch.items()} if isinstance(batch, dict) else [tensor.clone() for tensor in batch]


def epochs(loader_type, dataset, count=2, **arguments):
    """Batches of some epochs and a number drawn from the global generator after each."""
    torch.manual_seed(11)
    loader = loader_type(dataset, **arguments)
    if loader_type is FlatArenaDataLoader:
        assert loader.path.startswith("native"), loader.path
    seen = []
    for _ in range(count):
        seen += [copied(batch) for batch in loader]
        seen.append(torch.rand(2))
    return seen


def equal(one, other):
    """The same structure, types and bits."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            equal(a, b)
    else:
        assert one.dtype is other.dtype
        assert one.is_contiguous()
        assert torch.equal(one, other)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_and_draws_are_torchs_case16(dataset, shuffle, drop_last, workers):
    arguments = {"batch_size": 64, "shuffle": shuffle, "drop_last": drop_last}
    ours = epochs(FlatArenaDataLoader, dataset, num_workers=workers, **arguments)
    equal(ours, epochs(DataLoader, dataset, **arguments))


KINDS = [torch.uint8, torch.int16, torch.uint16, torch.int64, torch.bool, torch.half, torch.double, torch.cfloat]


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    workers=st.integers(0, 2),
    fields=st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(1, 5), max_size=3)), min_size=1, max_size=4),
)
def test_any_tensors(rows, batch_size, workers, fields):
    data = [torch.randint(0, 2, (rows, *shape)).to(dtype) for dtype, shape in fields]
    arguments = {"batch_size": batch_size, "shuffle": True}
    expected = epochs(DataLoader, TensorDataset(*data), 1, **arguments)
    equal(epochs(FlatArenaDataLoader, TensorDataset(*data), 1, num_workers=workers, **arguments), expected)
    equal(epochs(FlatArenaDataLoader, aegis.RecordDataset(data), 1, num_workers=workers, **arguments), expected)


def test_rows_that_lie_apart():
    base = torch.randn(100, 6, 4)
    dataset = TensorDataset(base[::2, 1:3], base[:50, 0, 0], base[:1].expand(50, 6, 4))
    equal(epochs(FlatArenaDataLoader, dataset, batch_size=7), epochs(DataLoader, dataset, batch_size=7))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 5])
def test_resumed_in_the_middle(dataset, seed, workers):
    def make():
        return FlatArenaDataLoader(dataset, 64, shuffle=True, num_workers=workers, seed=seed)

    torch.manual_seed(2)
    loader = make()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    rest = [copied(batch) for batch in iterator]
    del iterator
    other = make()
    other.load_state_dict(state)
    equal([copied(batch) for batch in other], rest)
    assert len(rest) == 11


def test_ranks_share_the_rows_of_a_seeded_epoch():
    dataset = TensorDataset(torch.arange(ROWS))
    seen = []
    for rank in range(3):
        loader = FlatArenaDataLoader(dataset, 32, shuffle=True, num_workers=1, seed=1, rank=rank, world_size=3)
        seen += torch.cat([rows for (rows,) in loader]).tolist()
    assert len(seen) == len(set(seen)) == 999


def test_held_batches_stay_valid_case59(dataset):
    held = list(FlatArenaDataLoader(dataset, 64, num_workers=2))
    gc.collect()
    equal(held, list(DataLoader(dataset, 64)))


def test_batches_outlive_the_data(tmp_path):
    path = tmp_path / "rows.bin"
    np.arange(100, dtype=np.int32).tofile(path)
    held = list(FlatArenaDataLoader(aegis.RecordDataset(path, dtype="i4"), 30, num_workers=1))
    path.unlink()
    gc.collect()
    assert torch.cat(held).tolist() == list(range(100))


def test_an_iterator_keeps_the_tensors():
    data = torch.randn(ROWS, 4)
    expected, watched = data.clone(), weakref.ref(data)
    iterator = iter(FlatArenaDataLoader(TensorDataset(data), 100, num_workers=1))
    del data
    gc.collect()
    assert torch.equal(torch.cat([rows for (rows,) in iterator]), expected)
    del iterator
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("workers", [0, 1])
def test_changed_values_are_seen(workers):
    data = torch.zeros(ROWS)
    loader = FlatArenaDataLoader(TensorDataset(data), 100, num_workers=workers)
    assert not next(iter(loader))[0].any()
    data.fill_(3)
    assert all((rows == 3).all() for (rows,) in loader)


def test_changed_tensors_are_seen_by_the_next_iterator():
    dataset = TensorDataset(torch.zeros(10))
    for persistent in (False, True):
        dataset.tensors = (torch.zeros(10),)
        loader = FlatArenaDataLoader(dataset, 10, num_workers=1, persistent_workers=persistent)
        assert next(iter(loader))[0].sum() == 0
        dataset.tensors = (torch.ones(10, 2), torch.arange(10))
        x, y = next(iter(loader))
        assert (x.shape, y.sum()) == ((10, 2), 45)
        dataset.tensors = (torch.ones(2, 10).t(),)
        assert next(iter(loader))[0].sum() == 20
        assert loader.path.startswith("arena")
        dataset.tensors = (torch.ones(10),)
        assert next(iter(loader))[0].sum() == 10
        assert loader.path.startswith("native")


def test_a_collate_fn_set_later_is_used():
    loader = FlatArenaDataLoader(TensorDataset(torch.arange(10)), 5)
    assert isinstance(next(iter(loader)), list)
    loader.collate_fn = lambda samples: {"x": default_collate(samples)[0]}
    assert next(iter(loader))["x"].tolist() == [0, 1, 2, 3, 4]
    assert loader.path.startswith("torch: collate_fn")


@pytest.mark.parametrize("workers", [0, 1])
def test_replaced_memory_is_an_error(workers):
    data = torch.arange(100.0)
    loader = FlatArenaDataLoader(TensorDataset(data), 10, num_workers=workers)
    iterator = iter(loader)
    kept = data.untyped_storage().clone()  # so that a thread that still reads finds something there
    next(iterator)
    data.share_memory_()
    with pytest.raises(RuntimeError, match=r"memory of a tensor in this data set was replaced \(by resize_, share_mem"):
        next(iterator)
    assert torch.equal(torch.cat([rows for (rows,) in loader]), torch.arange(100.0))
    assert len(kept) == 400


def test_memory_that_threads_read_cannot_be_resized():
    """The thread would read what is no longer there: resize_ is refused, as for memory that NumPy knows."""
    data, other = torch.arange(100.0), torch.arange(100.0, dtype=torch.bfloat16)
    for _ in FlatArenaDataLoader(TensorDataset(data, other), 10):
        pass
    iterator = iter(FlatArenaDataLoader(TensorDataset(data[10:60:2], other[50:75]), 10, num_workers=1))
    for tensor in (data, other):
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.resize_(1 << 20)
    x, y = next(iterator)
    assert x.tolist() == [10 + 2 * i for i in range(10)]
    assert y.tolist() == [50 + i for i in range(10)]


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Marked(torch.Tensor):
    pass


def with_batched_getter():
    dataset = TensorDataset(torch.arange(8))
    dataset.__getitems__ = lambda indices: [(torch.tensor(-index),) for index in indices]
    return dataset


@pytest.mark.parametrize(
    "make",
    [
        lambda: Doubled(torch.arange(8)),
        with_batched_getter,
        lambda: TensorDataset(torch.ones(8, 2, requires_grad=True)),
        lambda: TensorDataset(torch.nn.Parameter(torch.ones(8), requires_grad=False)),
        lambda: TensorDataset(torch.ones(8).as_subclass(Marked)),
        lambda: TensorDataset(torch.ones(4, 8).t()),
        lambda: TensorDataset(torch.ones(8, 2, 3).to(memory_format=torch.contiguous_format).transpose(1, 2)),
        lambda: TensorDataset(torch.ones(8, 1).expand(8, 5)),
        lambda: TensorDataset(torch.ones(8, 3).to(torch.float8_e4m3fn)),
        lambda: TensorDataset(torch.randn(8, 3).to(torch.cfloat).conj()),
        lambda: TensorDataset(torch.ones(8, 0)),
        lambda: TensorDataset(*[torch.arange(8)] * 17),
        lambda: TensorDataset(torch.ones(8, *[1] * 8)),
    ],
)
def test_tensor_datasets_that_are_torchs_own(make):
    dataset = make()
    loader = FlatArenaDataLoader(dataset, 3)
    assert loader.path.startswith(f"arena: the samples of a {type(dataset).__name__} are made by Python")
    for ours, theirs in zip(loader, DataLoader(dataset, 3), strict=True):
        assert all(type(a) is type(b) and a.requires_grad == b.requires_grad for a, b in zip(ours, theirs, strict=True))
        assert all(str(a) == str(b) for a, b in zip(ours, theirs, strict=True))


def test_a_tensor_dataset_without_rows():
    loader = FlatArenaDataLoader(TensorDataset(torch.empty(0, 3)), 4)
    assert loader.path.startswith("arena")
    assert list(loader) == []
    with pytest.raises(ValueError, match="num_samples=0"):
        list(FlatArenaDataLoader(TensorDataset(torch.empty(0, 3)), 4, shuffle=True))


def test_a_subclass_of_records_is_torchs_own():
    class Negated(aegis.RecordDataset):
        def __getitems__(self, indices):
            return [-sample for sample in super().__getitems__(indices)]

    loader = FlatArenaDataLoader(Negated(torch.arange(6)), 6)
    assert loader.path.startswith("arena")
    assert next(iter(loader)).tolist() == [0, -1, -2, -3, -4, -5]


@pytest.mark.parametrize("workers", [0, 1])
def test_samplers_may_count_from_the_end_and_not_leave_the_data(workers):
    dataset = TensorDataset(torch.arange(10))
    loader = FlatArenaDataLoader(dataset, 3, sampler=[-1, 2, -10, 10, 0], num_workers=workers)
    iterator = iter(loader)
    assert next(iterator)[0].tolist() == [9, 2, 0]
    with pytest.raises(IndexError, match="index: expected -10 to 9, got 10"):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_cut_short_is_an_error_at_next_case50(tmp_path, workers):
    path = tmp_path / "records.bin"
    np.zeros((4096, 64), np.float32).tofile(path)
    loader = FlatArenaDataLoader(aegis.RecordDataset(path, dtype="f4", shape=64), 16, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    os.truncate(path, 4096)
    with pytest.raises(RuntimeError, match=r"records.bin: expected 1048576 bytes, found 4096"):
        list(iterator)
    with pytest.raises(RuntimeError, match="found 4096"):
        iter(loader)


def test_records_of_a_file_with_several_fields(tmp_path):
    layout = np.dtype([("label", "u1"), ("image", "u1", (3, 4, 4)), ("time", "f8")])
    table = np.zeros(50, layout)
    table["label"], table["time"] = range(50), np.arange(50) / 4
    table["image"] = np.arange(50 * 48).reshape(50, 3, 4, 4)
    table.tofile(tmp_path / "table.bin")
    dataset = aegis.RecordDataset(tmp_path / "table.bin", dtype=layout, scale={"image": [1, 2, 3]})
    arguments = {"batch_size": 8, "shuffle": True}
    equal(epochs(FlatArenaDataLoader, dataset, num_workers=2, **arguments), epochs(DataLoader, dataset, **arguments))
    assert dataset.fingerprint() == FlatArenaDataLoader(dataset).state_dict()["fingerprint"]


def test_stats_count_bytes_and_no_tokens():
    loader = FlatArenaDataLoader(TensorDataset(torch.ones(10, 3), torch.arange(10)), 4, num_workers=1)
    list(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["bytes"]) == (3, 10, 200)
    assert "tokens" not in stats
    assert "tail_tokens" not in stats


def test_no_native_allocation_after_the_first_round():
    loader = FlatArenaDataLoader(TensorDataset(torch.ones(ROWS, 8)), 20, shuffle=True, num_workers=1)
    for _ in range(3):
        for _ in loader:
            pass
    assert loader.stats()["native_allocations"] == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_reused_slots(persistent):
    data = torch.arange(ROWS)
    loader = FlatArenaDataLoader(TensorDataset(data), 50, num_workers=1, reuse=True, persistent_workers=persistent)
    for _ in range(2):
        assert torch.equal(torch.cat([rows.clone() for (rows,) in loader]), data)
    assert loader.stats()["fresh_slots"] == 0


def test_a_pickled_loader_gives_the_same_batches_case13(dataset):
    loader = FlatArenaDataLoader(dataset, 64, num_workers=1, shuffle=True, seed=4)
    equal(list(pickle.loads(pickle.dumps(loader))), list(loader))


def test_batches_into_memory_of_the_callers():
    """What pinned batches use: the feeder writes into tensors that torch allocated."""
    from aegis.data.native_source import native_source

    data, labels = tensors()[:2]
    filler = native_source(TensorDataset(data, labels)).filler
    assert filler.fields == [(2, 32, [7]), (0, 64, [])]
    feeder = aegis._C.Feeder(filler, aegis._C.SlotPool(1, 0), threads=1, depth=1, from_dlpack=None)
    x, y = torch.empty(3, 7), torch.empty(3, dtype=torch.int64)
    feeder.submit_into([5, -1, 5], [x.data_ptr(), y.data_ptr()])
    assert feeder.next() is None
    assert torch.equal(x, data[[5, -1, 5]])
    assert y.tolist() == [5, 999, 5]


def test_bad_input_for_a_filler():
    make = aegis._C.RecordFiller
    rows = torch.ones(4, 3)

    def array(capsule=None, field=(2, 32, [3]), scaling=None):
        return (torch.utils.dlpack.to_dlpack(rows) if capsule is None else capsule, field, scaling, None)

    assert make([array()]).samples == 4
    with pytest.raises(TypeError, match="expected an unused DLPack capsule, got"):
        make([array(capsule=rows)])
    used = torch.utils.dlpack.to_dlpack(rows)
    torch.utils.dlpack.from_dlpack(used)
    with pytest.raises(TypeError, match="expected an unused DLPack capsule, got <capsule object"):
        make([array(capsule=used)])
    with pytest.raises(ValueError, match="array 0: expected rows of 16 bytes, got 12"):
        make([array(field=(2, 32, [4]))])
    with pytest.raises(ValueError, match="array 0: expected contiguous rows"):
        make([array(capsule=torch.utils.dlpack.to_dlpack(torch.ones(3, 4).t()))])
    with pytest.raises(ValueError, match="array 0: scale: expected values of uint8"):
        make([array(scaling=([1.0] * 3, [0.0] * 3, False))])
    with pytest.raises(ValueError, match="arrays: expected at least one, got none"):
        make([])
