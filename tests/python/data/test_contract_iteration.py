"""DataLoader's contract, length and iteration, in torch's class and in ours."""

import pickle
import threading
from itertools import islice

import contract
import pytest
import torch
from contract import LOADERS, THREADED, Map, Sized, Stream, both, both_fail, both_warn, both_work, epoch
from samples import assert_same, large
from torch.utils.data import get_worker_info

one_of_each = pytest.mark.parametrize(
    "way", ["tokens-1", "tensors-0", "records-1", "arena-0", "arena-1"], indirect=True
)
LENGTHS = [(5, 5, False), (5, 5, True), (4, 4, True), (5, 7, False), (5, 9, True)]


# --- len -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", contract.INLINE, indirect=True)
def test_len_is_that_of_the_index_sampler(way):
    def script(loader_type):
        cases = [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"sampler": [1, 2]}, {"shuffle": True}]
        loaders = [way(loader_type, **arguments) for arguments in cases]
        loaders.append(way(loader_type, batch_sampler=[[1], [2], [3]]))
        return [(len(loader), len(loader._index_sampler), len(iter(loader))) for loader in loaders]

    assert [n for n, *_ in both_work(script)] == [10, 4, 3, 2, 10, 3]


@pytest.mark.parametrize(("n", "declared", "drop_last"), LENGTHS)
def test_len_of_an_iterable_dataset_rounds_its_length(n, declared, drop_last):
    def script(loader_type):
        loader = loader_type(Sized(n, declared), 2, drop_last=drop_last)
        before = loader._IterableDataset_len_called
        return [before, len(loader), loader._IterableDataset_len_called, *epoch(loader)]

    assert both_work(script)[:3] == [None, declared // 2 if drop_last else -(-declared // 2), declared]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_more_samples_than_an_iterable_dataset_declares_warn_once_len_was_called(workers):
    def script(loader_type, ask=True):
        loader = loader_type(Sized(5, 3), num_workers=workers)
        return [len(loader) if ask else None, *epoch(loader)]

    both_warn(script, "Length of IterableDataset")
    both_work(lambda loader_type: script(loader_type, ask=False))


def test_len_without_a_length_is_a_type_error():
    both_fail(lambda loader_type: len(loader_type(Stream())), "TypeError", "has no len()")
    both_fail(lambda loader_type: len(loader_type(Map(), sampler=iter([1]))), "TypeError", "has no len()")


@pytest.mark.parametrize("workers", [0, 1])
def test_empty_data_set_has_no_batch_and_cannot_be_shuffled(workers):
    for dataset in ([], Map(n=0)):
        for arguments in ({"shuffle": False}, {"batch_size": None}, {"drop_last": True}):

            def script(loader_type, dataset=dataset, arguments=arguments):
                loader = loader_type(dataset, num_workers=workers, **arguments)
                return [len(loader), *epoch(loader)]

            assert both_work(script) == [0, "end"]
    both_fail(lambda loader_type: loader_type([], shuffle=True, num_workers=workers), "ValueError", "num_samples=0")


def test_drop_last_with_a_batch_larger_than_the_data_is_silent(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=11, drop_last=True)
        return [len(loader), *epoch(loader)]

    assert both_work(script) == [0, "end"]


# --- iterators -----------------------------------------------------------------------------------------------------


@one_of_each
def test_iterators_are_independent_and_can_interleave(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=3, shuffle=True)
        one, other = iter(loader), iter(loader)
        return [one is other, *[next(iterator) for iterator in (one, other, other, one)], contract.events(other)]

    assert both_work(script)[0] is False


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_persistent_workers_give_the_same_object_restarted(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=3, shuffle=True, persistent_workers=True)
        first = iter(loader)
        head = next(first)
        again = iter(loader)
        return [again is first, loader._iterator is first, head, *contract.events(again), *epoch(loader)]

    assert both_work(script)[:2] == [True, True]


@one_of_each
def test_iterators_return_themselves_have_a_length_and_end_for_good(way):
    def script(loader_type):
        iterator = iter(way(loader_type, batch_size=4))
        found = [iter(iterator) is iterator, len(iterator), len(list(iterator))]
        return found + [next(iterator, "end") for _ in range(3)]

    assert both_work(script) == [True, 3, 3, "end", "end", "end"]


@one_of_each
def test_iterators_cannot_be_pickled_and_loaders_can(way):
    for loader_type in LOADERS:
        with pytest.raises(NotImplementedError, match="cannot be pickled") as error:
            pickle.dumps(iter(way(loader_type)))
        assert type(error.value.args[1]) is str  # the iterator's class

    def script(loader_type):
        return epoch(pickle.loads(pickle.dumps(way(loader_type, batch_size=3, shuffle=True))))

    assert both_work(script)[-1] == "end"


def tensors_of(batch):
    values = batch.values() if isinstance(batch, dict) else batch
    return [value for value in values if isinstance(value, torch.Tensor)]


def test_batches_are_fresh_contiguous_and_share_no_storage(way):
    def script(loader_type):
        held = list(way(loader_type, batch_size=2))
        tensors = [tensor for batch in held for tensor in tensors_of(batch)]
        addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        for tensor in tensors:
            tensor.add_(1)  # of the user's own: nothing else changes by it
        return [len(addresses) == len(tensors), all(tensor.is_contiguous() for tensor in tensors), held]

    assert both_work(script)[:2] == [True, True]


@pytest.mark.parametrize("way", ["arena-1", "arena-2"], indirect=True)
def test_an_early_break_ends_the_workers(way):
    def script(loader_type):
        iterator = iter(way(loader_type))
        next(iterator)
        workers = iterator._workers
        alive = [worker.is_alive() for worker in workers]
        del iterator
        return [*alive, *[worker.exitcode for worker in workers]]

    assert both_work(script) == [True] * way.workers + [0] * way.workers


@pytest.mark.parametrize("way", ["tokens-1", "tensors-2", "records-1"], indirect=True)
def test_an_early_break_goes_on_with_the_next_epoch(way):
    both_work(lambda loader_type: [list(islice(loader, 2)) for loader in [way(loader_type, shuffle=True)] * 3])


@one_of_each
def test_iteration_from_another_thread(way):
    def script(loader_type):
        found = []
        thread = threading.Thread(target=lambda: found.extend(epoch(way(loader_type, batch_size=3))))
        thread.start()
        thread.join(60)
        return found

    assert both_work(script)[-1] == "end"


# --- what the data set sees ----------------------------------------------------------------------------------------


def told(i):
    info = get_worker_info()
    return i if info is None else (i, info.id, info.num_workers, type(info.dataset).__name__)


@pytest.mark.parametrize("workers", [0, 2])
def test_get_worker_info_is_none_in_the_main_process(workers):
    first = both_work(
        lambda loader_type: [get_worker_info(), *epoch(loader_type(Map(told), None, num_workers=workers))]
    )
    assert first[:2] == [None, 0 if workers == 0 else [0, 0, 2, "Map"]]


class Whole(Map):
    def __getitems__(self, indices):
        return [super(Whole, self).__getitem__(i) for i in indices[::-1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_getitems_is_used_for_batches_alone(workers):
    first = both_work(lambda loader_type: epoch(loader_type(Whole(), 4, num_workers=workers)))[0]
    assert first[1].tolist() == [3, 2, 1, 0]
    first = both_work(lambda loader_type: epoch(loader_type(Whole(), None, num_workers=workers)))[0]
    assert first[1] == 0


def test_negative_indices_reach_the_data_set(way):
    both_work(lambda loader_type: epoch(way(loader_type, batch_size=2, sampler=[-1, 0, -10])))


@pytest.mark.parametrize("workers", [0, 1])
def test_negative_indices_reach_the_data_set_unchanged(workers):
    dataset = Map(lambda i: i)
    found = both_work(lambda loader_type: epoch(loader_type(dataset, sampler=[-3, 99], num_workers=workers)))
    assert [int(i) for i in found[:2]] == [-3, 99]


@pytest.mark.parametrize("way", ["tokens-0", "records-0", "arena-0", "torch-0"], indirect=True)
def test_an_index_out_of_range_is_what_the_data_set_says(way):
    dataset = Map(lambda i: [0, 1, 2][i]) if way.prefix != "native" else None
    found = both(lambda loader_type: epoch(way(loader_type, dataset, sampler=[1, 10, 2])))["result"]
    assert found[1][0] == "IndexError"
    assert found[-1] == "end"


def test_deviation_an_index_out_of_a_tensor_data_set_has_our_text(token_file):
    way = contract.Way("tensors-0", token_file)
    theirs, ours = (epoch(way(loader_type, sampler=[1, 10, 2])) for loader_type in LOADERS)
    assert theirs[1][0] == ours[1][0] == "IndexError"
    assert ours[1][2] == ["index: expected -10 to 9, got 10"]
    assert_same([*ours[:1], *ours[2:]], [*theirs[:1], *theirs[2:]])


# --- iterable data sets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_iterable_data_set_is_duplicated_per_worker(size, workers):
    found = both_work(lambda loader_type: epoch(loader_type(Stream(), size, num_workers=workers)))
    indices = [int(i) for batch in found[:-1] for i in torch.as_tensor(batch[1]).reshape(-1)]
    assert sorted(indices) == sorted([*range(5)] * max(1, workers))


class Shared(Stream):
    def __iter__(self):
        info = get_worker_info()
        return iter([(large(i), i) for i in range(info.id, 7, info.num_workers)])


@pytest.mark.parametrize("arguments", [{}, {"drop_last": True}, {"persistent_workers": True}], ids=str)
def test_an_iterable_data_set_may_share_itself_out(arguments):
    def script(loader_type):
        loader = loader_type(Shared(), 2, num_workers=2, **arguments)
        return [*epoch(loader), *epoch(loader)]

    both_work(script)


# --- what frameworks touch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", contract.INLINE, indirect=True)
def test_a_loader_made_again_from_the_attributes_of_another(way):
    names = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
    names += ("multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order", "pin_memory_device")

    def script(loader_type):
        loader = way(loader_type, batch_size=3, shuffle=True)
        again = type(loader)(batch_sampler=loader.batch_sampler, **{name: getattr(loader, name) for name in names})
        return [
            loader._auto_collation,
            loader._dataset_kind,
            type(loader._index_sampler.sampler).__name__,
            epoch(again),
        ]

    both(lambda loader_type: script(loader_type)[:2])
    both(lambda loader_type: script(loader_type)[3])


@pytest.mark.parametrize("way", ["tokens-0", "arena-0"], indirect=True)
def test_a_subclass_may_make_its_own_iterator(way):
    def script(loader_type):
        class Counting(loader_type):
            made = 0

            def _get_iterator(self):
                self.made += 1
                return super()._get_iterator()

        loader = way(Counting, batch_size=5)
        return [*epoch(loader), *epoch(loader), loader.made]

    assert both_work(script)[-1] == 2
