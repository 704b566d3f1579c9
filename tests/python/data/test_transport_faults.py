"""What goes wrong around worker processes: ends and signals, and what is left behind."""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque

import aegis
import pytest
import torch
from processes import group_is_gone, left_behind, memory, run, start
from samples import Numbered
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("one_thread")


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_breaking_early_leaves_nothing_behind_case9(workers):
    loader = FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=workers)

    def breaks(count):
        for _ in range(count):
            iterator = iter(loader)
            next(iterator)
            x, _ = next(iterator)
            assert x[3, 0, 0, 0] == 7
            del iterator
        del x
        return left_behind()

    before = breaks(10)
    rss, slots = memory()["Rss"], loader.stats()["slot_bytes"]
    assert breaks(200 if workers == 0 else 60) == before
    assert memory()["Rss"] - rss < 2 << 20
    assert loader.stats()["slot_bytes"] <= slots
    assert loader.stats()["held_slots"] == 0


def test_memory_of_the_arena_does_not_grow_with_broken_epochs_case9():
    loader = FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=1)
    pages = []
    for _ in range(10):
        next(iter(loader))
        (arena,) = loader._delivery.transport._idle
        pages.append(os.fstat(arena.file.fileno()).st_blocks)
    assert max(pages[5:]) <= max(pages[:5])


def test_loaders_made_and_dropped_free_everything_case20():
    def make(count):
        for _ in range(count):
            loader = FlatArenaDataLoader(Numbered(8), batch_size=4, num_workers=1)
            held = next(iter(loader))
        del loader, held
        return left_behind()

    before = make(3)
    rss = memory()["Rss"]
    assert make(30) == before
    assert memory()["Rss"] - rss < 2 << 20


def test_memory_does_not_drift_over_epochs_case2():
    loader = FlatArenaDataLoader(Numbered(32), batch_size=4, num_workers=1, persistent_workers=True)

    def epochs(count):
        for _ in range(count):
            assert sum(1 for _ in loader) == 8
        (worker,) = loader._iterator._workers
        # The arena is shared memory, and does not grow either.
        return {who: memory(pid)["Anonymous"] for who, pid in (("parent", os.getpid()), ("worker", worker.pid))}

    epochs(5)
    slots, before = loader.stats()["slot_bytes"], epochs(5)
    after = epochs(45)
    assert all(after[who] - before[who] < 1 << 20 for who in before)
    assert loader.stats()["slot_bytes"] == slots
    loader.close()


def test_an_iterator_in_a_reference_cycle_ends_its_workers_at_once(monkeypatch):
    """Of a garbage cycle, the queues' finalizers run before the iterator's __del__: its workers would hear nothing, and
    each be waited for in vain for 5 s, then killed."""
    killed = []
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "terminate", killed.append)
    loader = FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = iterator._workers
    iterator.itself = iterator
    del iterator
    gc.collect()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert killed == []


def test_iterators_are_in_no_cycle_themselves():
    gc.disable()
    try:
        for arguments in ({"num_workers": 0}, {"num_workers": 1}):
            iterator = iter(FlatArenaDataLoader(Numbered(64), batch_size=4, **arguments))
            next(iterator)
            workers = getattr(iterator, "_workers", [])
            del iterator
            assert [worker.exitcode for worker in workers] == [0] * arguments["num_workers"]
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["", "raise ValueError('of the user')", "sys.exit(3)"])
def test_interpreter_exit_with_a_live_iterator_case8(end):
    code, out, err = run(
        f"""
        loader = aegis.FlatArenaDataLoader(Numbered(400), batch_size=4, num_workers=1)
        iterator = iter(loader)
        x, _ = next(iterator)
        persistent = aegis.FlatArenaDataLoader(Numbered(400), batch_size=4, num_workers=1, persistent_workers=True)
        y, _ = next(iter(persistent))
        print(int(x[1, 0, 0, 0]) + int(y[1, 0, 0, 0]), flush=True)
        {end}
        """
    )
    assert out == "2\n"
    assert code == {"": 0, "sys.exit(3)": 3}.get(end, 1)
    assert [line for line in err.splitlines() if "Error" in line or "Exception" in line] == (
        ["ValueError: of the user"] if "raise" in end else []
    )


