"""DataLoader's contract, arguments: what each one does, refuses and warns of, in torch's class and in ours."""

import inspect
import multiprocessing

import aegis
import contract
import pytest
import torch
from contract import LOADERS, THREADED, Map, Stream, both, both_fail, both_warn, both_work, epoch
from samples import assert_same
from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

GUARDED = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
one_of_each = pytest.mark.parametrize("way", ["tokens-1", "records-1", "arena-1"], indirect=True)


def test_names_order_kinds_and_defaults():
    theirs, ours = (inspect.signature(loader_type.__init__).parameters for loader_type in LOADERS)
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    for name in set(ours) - set(theirs):
        assert ours[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_our_class_is_a_subclass():
    assert issubclass(aegis.FlatArenaDataLoader, DataLoader)


def test_defaults_as_attributes(way):
    def script(loader_type):
        loader = way(loader_type, num_workers=0)
        names = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "pin_memory_device", "timeout")
        names += ("worker_init_fn", "multiprocessing_context", "in_order", "drop_last", "generator")
        names += ("persistent_workers", "_auto_collation", "_dataset_kind", "_iterator", "_IterableDataset_len_called")
        return [getattr(loader, name) for name in names] + [type(loader.sampler).__name__]

    assert both_work(script)[:3] == [1, 0, None]


# --- dataset -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [Map, Stream, lambda: SequenceWrapper(range(5)), lambda: IterableWrapper(range(5))])
def test_dataset_is_map_style_iterable_or_datapipe(make, workers):
    def script(loader_type):
        loader = loader_type(make(), batch_size=2, num_workers=workers)
        return [type(loader.dataset).__name__, *epoch(loader)]

    assert both_work(script)[-1] == "end"


def test_datapipe_shuffle_setting_is_applied():
    def script(loader_type):
        return epoch(loader_type(IterableWrapper(range(9)).shuffle(), batch_size=3, shuffle=True))

    assert both(script)["error"] is None


@pytest.mark.parametrize("name", GUARDED)
def test_guarded_attributes_cannot_be_set(way, name):
    both_fail(
        lambda loader_type: setattr(way(loader_type), name, None), "ValueError", f"{name} attribute should not be"
    )


def test_everything_else_can_be_set(way):
    def script(loader_type):
        loader = way(loader_type, num_workers=0)
        loader.collate_fn = str
        loader.timeout = loader.pin_memory = 0
        loader.num_workers, loader.prefetch_factor = way.workers, 2
        loader.worker_init_fn = loader.generator = loader.multiprocessing_context = None
        loader.pin_memory_device, loader.in_order, loader.something = "", True, 1
        return epoch(loader)

    assert both(script)["error"] is None


# --- batch_size, drop_last -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2"])
def test_batch_size_that_is_no_positive_int(way, size):
    both_fail(lambda loader_type: way(loader_type, batch_size=size), "ValueError", "batch_size should be a positive")


def test_batch_size_none_turns_batching_off(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=None)
        return [loader.batch_sampler, len(loader), loader.collate_fn.__name__, *epoch(loader)]

    assert both_work(script)[:3] == [None, 10, "default_convert"]


def test_batch_size_none_with_drop_last(way):
    both_fail(lambda loader_type: way(loader_type, batch_size=None, drop_last=True), "ValueError", "mutually exclusive")


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [4, 10, 11])
def test_drop_last(way, size, drop_last):
    def script(loader_type):
        loader = way(loader_type, batch_size=size, drop_last=drop_last)
        return [len(loader), *epoch(loader)]

    assert both_work(script)[0] == 10 // size + (not drop_last and 10 % size > 0)


# --- shuffle, sampler, batch_sampler -------------------------------------------------------------------------------


@pytest.mark.parametrize(("shuffle", "kind"), [(None, "Sequential"), (False, "Sequential"), (True, "Random")])
def test_shuffle_chooses_the_sampler(way, shuffle, kind):
    def script(loader_type):
        loader = way(loader_type, shuffle=shuffle)
        return type(loader.sampler).__name__, type(loader.batch_sampler).__name__

    assert both_work(script) == (f"{kind}Sampler", "BatchSampler")


def test_shuffle_with_sampler(way):
    both_fail(lambda loader_type: way(loader_type, sampler=[1], shuffle=True), "ValueError", "mutually exclusive")


def test_shuffle_with_an_iterable_dataset():
    both_fail(lambda loader_type: loader_type(Stream(), shuffle=True), "ValueError", "unspecified shuffle option")
    both_work(lambda loader_type: epoch(loader_type(Stream(), shuffle=False)))


