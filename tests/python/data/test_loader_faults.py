"""What goes wrong around a loader over tokens, and what users hold while it does."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import deque
from pathlib import Path

import aegis
import numpy as np
import pytest
import torch
from aegis import _C
from aegis.data.native import NativeIter
from processes import left_behind

FlatArenaDataLoader = aegis.FlatArenaDataLoader


def run_script(body, *arguments, timeout=60):
    """Runs Python in a process of its own, as interpreter exit and signals need one."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def filler_threads():
    names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("aegis-feed") for name in names)


def test_held_batches_stay_valid_case59(tokens):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=2)
    held = list(loader)
    assert [int(x[0, 0]) for x, _ in held] == list(range(0, 4984, 50))
    assert loader.stats()["fresh_slots"] > 50
    assert len({x.data_ptr() for x, _ in held}) == len(held)
    assert all(x.data_ptr() % 64 == 0 and y.data_ptr() % 64 == 0 for x, y in held)


def test_what_is_made_from_a_batch_holds_its_slot(tokens):
    weight = torch.ones(16, requires_grad=True)
    loader = FlatArenaDataLoader(tokens, 50, num_workers=1)
    views, arrays, losses = [], [], []
    for x, y in loader:
        views.append(x[1:2])
        arrays.append(y.numpy())
        losses.append((x.float().detach() * weight).sum() if len(losses) % 2 else (weight * x).sum())
    assert [int(view[0, 0]) for view in views] == [i + 1 for i in range(0, 4984, 50)]
    assert [int(array[0, 0]) for array in arrays] == [i + 1 for i in range(0, 4984, 50)]
    torch.stack(losses).sum().backward()
    windows = np.arange(4984)[:, None] + np.arange(16)
    assert torch.equal(weight.grad.long(), torch.from_numpy(windows.sum(0)))


def test_slots_come_back_when_the_last_tensor_dies(tokens):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    x, y = next(iterator)
    view = x[0]
    deque(iterator, maxlen=0)  # until nothing is filled any more
    assert loader.stats()["held_slots"] == 1
    del x, y
    assert loader.stats()["held_slots"] == 1
    del view
    assert loader.stats()["held_slots"] == 0


def test_batches_outlive_loader_and_iterator(tokens):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=1)
    x, y = next(iter(loader))
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None
    assert torch.equal(x + 1, y)


def test_reuse_aliases_and_makes_no_fresh_slot(tokens):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=1, reuse=True)
    held = list(loader)
    assert len({x.data_ptr() for x, _ in held}) <= 5
    assert loader.stats()["fresh_slots"] == 0
    iterator = iter(loader)
    x, y = next(iterator)
    next(iterator)
    assert torch.equal(x + 1, y)  # valid until the batch after the next is asked for
    del iterator, loader
    gc.collect()
    assert x.shape == (50, 16)  # the memory itself outlives the loader


def test_no_native_allocations_after_warm_up(tokens):
    loader = FlatArenaDataLoader(tokens, 16, num_workers=2, shuffle=True, seed=1)
    for _ in loader:
        pass
    assert loader.stats()["batches"] == 312
    assert loader.stats()["native_allocations"] == 0


def test_breaking_early_200_times_leaves_nothing_case9_case20(tokens):
    def once():
        for number, _ in enumerate(FlatArenaDataLoader(tokens, 50, num_workers=2)):
            if number == 1:
                break

    once()
    before, resident = left_behind(), rss_anon()
    for _ in range(200):
        once()
    assert left_behind() == before
    assert filler_threads() == 0
    assert rss_anon() - resident < 4 << 20