def test_close_ends_workers_and_can_be_repeated_case8():
    with FlatArenaDataLoader(Numbered(400), batch_size=4, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        workers = iterator._workers
    assert [worker.exitcode for worker in workers] == [0]
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


def test_a_batch_that_arrives_while_another_thread_closes_the_loader_is_not_handed_out_case8(monkeypatch):
    """Its slot is no longer the iterator's: the message about it must not pass for the batch either."""
    loader = FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    receive = _MultiProcessingDataLoaderIter._get_data

    def closed_meanwhile(self):
        found = receive(self)
        loader.close()
        return found

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_get_data", closed_meanwhile)
    with pytest.raises(RuntimeError, match="this iterator has been closed"):
        next(iterator)


# --- signals ---------------------------------------------------------------------------------------------------------


class Forever(Dataset):
    """Item 4 is never ready; ``reached`` says that it is being made."""

    def __init__(self):
        self.reached = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i >= 4:
            self.reached.set()
            signal.pause()
        return torch.full((3, 128, 128), float(i))


@pytest.mark.parametrize("loader_type", [DataLoader, FlatArenaDataLoader])
def test_a_killed_worker_is_noticed_case7(loader_type):
    dataset = Forever()
    iterator = iter(loader_type(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork"))
    x = next(iterator)
    assert dataset.reached.wait(60)
    (worker,) = iterator._workers
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid\(?s?\)? {worker.pid}\)"):
        next(iterator)
    assert x[3, 0, 0, 0] == 3


def test_a_worker_killed_while_it_writes_leaves_batches_and_slots_whole_case7():
    held = {}
    loader = FlatArenaDataLoader(Numbered(4000), batch_size=4, num_workers=1)
    for round_ in range(3):
        iterator = iter(loader)
        for number in range(4):
            held[round_, number] = next(iterator)[0]
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            deque(iterator, maxlen=0)
        del iterator
    assert all(int(x[1, 0, 0, 0]) == 4 * number + 1 for (_, number), x in held.items())
    assert loader.stats()["held_slots"] == 12
    assert sum(1 for _ in loader) == 1000


def test_interrupting_the_parent_ends_it_and_its_workers_case10():
    process = start(
        """
        class Silent(Numbered):
            def __getitem__(self, i):
                if i == 8:
                    print("waiting", flush=True)
                    signal.pause()
                return super().__getitem__(i)

        try:
            for x, _ in aegis.FlatArenaDataLoader(Silent(64), batch_size=4, num_workers=1, prefetch_factor=1):
                pass
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    assert process.stdout.readline() == "waiting\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "interrupted\n"
    assert process.returncode == 0
    assert err == ""
    assert group_is_gone(process)


def test_a_parent_killed_leaves_no_process_and_no_name_case19():
    names = set(os.listdir("/dev/shm"))
    process = start(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(40_000), batch_size=4, num_workers=2)
        held = []
        for x, _ in loader:
            held.append(x)
            if len(held) == 20:
                print("held", flush=True)
                signal.pause()
        """
    )
    assert process.stdout.readline() == "held\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    assert group_is_gone(process)
    assert set(os.listdir("/dev/shm")) <= names


def test_close_reaches_a_thread_that_waits_for_a_batch_case8(monkeypatch):
    dataset, waits, found = Forever(), threading.Event(), []
    receive = _MultiProcessingDataLoaderIter._try_get_data

    def told(self, timeout=0.05):
        waits.set()
        return receive(self, timeout)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", told)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = FlatArenaDataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    assert dataset.reached.wait(60)
    waits.clear()

    def wait():
        try:
            next(iterator)
        except RuntimeError as error:
            found.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert waits.wait(60)
    loader.close()
    waiting.join(60)
    assert found == ["this iterator has been closed"]