def test_sampler_is_any_iterable_of_keys(way):
    for sampler in (
        lambda: [3, 1, 9],
        lambda: (i for i in (2, 4)),
        lambda: SequentialSampler(range(4)),
        lambda: {7: 1},
    ):
        both_work(lambda loader_type, sampler=sampler: epoch(way(loader_type, sampler=sampler())))


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_may_be_of_any_type(workers):
    both_work(lambda loader_type: epoch(loader_type({"a": 1, "b": 2}, 2, sampler=["b", "a", "b"], num_workers=workers)))


def test_sampler_and_batch_sampler_with_an_iterable_dataset():
    both_fail(lambda loader_type: loader_type(Stream(), sampler=[1]), "ValueError", "unspecified sampler option")
    both_fail(lambda loader_type: loader_type(Stream(), batch_sampler=[[1]]), "ValueError", "unspecified batch_sampler")


def test_batch_sampler_sets_batch_size_and_drop_last(way):
    def script(loader_type):
        loader = way(
            loader_type, batch_sampler=[[1, 2], [9]], **({"collate_fn": None} if way.prefix == "native" else {})
        )
        return [loader.batch_size, loader.drop_last, len(loader), type(loader.sampler).__name__, *epoch(loader)]

    assert both_work(script)[:4] == [None, False, 2, "SequentialSampler"]


@pytest.mark.parametrize(
    "other", [{"batch_size": 2}, {"shuffle": True}, {"sampler": [1]}, {"drop_last": True}], ids=str
)
def test_batch_sampler_excludes(way, other):
    both_fail(lambda loader_type: way(loader_type, batch_sampler=[[1]], **other), "ValueError", "mutually exclusive")


# --- num_workers, multiprocessing_context, worker_init_fn ----------------------------------------------------------


def test_num_workers_below_0(way):
    both_fail(lambda loader_type: way(loader_type, num_workers=-1), "ValueError", "should be non-negative")


@one_of_each
def test_more_workers_than_cpus_warn_in_constructor_and_iterator(way, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})

    def script(loader_type):
        iter(way(loader_type, num_workers=2))

    assert len(both_warn(script, "create 2 worker processes in total")["warnings"]) == 2


@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")], ids=["name", "object"])
def test_multiprocessing_context_without_workers(way, context):
    both_fail(
        lambda loader_type: way(loader_type, num_workers=0, multiprocessing_context=context),
        "ValueError",
        "can only be used with",
    )


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_multiprocessing_context_of_an_unknown_name_or_a_wrong_type(way):
    both_fail(lambda loader_type: way(loader_type, multiprocessing_context="none"), "ValueError", "valid start method")
    both_fail(lambda loader_type: way(loader_type, multiprocessing_context=3), "TypeError", "valid context")


@pytest.mark.parametrize("way", ["arena-1", "arena-2"], indirect=True)
@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")], ids=["name", "object"])
def test_multiprocessing_context_is_used(way, context):
    def script(loader_type):
        loader = way(loader_type, multiprocessing_context=context)
        return [type(loader.multiprocessing_context).__name__, *epoch(loader)]

    assert both_work(script)[0] == "ForkContext"


def refuse(worker):
    raise LookupError(f"worker {worker}")


@pytest.mark.parametrize("way", contract.INLINE, indirect=True)
def test_worker_init_fn_is_ignored_without_workers(way):
    both_work(lambda loader_type: epoch(way(loader_type, worker_init_fn=refuse)))


def seed_again(worker):
    torch.manual_seed(worker)


def drawn(i):
    return torch.rand(2), torch.utils.data.get_worker_info().id


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_init_fn_is_called_with_the_worker_id_after_seeding(workers):
    def script(loader_type):
        return epoch(loader_type(Map(drawn), num_workers=workers, worker_init_fn=seed_again))

    first = both_work(script)[0]
    torch.manual_seed(0)
    assert torch.equal(first[0][0], torch.rand(2))


@pytest.mark.parametrize("way", ["tokens-1", "tensors-2", "records-1"], indirect=True)
def test_deviation_threads_have_no_use_for_worker_init_fn_and_context_and_say_so(way):
    def script(loader_type):
        return epoch(way(loader_type, worker_init_fn=seed_again, multiprocessing_context="fork"))

    theirs, ours = (contract.observed(loader_type, script) for loader_type in LOADERS)
    ((category, text),) = ours["warnings"]
    assert category == "UserWarning"
    assert text[0].startswith("worker_init_fn and multiprocessing_context: no effect here, threads write the batches")
    assert_same({**ours, "warnings": []}, theirs)


# --- collate_fn ----------------------------------------------------------------------------------------------------