def rss_anon():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def test_close_ends_threads_keeps_batches_and_can_be_repeated_case8(tokens):
    with FlatArenaDataLoader(tokens, 50, num_workers=2) as loader:
        iterator = iter(loader)
        x, y = next(iterator)
        assert filler_threads() == 2
    assert filler_threads() == 0
    loader.close()
    assert torch.equal(x + 1, y)
    with pytest.raises(RuntimeError, match="this iterator has been closed"):
        next(iterator)
    with pytest.raises(RuntimeError, match="this loader has been closed"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_close_gives_slots_back_also_while_iterators_are_referred_to_case8(tokens, workers):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=workers)
    iterator = iter(loader)
    held = next(iterator)
    pool = loader._delivery._pool
    loader.close()
    assert pool.stats()["held"] == 1
    assert torch.equal(held[0] + 1, held[1])
    with pytest.raises(RuntimeError, match="this iterator has been closed"):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_in_use_is_refused_to_other_threads(blocked_filler, monkeypatch, workers):
    monkeypatch.syspath_prepend(blocked_filler)
    from blocked_filler import BlockedFiller

    filler, pool = BlockedFiller(), _C.SlotPool(4096, 1)
    feeder = _C.Feeder(filler, pool, threads=workers, depth=1, from_dlpack=torch.utils.dlpack.from_dlpack)
    feeder.submit([7])
    found = []
    waiting = threading.Thread(target=lambda: found.append(feeder.next()))
    waiting.start()
    in_use = False
    while not in_use:
        try:
            feeder.submit([8])
        except ValueError:  # full, as long as the other thread has not begun
            continue
        except RuntimeError as error:
            in_use = str(error).startswith("this iterator is in use: by another thread")
    with pytest.raises(RuntimeError, match="this iterator is in use: by another thread"):
        feeder.next()
    filler.release()
    waiting.join(60)
    assert found[0][0].tolist() == [7]
    feeder.submit([8])
    assert feeder.next()[0].tolist() == [8]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_index_outside_is_reported_in_its_turn_and_the_rest_follows_case6(tokens, workers):
    loader = FlatArenaDataLoader(tokens, batch_sampler=[[1], [2, 5000], [-1], [-4985], [4]], num_workers=workers)
    iterator, seen = iter(loader), []
    for _ in range(5):
        try:
            seen.append(int(next(iterator)[0][0, 0]))
        except IndexError as error:
            seen.append(str(error))
    outside = "index: expected -4984 to 4983, got {}"
    assert seen == [1, outside.format(5000), 4983, outside.format(-4985), 4]
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["position"] == 0  # failed batches had their turn


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_cut_short_is_an_error_at_next_case50(tmp_path, workers):
    path = tmp_path / "tokens.bin"
    np.arange(60000, dtype=np.uint16).tofile(path)
    dataset = aegis.TokenDataset(path, 16, dtype="uint16", stride=1)
    loader = FlatArenaDataLoader(dataset, 100, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    os.truncate(path, 5000)
    with pytest.raises(RuntimeError, match=r"tokens\.bin: expected 120000 bytes.*5000"):
        for _ in iterator:
            pass
    with pytest.raises(RuntimeError, match=r"tokens\.bin"):
        iter(FlatArenaDataLoader(dataset, 100))


def test_ctrl_c_while_blocked_in_next_case10(blocked_filler):
    result = run_script(
        """
        import os, signal, sys, threading, time
        from aegis import _C
        sys.path.insert(0, sys.argv[1])
        from blocked_filler import BlockedFiller
        filler = BlockedFiller()
        feeder = _C.Feeder(filler, _C.SlotPool(4096, 1), threads=1, depth=1, from_dlpack=lambda capsule: capsule)
        feeder.submit([0])
        sent = []
        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.3, interrupt).start()
        try:
            feeder.next()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - sent[0] < 0.2)
        filler.release()
        print(len(feeder.next()))
        """,
        blocked_filler,
    )
    assert result.stdout == "interrupted True\n1\n", result.stderr


def test_timeout_is_torchs_message(blocked_filler, monkeypatch):
    monkeypatch.syspath_prepend(blocked_filler)
    from blocked_filler import BlockedFiller

    filler, pool = BlockedFiller(), _C.SlotPool(4096, 1)
    feeder = _C.Feeder(filler, pool, threads=1, depth=1, from_dlpack=torch.utils.dlpack.from_dlpack)
    feeder.submit([7])
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.1 seconds"):
        feeder.next(0.1)
    filler.release()
    assert feeder.next(10.0)[0].tolist() == [7]


def test_an_iterator_says_that_it_was_forked_and_a_new_one_works_case12(tokens):
    loader = FlatArenaDataLoader(tokens, 50, num_workers=2)
    iterator = iter(loader)
    held = next(iterator)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = "no error"
            try:
                next(iterator)
            except RuntimeError as error:
                text = str(error)
            valid = torch.equal(held[0] + 1, held[1])
            del held, iterator
            gc.collect()
            fresh = sum(int(next(iter(again))[0][0, 0]) for again in (loader, FlatArenaDataLoader(tokens, 50)))
            fresh += loader.stats()["batches"] - 1
            loader.close()
            os.write(write, f"{valid} {fresh} {text}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert answer.startswith("True 0 this iterator was made before fork()")
    assert int(next(iterator)[0][0, 0]) == 50


@pytest.mark.parametrize("ending", ["", "raise ValueError('an error of the script')", "sys.exit(3)"])
def test_interpreter_exit_with_a_live_iterator_case8(token_file, ending):
    result = run_script(
        f"""
        import sys, aegis
        dataset = aegis.TokenDataset(sys.argv[1], 16, dtype="uint16", stride=1)
        iterator = iter(aegis.FlatArenaDataLoader(dataset, 50, num_workers=2))
        batch = next(iterator)
        keep = [iterator, batch]
        {ending}
        """,
        token_file,
    )
    assert result.returncode == {"": 0, "sys.exit(3)": 3}.get(ending, 1)
    assert "terminate" not in result.stderr
    assert ("an error of the script" in result.stderr) == ending.startswith("raise")


def test_signals_go_to_the_main_thread(tokens):
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
    try:
        iterator = iter(FlatArenaDataLoader(tokens, 50, num_workers=2))
        next(iterator)
        os.kill(os.getpid(), signal.SIGUSR1)
        next(iterator)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert seen == [threading.main_thread()]


def test_iteration_from_another_thread(tokens):
    counts = []

    def count():
        counts.append(sum(1 for _ in FlatArenaDataLoader(tokens, 50, num_workers=1)))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join(30)
    assert counts == [100]


def test_threads_share_one_mapping_case1(tokens):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("tokens.bin" in line for line in maps)

    before = mapped()
    iterators = [iter(FlatArenaDataLoader(tokens, 50, num_workers=8)) for _ in range(2)]
    for iterator in iterators:
        next(iterator)
    assert mapped() == before


def test_pinned_batches_are_fresh_memory_from_torchs_allocator_case58(tokens, monkeypatch):
    """Without an accelerator, ordinary tensors stand in for pinned ones; the way they take is the same."""
    made = []

    def pinned_batch(self, count):
        made.append([torch.empty(count, 16, dtype=torch.int64) for _ in range(2)])
        return made[-1]

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(NativeIter, "_pinned_batch", pinned_batch)
    for workers in (0, 2):
        for order in ({"seed": 1}, {}):
            made.clear()
            loader = FlatArenaDataLoader(tokens, 60, pin_memory=True, num_workers=workers, **order)
            batches = list(loader)
            assert [int(x[0, 0]) for x, _ in batches] == list(range(0, 4984, 60))
            assert all(got is fresh for got, fresh in zip(batches, made, strict=True))


def test_pin_memory_without_an_accelerator_warns_as_torch_does(tokens):
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batch = next(iter(FlatArenaDataLoader(tokens, 50, pin_memory=True, num_workers=1)))
    assert not batch[0].is_pinned()


def test_seeded_iteration_draws_nothing_also_under_a_profiler(tokens):
    with torch.profiler.profile() as profile:
        for _ in FlatArenaDataLoader(tokens, 500, num_workers=1, seed=1):
            pass
    assert any("NativeIter.__next__" in event.key for event in profile.key_averages())


def test_a_stale_tensor_of_reused_memory_is_never_unmapped(tokens):
    """Larger batches outgrow the slots while tensors over small ones are still held."""
    batches = [[i] for i in range(5)] + [list(range(4000))] * 5
    loader = FlatArenaDataLoader(tokens, batch_sampler=batches, num_workers=1, reuse=True)
    stale = list(loader)
    del loader
    gc.collect()
    assert sum(int(x[-1, -1]) >= 0 for x, _ in stale) == 10
