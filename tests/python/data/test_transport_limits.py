"""Little of what worker processes need: descriptors, /dev/shm, addresses; and how much memory they take."""

import gc
import os
import resource
import subprocess
from pathlib import Path

import aegis
import pytest
import torch
from aegis import _C
from aegis.data import torch_iter
from processes import memory, run
from samples import Numbered, NumberedStream
from torch.utils.data import DataLoader, Dataset, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("one_thread")


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
    kept = set(torch_iter._queues)
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=1)
    assert [int(labels[0]) for _, labels in loader] == list(range(0, 24, 4))
    assert loader.stats()["slots"] == 0
    assert set(torch_iter._queues) == kept, "nothing is kept of an iterator that has ended"


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


# --- memory shared by workers ----------------------------------------------------------------------------------------


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


class Ending(NumberedStream):
    """The first worker has its share of 40 batches, the others end with their first."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return (self.samples[i] for i in range(160 if info.id == 0 else 4))


def test_requests_that_ended_workers_leave_unanswered_hold_no_slot_after_an_early_break():
    """Numbers of requests begin anew with each epoch: what one leaves behind high up is not overwritten soon."""
    arguments = {"batch_size": 4, "num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    loader = FlatArenaDataLoader(Ending(160), **arguments)
    assert sum(1 for _ in loader) == 41
    for stop in range(12, 0, -1):
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
    for _ in loader:
        pass
    del _
    assert loader.stats()["held_slots"] == 0
    assert loader._iterator._arena._lent == {}
    loader.close()


def test_default_collate_is_torchs_own_in_this_process():
    before = dict(torch.utils.data._utils.collate.default_collate_fn_map)
    list(FlatArenaDataLoader(Numbered(8), batch_size=4, num_workers=1))
    list(FlatArenaDataLoader(Numbered(8), batch_size=4))
    assert dict(torch.utils.data._utils.collate.default_collate_fn_map) == before
    assert torch.equal(default_collate([torch.zeros(2)] * 2), torch.zeros(2, 2))