def test_collate_fn_by_default_gives_a_list_for_tuples(way):
    def script(loader_type):
        return way(loader_type).collate_fn.__name__, epoch(way(loader_type, batch_size=3, collate_fn=None))

    batch = both_work(script)[1][0]
    assert type(batch) is (dict if way.kind == "records" else list)


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_fn_without_batching_gives_a_list_for_tuples(workers):
    first = both_work(lambda loader_type: epoch(loader_type(Map(), None, num_workers=workers)))[0]
    assert type(first) is list


@pytest.mark.parametrize("collate_fn", [list, len, str, contract.collated])
def test_collate_fn_of_the_users(way, collate_fn):
    def script(loader_type):
        loader = loader_type(way.dataset, 4, num_workers=way.workers, collate_fn=collate_fn)
        return [loader.collate_fn is collate_fn, *epoch(loader)]

    assert both_work(script)[0] is True


# --- pin_memory ----------------------------------------------------------------------------------------------------


def test_pin_memory_without_an_accelerator_warns_and_pins_nothing(way, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    found = both_warn(lambda loader_type: epoch(way(loader_type, pin_memory=True)), "no accelerator is found")
    assert len(found["warnings"]) == 1


def test_pin_memory_on_mps_warns_and_pins_nothing(way, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("mps"))
    both_warn(lambda loader_type: epoch(way(loader_type, pin_memory=True)), "not supported on MPS")


def test_pin_memory_device_is_ignored_and_warns_only_with_pin_memory(way, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    both_work(lambda loader_type: epoch(way(loader_type, pin_memory_device="cuda")))
    both_warn(
        lambda loader_type: epoch(way(loader_type, pin_memory=True, pin_memory_device="cuda")), "pin_memory_device"
    )


# --- timeout, prefetch_factor, persistent_workers, in_order --------------------------------------------------------


def test_timeout_below_0(way):
    both_fail(lambda loader_type: way(loader_type, timeout=-1), "ValueError", "timeout option should be non-negative")


@pytest.mark.parametrize("way", contract.INLINE, indirect=True)
def test_timeout_without_workers_is_an_error_at_iter(way):
    both_fail(lambda loader_type: iter(way(loader_type, timeout=1)), "AssertionError", "requires timeout == 0")


def test_prefetch_factor_by_default_is_2_with_workers(way):
    assert both_work(lambda loader_type: way(loader_type).prefetch_factor) == (2 if way.workers else None)


def test_prefetch_factor_without_workers_or_below_0(way):
    both_fail(lambda loader_type: way(loader_type, num_workers=0, prefetch_factor=2), "ValueError", "could only be")
    both_fail(lambda loader_type: way(loader_type, num_workers=1, prefetch_factor=-1), "ValueError", "non-negative")


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_prefetch_factor_0_is_accepted_and_an_error_at_iter(way):
    both_work(lambda loader_type: way(loader_type, prefetch_factor=0).prefetch_factor)
    both_fail(lambda loader_type: iter(way(loader_type, prefetch_factor=0)), "AssertionError", "must be greater than 0")


def test_persistent_workers_without_workers(way):
    both_fail(
        lambda loader_type: way(loader_type, num_workers=0, persistent_workers=True), "ValueError", "needs num_workers"
    )


class Overtaken(Map):
    """Item 0 is not ready before ``last`` is set, by whoever makes the last item, if it may come before 0 is there."""

    def __init__(self, in_order):
        super().__init__(n=6)
        self.in_order = in_order
        self.last = multiprocessing.get_context("fork").Event()

    def __getitem__(self, i):
        if i == 0:
            assert self.last.wait(60)
        if i == 5 and self.in_order:
            self.last.set()
        return super().__getitem__(i)


@pytest.mark.parametrize(("in_order", "order"), [(True, [0, 1, 2, 3, 4, 5]), (False, [1, 2, 3, 4, 5, 0])])
def test_in_order_and_order_of_arrival(in_order, order):
    arguments = {"num_workers": 2, "multiprocessing_context": "fork"}
    if not in_order:
        arguments["prefetch_factor"] = 1
    else:
        arguments["prefetch_factor"] = 3  # all six are asked for at once, and none is delivered before the slow one

    def script(loader_type):
        dataset, arrived = Overtaken(in_order), []
        for _, i in loader_type(dataset, in_order=in_order, **arguments):
            arrived.append(int(i))
            if arrived[-1] == 5:
                dataset.last.set()
        return arrived

    assert both_work(script) == order


@pytest.mark.parametrize("way", contract.NATIVE, indirect=True)
def test_deviation_threads_keep_the_order_whatever_in_order_says(way):
    ours = epoch(way(aegis.FlatArenaDataLoader, in_order=False))
    assert_same(ours, epoch(way(DataLoader)))
