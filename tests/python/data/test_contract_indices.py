"""DataLoader's contract, indices: what samplers may yield, and when they are asked, in torch's class and in ours."""

import sys

import aegis
import contract
import numpy as np
import pytest
import torch
from contract import LOADERS, THREADED, both_work, epoch
from samples import assert_same
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

DATA = {
    "tensors": lambda: TensorDataset(torch.arange(40.0).reshape(10, 4), torch.arange(10)),
    "records": lambda: aegis.RecordDataset((torch.arange(40.0).reshape(10, 4), torch.arange(10))),
}

BATCHES = {
    "empty": lambda: [[1], [], [2]],
    "tuples": lambda: [(1, 2), (3,)],
    "sets": lambda: [{1, 2}, {3}],
    "keys": lambda: [{1: 0, 2: 0}, {3: 0}.keys()],
    "ranges": lambda: [range(3), range(9, 0, -2), range(0)],
    "generators": lambda: [(i for i in (1, 2)), iter([3])],
    "arrays": lambda: [np.array([1, 2]), np.array([3], np.uint8), np.array([4], np.uint64), np.array([], np.int64)],
    "array_of_two_dimensions": lambda: [np.array([[1, 2], [3, 4]]), [3]],
    "arrays_of_no_ints": lambda: [np.array([1.5, 2.5]), np.array([True, False]), np.array([1, 2], object), [3]],
    "tensors": lambda: [torch.tensor([1, 2]), torch.tensor([3])],
    "tensors_of_no_indices": lambda: [torch.tensor([1.5, 2.5]), torch.tensor([True, False]), torch.tensor([[1]]), [3]],
    "masks": lambda: [torch.tensor([1, 0], dtype=torch.uint8), [3]],
    "numbers": lambda: [[np.int64(1), np.uint8(2)], [torch.tensor(3), 4], [torch.tensor(5)]],
    "one_element": lambda: [[torch.tensor([2])], [torch.tensor([3, 4])], [np.array(5)], [np.array([6])]],
    "bools": lambda: [[True, False], [True], [np.True_], [3]],
    "floats": lambda: [[1.0], [np.float32(2)], [3]],
    "slices": lambda: [[slice(0, 2), slice(2, 4)], [3]],
    "lists": lambda: [[[0, 1], [2, 3]], [3]],
    "none": lambda: [[None], [Ellipsis], ["a"], [3]],
    "huge": lambda: [[2**70], [-(2**70)], [3], [2**70, torch.tensor(3)], [4]],
    "no_batches": lambda: [1, None, "12", [3]],
}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning", "ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_sampler_may_yield_whatever_the_data_set_takes(data, kind):
    """What is no number of a sample reaches the data set as it is; its errors come in their turn, also from threads."""
    dataset = DATA[data]()
    theirs = epoch(DataLoader(dataset, batch_sampler=BATCHES[kind]()))
    for workers in (0, 1, 2):
        loader = aegis.FlatArenaDataLoader(dataset, batch_sampler=BATCHES[kind](), num_workers=workers)
        assert loader.path.startswith("native")
        assert_same(epoch(loader), theirs)


class Clears:
    """Passes for a NumPy integer where it is asked for its class, and empties the list that it is in."""

    def __init__(self, items):
        self.items = items

    @property
    def __class__(self):
        self.items.clear()
        return np.int64

    def __index__(self):
        return 7


@pytest.mark.parametrize("workers", [0, 1])
def test_a_list_that_changes_while_it_is_read(workers):
    batch = [1, 2]
    batch += [Clears(batch), *[3] * 10_000]
    loader = aegis.FlatArenaDataLoader(DATA["records"](), batch_sampler=[batch], num_workers=workers)
    assert loader.path.startswith("native")
    assert [labels.tolist() for _, labels in loader] == [[1, 2, 7]]


class Told:
    """A sampler that tells how many indices it was asked for."""

    def __init__(self, n):
        self.n, self.asked = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        for i in range(self.n):
            self.asked += 1
            yield i


@pytest.mark.parametrize("factor", [1, 3])
def test_indices_are_asked_for_when_torch_asks(way, factor):
    """Without workers one batch at each next(); with them prefetch_factor x num_workers at iter(), then one each."""

    def script(loader_type):
        sampler = Told(10)
        arguments = {"prefetch_factor": factor} if way.workers else {}
        iterator = iter(way(loader_type, sampler=sampler, **arguments))
        asked = [sampler.asked]
        for _ in iterator:
            asked.append(sampler.asked)
        return asked

    ahead = factor * way.workers
    expected = [min(10, ahead + n) for n in range(11)]
    assert both_work(script) == expected


@pytest.mark.parametrize("way", ["arena-2"], indirect=True)
def test_requests_go_to_workers_in_turn(way):
    def script(loader_type):
        iterator = iter(way(loader_type, prefetch_factor=3))
        return iterator._tasks_outstanding, [info[0] for info in iterator._task_info.values()]

    assert both_work(script) == (6, [0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("size", [10, 1 << 40, sys.maxsize])
@pytest.mark.parametrize("way", [*contract.WAYS, "tensors-2"], indirect=True)
def test_a_batch_size_beyond_the_data_is_all_of_it(way, size):
    def script(loader_type):
        loader = way(loader_type, batch_size=size)
        return [len(loader), *epoch(loader), *epoch(loader)]

    assert len(both_work(script)) == 5


@pytest.mark.parametrize("workers", [0, 4])
def test_slots_for_few_batches_are_few(workers):
    """A loader of one large batch maps no more than torch has: that one, and the one before."""
    loader = aegis.FlatArenaDataLoader(TensorDataset(torch.arange(1000)), 1 << 40, num_workers=workers)
    next(iter(loader))
    assert loader.stats()["slots"] == 2


@pytest.mark.parametrize("key", [torch.Tensor, tuple, object])
@pytest.mark.parametrize("way", ["tensors-0", "tensors-2", "arena-0", "arena-1"], indirect=True)
def test_the_users_entry_in_the_table_of_default_collate_is_used(way, key, monkeypatch):
    def own(batch, *, collate_fn_map=None):
        return len(batch), type(batch[0]).__name__

    monkeypatch.setitem(default_collate_fn_map, key, own)
    arguments = {"multiprocessing_context": "fork"} if way.workers and way.prefix == "arena" else {}

    def script(loader_type):
        return list(loader_type(way.dataset, 5, num_workers=way.workers, **arguments))

    both_work(script)
    monkeypatch.undo()
    assert default_collate_fn_map[torch.Tensor] is collate_tensor_fn
    assert set(map(type, both_work(script))) == {list}


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_deviation_batches_are_no_shared_memory(way):
    """torch's come in a file of their own, which other processes can be handed; ours are copied when they are."""
    theirs, ours = (next(iter(way(loader_type, batch_size=5))) for loader_type in LOADERS)
    for batch, shared in ((theirs, True), (ours, False)):
        for tensor in batch.values() if isinstance(batch, dict) else batch:
            assert tensor.is_shared() is shared
            assert tensor.share_memory_().is_shared()


@pytest.mark.parametrize("way", ["tokens-0", "tensors-0", "arena-0"], indirect=True)
def test_deviation_batches_in_slots_cannot_grow(way):
    """As tensors over memory of NumPy's cannot."""
    theirs, ours = (next(iter(way(loader_type, batch_size=5)))[0] for loader_type in LOADERS)
    assert len(theirs.resize_(6, *theirs.shape[1:])) == 6
    assert len(ours.resize_(4, *ours.shape[1:])) == 4
    with pytest.raises(RuntimeError, match="not resizable"):
        ours.resize_(6, *ours.shape[1:])
