"""What goes wrong around worker processes: ends, signals, limits and forks, and what is left behind."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from pathlib import Path

import aegis
import pytest
import torch
from aegis import _C
from samples import Numbered, NumberedStream
from torch.utils.data import DataLoader, Dataset, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(__file__).parent
PRELUDE = """
import aegis, os, signal, sys, torch
from samples import *
from torch.utils.data import *
torch.set_num_threads(1)  # a forked child has none of the others
"""


def start(body, *arguments, wrapper=(), **options):
    """Python in a process group of its own, with the data sets of samples.py at hand."""
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", PRELUDE + textwrap.dedent(body), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        **options,
    )


def run(body, *arguments, **options):
    process = start(body, *arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def group_is_gone(process, seconds=30):
    """Whether every process of the group ended, workers included."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def memory(pid="self"):
    """Resident bytes of a process by kind; a page that n processes map counts as one n-th in Pss."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}


# --- ends ----------------------------------------------------------------------------------------------------------


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
        gc.collect()
        return threading.active_count(), len(multiprocessing.active_children()), descriptors()

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
        gc.collect()
        return threading.active_count(), len(multiprocessing.active_children()), descriptors()

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


# --- signals -------------------------------------------------------------------------------------------------------


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


# --- limits --------------------------------------------------------------------------------------------------------


def test_held_batches_need_no_descriptors():
    code, out, err = run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        loader = aegis.FlatArenaDataLoader(Numbered(1600), batch_size=4, num_workers=2)
        held = [x for x, _ in loader]
        print(len(held), all(int(x[1, 0, 0, 0]) == 4 * i + 1 for i, x in enumerate(held)))
        """
    )
    assert (code, out, err) == (0, "400 True\n", "")


def test_batches_take_no_room_in_dev_shm_case4():
    def used():
        found = os.statvfs("/dev/shm")
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    loader = FlatArenaDataLoader(Numbered(400), batch_size=4, num_workers=1)
    before, held = used(), []
    for x, _ in loader:
        held.append(x)
    assert sum(x.nbytes for x in held) > 70 << 20
    assert used() - before < 1 << 20


def test_a_tiny_dev_shm_is_enough_case4():
    wrapper = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"', "sh")
    try:
        subprocess.run([*wrapper, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting takes rights that this user does not have")
    code, out, err = run(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(64), batch_size=16, num_workers=2)
        print(sum(float(x.sum()) for x, _ in loader) == sum(range(64)) * 3 * 128 * 128)
        """,
        wrapper=wrapper,
    )
    assert (code, out, err) == (0, "True\n", "")


def test_without_shared_memory_batches_come_torchs_way(monkeypatch):
    class Refusing:
        def __init__(self):
            raise RuntimeError("could not size shared memory: File too large")

    monkeypatch.setattr(_C, "SharedFile", Refusing)
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=1)
    assert [int(labels[0]) for _, labels in loader] == list(range(0, 24, 4))
    assert loader.stats()["slots"] == 0


def test_a_slot_that_cannot_be_had_leaves_the_batch_to_torch():
    class Starved(Numbered):
        def __getitem__(self, i):
            if i == 8:  # no more addresses in this worker than it has, and little room to spare
                limit = memory_of_addresses() + (24 << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            return torch.full((1 << 20,), float(i)) if i >= 8 else super().__getitem__(i)[0]

    loader = FlatArenaDataLoader(Starved(16), batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    assert [int(x.view(4, -1)[1, 0]) for x in (next(iterator), next(iterator))] == [1, 5]
    try:
        starved = next(iterator)
    except (RuntimeError, MemoryError) as error:  # torch has no room for it either, unless malloc has some to spare
        starved, message = None, str(error)
    if starved is None:
        assert any(word in message for word in ("llocat", "mmap", "shared memory")), message
    else:
        assert starved[:, 0].tolist() == [8.0, 9.0, 10.0, 11.0]


def memory_of_addresses():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


# --- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_forked_child_keeps_the_batches_that_it_inherits(workers):
    code, out, err = run(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(800), batch_size=4, num_workers=int(sys.argv[1]))
        iterator = iter(loader)
        for _ in range(4):
            x, labels = next(iterator)
        go, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(go, 1)
            same = bool((x.view(4, -1) == labels.view(4, 1)).all()) and labels.tolist() == [12, 13, 14, 15]
            del x, iterator, loader
            os._exit(0 if same else 1)
        del x
        rest = [labels.tolist() == x[:, 0, 0, 0].long().tolist() for x, labels in iterator]
        os.write(told, b"x")
        print(os.waitpid(child, 0)[1], len(rest), all(rest), flush=True)
        """,
        workers,
    )
    assert (code, out, err) == (0, "0 196 True\n", "")


def test_workers_forked_while_batches_are_held_do_not_use_up_slots():
    train = FlatArenaDataLoader(Numbered(160), batch_size=4, num_workers=1)
    for number, (x, _) in enumerate(train):
        if number % 10 == 0:  # an evaluation, whose workers inherit x
            for _ in FlatArenaDataLoader(Numbered(8), batch_size=4, num_workers=1):
                pass
        assert int(x[1, 0, 0, 0]) == 4 * number + 1
    assert train.stats()["fresh_slots"] <= 10


# --- memory shared by workers --------------------------------------------------------------------------------------


class Listed(Dataset):
    """A list of Python objects, which every worker that reads it copies page by page."""

    def __init__(self, n):
        self.items = [str(i) for i in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return len(self.items[i])


def test_a_list_in_workers_takes_no_more_memory_than_with_torch_case1():
    def proportional_memory(loader_type):
        loader = loader_type(Listed(200_000), batch_size=1000, num_workers=2, persistent_workers=True)
        for _ in loader:
            pass
        gc.collect()
        return sum(memory(worker.pid)["Pss"] for worker in loader._iterator._workers)

    torchs = proportional_memory(DataLoader)
    assert proportional_memory(FlatArenaDataLoader) < 1.05 * torchs + (4 << 20)


def test_iterable_workers_that_end_early_give_their_slots_back():
    loader = FlatArenaDataLoader(NumberedStream(42), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(4):
        assert sum(len(labels) for _, labels in loader) == 42
    assert loader.stats()["held_slots"] == 0
    assert loader.stats()["slots"] <= 12
    loader.close()


def test_a_child_of_the_parent_does_not_end_its_workers():
    loader = FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        iterator._shutdown_workers()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(1 for _ in iterator) == 15


def test_default_collate_is_torchs_own_in_this_process():
    before = dict(torch.utils.data._utils.collate.default_collate_fn_map)
    list(FlatArenaDataLoader(Numbered(8), batch_size=4, num_workers=1))
    list(FlatArenaDataLoader(Numbered(8), batch_size=4))
    assert dict(torch.utils.data._utils.collate.default_collate_fn_map) == before
    assert torch.equal(default_collate([torch.zeros(2)] * 2), torch.zeros(2, 2))
