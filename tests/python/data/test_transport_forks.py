"""Processes that users fork while a loader is in use."""

import aegis
import pytest
from processes import run
from samples import Numbered

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_loader_and_its_forked_copy_do_not_share_slots_case12():
    """Both go on with a loader whose arena was idle at the fork: their workers must not write the same memory."""
    code, out, err = run(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(240), batch_size=4, num_workers=1)
        for _ in loader:
            pass
        child = os.fork()
        same = [bool((x.view(4, -1) == y.view(4, 1)).all()) for _ in range(3) for x, y in loader for _ in range(2)]
        if child == 0:
            os._exit(0 if len(same) == 360 and all(same) else 1)
        print(os.waitpid(child, 0)[1], len(same), all(same), loader.stats()["held_slots"], flush=True)
        """
    )
    assert (code, out, err) == (0, "0 360 True 1\n", "")


@pytest.mark.parametrize("workers", [0, 1])
def test_slots_come_back_in_a_forked_child(workers):
    code, out, err = run(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(160, (3, 300, 300)), batch_size=4, num_workers=int(sys.argv[1]))
        iterator = iter(loader) if int(sys.argv[1]) == 0 else loader
        for _ in zip(range(3), iterator):
            pass
        before = loader.stats()["fresh_slots"]
        child = os.fork()
        if child == 0:  # goes on with the iterator where that is possible, and with the loader
            for part in (iterator, loader):
                for x, y in part:
                    assert bool((x.view(len(y), -1) == y.view(-1, 1)).all())
            stats = loader.stats()
            loader.close()
            os._exit(0 if stats["slots"] < 10 and stats["held_slots"] == 1 else 1)
        print(os.waitpid(child, 0)[1], loader.stats()["fresh_slots"] == before, flush=True)
        """,
        workers,
    )
    assert (code, out, err) == (0, "0 True\n", "")


def test_iterators_and_workers_of_the_parent_are_its_own():
    code, out, err = run(
        """
        loader = aegis.FlatArenaDataLoader(Numbered(64), batch_size=4, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except RuntimeError as error:
                told = str(error).startswith("this iterator was made before fork() and its workers are the parent's")
            os._exit(0 if told and sum(1 for _ in loader) == 16 and iter(loader) is not iterator else 1)
        print(os.waitpid(child, 0)[1], sum(1 for _ in iterator), flush=True)
        """
    )
    assert (code, out, err) == (0, "0 15\n", "")


def test_patched_loaders_of_torch_after_a_fork():
    code, out, err = run(
        """
        aegis.patch_torch()
        loader = DataLoader(Numbered(64), batch_size=4, num_workers=1)
        for _ in loader:
            pass
        child = os.fork()
        labels = [y.tolist() for x, y in loader if bool((x.view(4, -1) == y.view(4, 1)).all())]
        if child == 0:
            os._exit(0 if len(labels) == 16 else 1)
        print(os.waitpid(child, 0)[1], len(labels), flush=True)
        """
    )
    assert (code, out, err) == (0, "0 16\n", "")
