"""DataLoader's contract, exceptions: of data sets, workers and the user's functions, in torch's class and in ours."""

import collections
import multiprocessing
import os
import signal

import aegis
import contract
import pytest
import torch
from aegis.data.torch_iter import SingleProcessIter
from contract import LOADERS, THREADED, Map, Stream, both, both_fail, both_work, epoch
from samples import Pair, assert_same, large

workers_0_1 = pytest.mark.parametrize("workers", [0, 1])
FORK = multiprocessing.get_context("fork")


class NeedsMessage(Exception):
    """As those that torch passes its text by the name of ``message``."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


class NeedsTwo(Exception):
    """Cannot be built again from a text."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class Unprintable(Exception):
    def __str__(self):
        raise TypeError("no text")


class OfTheUser(ValueError):
    pass


ERRORS = {
    "ValueError": lambda: ValueError("a value"),
    "KeyError": lambda: KeyError("two\nlines"),
    "IndexError": lambda: IndexError(),
    "OSError": lambda: OSError(2, "No such file", "name"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "NeedsMessage": lambda: NeedsMessage("of its own"),
    "NeedsTwo": lambda: NeedsTwo("one", "other"),
    "OfTheUser": lambda: OfTheUser("a", "b"),
    "AssertionError": lambda: AssertionError(),
    "RuntimeError": lambda: RuntimeError("in Python"),
}


def raising(error, at=5):
    def make(i):
        if i == at:
            raise error()
        return large(i), i

    return make


@workers_0_1
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_getitem_surfaces_and_iteration_goes_on(name, workers):
    dataset = Map(raising(ERRORS[name], 3), n=8)
    found = both_work(lambda loader_type: epoch(loader_type(dataset, 2, num_workers=workers)))
    assert [type(event) for event in found] == [list, tuple, list, list, str]
    kind, _, lines = found[1]
    name = type(ERRORS[name]()).__name__
    if workers == 0:
        assert kind == name
    else:
        assert kind == ("RuntimeError" if name in ("NeedsTwo", "UnicodeDecodeError") else name)
        assert f"Caught {name} in DataLoader worker process 0." in lines
        assert "Original Traceback (most recent call last):" in lines


def test_the_text_of_a_key_error_shows_its_lines():
    def script(loader_type):
        iterator = iter(loader_type(Map(raising(ERRORS["KeyError"], 0)), num_workers=1))
        try:
            next(iterator)
        except KeyError as error:
            return type(error.args[0]).__name__, str(error).count("\n") > 5, "\\n" in contract.plain(str(error))[0]
        finally:
            contract.end_workers(iterator)

    assert both_work(script) == ("KeyErrorMessage", True, False)


@workers_0_1
def test_iteration_goes_on_without_batching(workers):
    dataset = Map(raising(ERRORS["ValueError"], 1), n=3)
    found = both_work(lambda loader_type: epoch(loader_type(dataset, None, num_workers=workers)))
    kinds = [event[1] if isinstance(event, list) else event if isinstance(event, str) else event[0] for event in found]
    assert kinds == [0, "ValueError", 2, "end"]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_next_epoch_after_an_error(persistent):
    dataset = Map(raising(ERRORS["ValueError"]), n=8)

    def script(loader_type):
        loader = loader_type(dataset, 2, num_workers=2, persistent_workers=persistent)
        found = [*epoch(loader), *epoch(loader)]
        contract.end_workers(loader._iterator)
        return found

    assert len(both_work(script)) == 10


@workers_0_1
def test_errors_of_collate_functions(workers):
    def collate(samples):
        if samples[0][1] == 2:
            raise OfTheUser("collate")
        return samples[0][1]

    found = both_work(lambda loader_type: epoch(loader_type(Map(n=6), 2, num_workers=workers, collate_fn=collate)))
    assert [event if isinstance(event, int) else event[0] for event in found[:-1]] == [0, "OfTheUser", 4]


@workers_0_1
@pytest.mark.parametrize("make", [lambda i: None, lambda i: {i}, lambda i: large(i, shape=(64, 60 + i))], ids=range(3))
def test_errors_of_default_collate(make, workers):
    found = both_work(lambda loader_type: epoch(loader_type(Map(make, n=4), 2, num_workers=workers)))
    assert [event[0] for event in found[:-1]] == [found[0][0]] * 2


@workers_0_1
def test_errors_of_samplers_are_of_this_process(workers):
    def sampler():
        yield from (1, 2, 3, 4, 5, 6)
        raise OfTheUser("sampler")

    both(lambda loader_type: contract.events(iter(loader_type(Map(), 2, sampler=sampler(), num_workers=workers))))


@pytest.mark.parametrize("way", ["tokens-0", "tensors-0", "tokens-1", "tensors-2"], indirect=True)
def test_errors_of_samplers_also_where_batches_are_native(way):
    def sampler():
        yield from (1, 2, 3, 4)
        raise OfTheUser("sampler")

    arguments = {"batch_size": 2, "num_workers": way.workers}
    if way.workers:
        arguments["prefetch_factor"] = 4  # more than there are: the sampler fails while iter() fills the queue
    both(lambda loader_type: epoch(way(loader_type, sampler=sampler(), **arguments)))


@workers_0_1
def test_errors_of_iterable_data_sets(workers):
    class Failing(Stream):
        def __iter__(self):
            yield from [(large(i), i) for i in range(3)]
            raise OfTheUser("stream")

    found = both_work(lambda loader_type: epoch(loader_type(Failing(), num_workers=workers)))
    assert found[3][0] == "OfTheUser"


@workers_0_1
def test_errors_at_the_beginning_of_iterable_data_sets(workers):
    class Failing(Stream):
        def __iter__(self):
            raise OfTheUser("stream")

    both(lambda loader_type: epoch(loader_type(Failing(), num_workers=workers)))


def refuse(worker):
    raise LookupError(f"worker {worker}")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_worker_init_fn_surfaces_at_the_first_next(workers):
    def script(loader_type):
        return epoch(loader_type(Map(n=6), 2, num_workers=workers, worker_init_fn=refuse))

    first = both_work(script)[0]
    assert first[0] == "LookupError"
    assert first[2][0] == "Caught LookupError in DataLoader worker process 0."
    assert first[2][-1] == "LookupError: worker 0"


@workers_0_1
@pytest.mark.parametrize("size", [None, 2])
def test_stop_iteration_in_getitem_ends_the_epoch_silently_case66(size, workers):
    dataset = Map(raising(StopIteration))
    both(lambda loader_type: epoch(loader_type(dataset, size, num_workers=workers)))
    if workers == 0:
        assert len(list(LOADERS[1](dataset, size))) == (5 if size is None else 2)


# --- workers that die or are late ----------------------------------------------------------------------------------


def killed(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return i  # no tensor: torch asks the dead worker for the memory of those, and fails in other ways


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_a_runtime_error(workers):
    def script(loader_type):
        iterator = iter(loader_type(Map(killed, n=4), None, num_workers=workers, multiprocessing_context=FORK))
        try:
            while True:
                next(iterator)
        except RuntimeError as error:
            text = str(error)
            return text.startswith("DataLoader worker (pid"), str(iterator._workers[-1].pid) in text

    assert both_work(script) == (True, True)


def leaving(i):
    if i == 2:
        os._exit(3)
    return i


def test_a_worker_that_leaves_is_a_runtime_error():
    def script(loader_type):
        iterator = iter(loader_type(Map(leaving), None, num_workers=1, multiprocessing_context=FORK))
        try:
            while True:
                next(iterator)
        except RuntimeError as error:
            return contract.plain(str(error))[0][:20], iterator._workers[0].exitcode

    assert both_work(script) == ("DataLoader worker (p", 3)


def test_status_is_checked_every_5_seconds():
    assert torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL == 5.0


class Late(Map):
    """Item 1 is not ready before ``event`` is set."""

    def __init__(self):
        super().__init__(n=2)
        self.event = FORK.Event()

    def __getitem__(self, i):
        if i == 1:
            assert self.event.wait(60)
        return super().__getitem__(i)


def test_a_batch_that_takes_longer_than_timeout_is_a_runtime_error():
    def script(loader_type):
        dataset = Late()
        arguments = {"num_workers": 1, "multiprocessing_context": FORK}
        # Without a limit until the worker runs: how long that takes says nothing.
        iterator = iter(loader_type(dataset, **arguments, timeout=60))
        next(iterator)
        iterator._timeout = 0.2
        try:
            next(iterator)
        finally:
            dataset.event.set()

    both_fail(script, "RuntimeError", "DataLoader timed out after 0.2 seconds")


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_a_timeout_that_is_not_reached(way):
    both_work(lambda loader_type: epoch(way(loader_type, batch_size=4, timeout=60)))


# --- native batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tokens-1", "tensors-2", "records-1"], indirect=True)
def test_deviation_errors_of_threads_are_plain_as_without_workers(way):
    """There is no worker process to name: type and place are torch's, the text is that of num_workers=0."""
    sampler = [1, 10, 2]
    theirs, ours = (epoch(way(loader_type, sampler=sampler)) for loader_type in LOADERS)
    inline = epoch(way(aegis.FlatArenaDataLoader, sampler=sampler, num_workers=0))
    assert_same(ours, inline)
    assert theirs[1][0] == ours[1][0] == "IndexError"
    assert theirs[1][2][0].startswith("Caught IndexError in DataLoader worker process")
    assert ours[1][2] == ["index: expected -10 to 9, got 10"]
    assert_same([ours[0], *ours[2:]], [theirs[0], *theirs[2:]])


# --- pinning -------------------------------------------------------------------------------------------------------


class Custom:
    """A batch that pins itself; with ``device`` where torch passes one."""

    def __init__(self, samples):
        self.labels = [label for _, label in samples]

    def pin_memory(self, *device):
        self.labels.append("pinned")
        return self


def custom_labels(loader):
    return [batch.labels for batch in loader]


@pytest.fixture
def accelerator(monkeypatch):
    """One that is not there: pinned tensors are copies."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())
    monkeypatch.setattr(
        SingleProcessIter, "pinned_memory", staticmethod(lambda shape, dtype: torch.empty(shape, dtype=dtype))
    )


PINNED = {
    "named": lambda i: Pair(large(i), i),
    "tuple": lambda i: (large(i), str(i)),
    "mapping": lambda i: collections.OrderedDict(b=large(i), a=(i, b"x")),
    "default": lambda i: collections.defaultdict(int, a=large(i)),
    "userlist": lambda i: collections.UserList([large(i), i]),
}


@workers_0_1
@pytest.mark.parametrize("kind", PINNED)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default", "list"])
def test_pin_memory_keeps_types(accelerator, kind, workers, collate_fn):
    arguments = {"num_workers": workers, "pin_memory": True, "collate_fn": collate_fn}
    both_work(lambda loader_type: epoch(loader_type(Map(PINNED[kind], n=4), 2, **arguments)))


@workers_0_1
def test_pin_memory_calls_the_method_of_custom_batches(accelerator, workers):
    arguments = {"num_workers": workers, "pin_memory": True, "collate_fn": Custom}
    found = both_work(lambda loader_type: custom_labels(loader_type(Map(n=4), 2, **arguments)))
    assert found == [[0, 1, "pinned"], [2, 3, "pinned"]]


class Unpinnable(Custom):
    def pin_memory(self, *device):
        if self.labels[0] == 0:
            raise OfTheUser("pin")
        return super().pin_memory()


def test_errors_while_pinning_surface_and_iteration_goes_on(accelerator):
    arguments = {"num_workers": 1, "pin_memory": True, "collate_fn": Unpinnable}
    theirs, ours = (epoch(loader_type(Map(n=4), 2, **arguments)) for loader_type in LOADERS)
    for found in (theirs, ours):
        assert found[0][0] == "OfTheUser"
        assert found[0][2][-1].endswith("OfTheUser: pin") or found[0][2] == ["pin"]
        assert found[1].labels == [2, 3, "pinned"]
        assert found[2] == "end"


def test_errors_while_pinning_without_workers(accelerator):
    def script(loader_type):
        found = epoch(loader_type(Map(n=4), 2, pin_memory=True, collate_fn=Unpinnable))
        return [getattr(event, "labels", event) for event in found]

    assert both_work(script)[0][0] == "OfTheUser"


def test_deviation_there_is_no_pin_thread(accelerator):
    iterators = [iter(loader_type(Map(), num_workers=1, pin_memory=True)) for loader_type in LOADERS]
    assert hasattr(iterators[0], "_pin_memory_thread")
    assert not hasattr(iterators[1], "_pin_memory_thread")
