"""Batches on a device when something goes wrong on the way: interrupts, errors, forks, iterators beside each other."""

import gc
import os
import weakref

import aegis
import pytest
import torch
from aegis.data.device_memory import Transfer
from fake_link import consume, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import Numbered
from torch.utils.data import Dataset


def plain(tokens, epoch, **options):
    loader = aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, seed=1, **options)
    loader.set_epoch(epoch)
    return [[tensor.clone() for tensor in batch] for batch in loader]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    eager=st.sampled_from([0.0, 0.3, 0.9]),
    reuse=st.booleans(),
    narrow=st.booleans(),
    threads=st.integers(0, 1),
    plan=st.lists(
        st.tuples(st.sampled_from(["make", "next", "next", "next", "next", "drop"]), st.integers(0, 1)),
        min_size=10,
        max_size=40,
    ),
    closes=st.booleans(),
)
def test_iterators_beside_each_other_case58(token_file, links, seed, eager, reuse, narrow, threads, plan, closes):
    links.seed, links.eager = seed, eager
    tokens = aegis.TokenDataset(token_file, 16, dtype="uint16")
    given = {"device": "cuda", "narrow": narrow, "reuse": reuse, "num_workers": threads}
    wanted = [plain(tokens, epoch) for epoch in range(3)]
    with aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, seed=1, **given) as loader:
        live, read, made = {}, [], 0
        for what, which in plan:
            if what == "make" and made < 3:
                live[which] = [iter(loader), made, 0]  # whichever was there is dropped
                made += 1
            elif what == "drop":
                live.pop(which, None)
            elif what == "next" and which in live:
                iterator, epoch, at = live[which]
                batch = next(iterator, None)
                if batch is None:
                    assert at == len(wanted[epoch])
                    del live[which]
                    continue
                live[which][2] += 1
                read.append((epoch, at, []))
                links[-1].work(lambda batch=batch, place=read[-1][2]: place.extend(t.clone() for t in batch))
                del batch
        if closes:
            loader.close()
    links[-1].synchronize()
    for epoch, at, got in read:
        same([got], [wanted[epoch][at]])


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_between_copies_loses_no_batch_case58(tokens, links, monkeypatch, workers, reuse, narrow):
    links.eager = 0.02
    given = {"device": "cuda", "num_workers": workers, "reuse": reuse, "narrow": narrow}
    with aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, seed=1, **given) as loader:
        link = links[-1]
        copy, calls = link.copy, 0

        def interrupted(target, source):
            nonlocal calls
            calls += 1
            copy(target, source)
            if calls % 5 == 0:
                raise KeyboardInterrupt

        monkeypatch.setattr(link, "copy", interrupted)
        batches, read = iter(loader), []
        for _ in range(2 * 156 + 200):
            try:
                batch = next(batches, None)
            except KeyboardInterrupt:
                continue
            if batch is None:
                break
            read.append([])
            link.work(lambda batch=batch, place=read[-1]: place.extend(tensor.clone() for tensor in batch))
            del batch
        link.synchronize()
        assert calls > 156
        same(read, plain(tokens, 0))
        assert loader.state_dict()["epoch"] == 1


class Turns:
    """A link whose marks are reached one by one, when somebody waits."""

    def __init__(self):
        self.made = []
        self.during_wait = None

    def mark_copies(self):
        self.made.append([False])
        return self.made[-1]

    def reached(self, mark):
        return mark[0]

    def wait(self, mark):
        if self.during_wait is not None:
            during, self.during_wait = self.during_wait, None
            during()
        mark[0] = True


class Source:
    pass


@pytest.mark.parametrize("how", ["let_go", "finish"])
def test_what_comes_in_between_drops_no_other_s_source_case58(how):
    # In a signal handler, or another thread: waiting lets go of the GIL.
    link = Turns()
    transfer = Transfer(link)
    sources = []
    for _ in range(Transfer.MOST_UNDER_WAY):
        source = Source()
        sources.append((transfer.keep(source), weakref.ref(source)))
        del source
    link.during_wait = transfer.let_go if how == "let_go" else transfer.finish
    transfer.let_go()
    assert all(mark[0] or source() is not None for mark, source in sources)
    transfer.finish()
    assert all(mark[0] and source() is None for mark, source in sources)


def test_a_wait_that_is_interrupted_keeps_the_source_case58():
    link = Turns()
    transfer = Transfer(link)
    source = Source()
    transfer.keep(source)
    kept = weakref.ref(source)
    del source

    def interrupt():
        raise KeyboardInterrupt

    link.during_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        transfer.finish()
    assert kept() is not None
    transfer.finish()
    assert kept() is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("narrow", [False, True])
def test_closed_while_copies_are_under_way_case58(tokens, links, workers, narrow):
    links.eager = 0.0
    loader = aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=workers, narrow=narrow, seed=1)
    batches = iter(loader)
    got = [next(batches) for _ in range(2)]
    loader.close()
    assert not links[-1].copies  # nothing reads slots that may be gone
    if workers:
        got.append(next(batches))  # copied ahead
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)
    links[-1].synchronize()
    same(got, list(aegis.FlatArenaDataLoader(tokens, 32, seed=1))[: len(got)])


class Broken(Exception):
    """Of a class of one's own: weak references to Python's are not to be had."""


class Breaks(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 1:
            raise Broken("sample 1")
        return torch.full((4,), index)


class Refuses:
    def to(self, device):
        raise Broken("refused")


def identity(samples):
    return samples[0]


@pytest.mark.parametrize("where", ["host", "copy"])
def test_an_error_that_was_caught_holds_nothing(links, where):
    dataset = Breaks() if where == "host" else [torch.zeros(1), [torch.zeros(1), Refuses()], torch.zeros(1)]
    more = {} if where == "host" else {"collate_fn": identity}
    loader = aegis.FlatArenaDataLoader(dataset, 1, device="cuda", **more)
    batches = iter(loader)
    next(batches)
    gc.collect()
    gc.disable()
    try:
        try:
            next(batches)
        except Broken as error:
            seen = weakref.ref(error)
        assert seen() is None
    finally:
        gc.enable()
    assert len(list(batches)) == len(dataset) - 2


def in_child(call):
    """What ``call`` returns in a forked child, as text; the child ends without cleaning up after torch."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = call()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, str(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


@pytest.mark.usefixtures("one_thread")
def test_a_forked_child_leaves_the_device_alone_case12(tokens, links):
    links.eager = 0.0
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1, seed=1) as loader:
        batches = iter(loader)
        got = [next(batches)]
        marks = links[-1].marks

        def close():
            loader.close()  # waits for no event of the parent's
            return len(links[-1].copies) > 0 and links[-1].marks == marks

        assert in_child(lambda: iter(loader)).startswith("RuntimeError: device: expected the process that made")
        assert in_child(lambda: next(batches)).startswith("RuntimeError: this iterator was made before fork()")
        assert in_child(close) == "True"
        got.append(next(batches))
        links[-1].synchronize()
    same(got, list(aegis.FlatArenaDataLoader(tokens, 32, seed=1))[:2])


@pytest.mark.parametrize("workers", [0, 1])
def test_states_of_batches_that_python_makes(links, workers):
    def make(**more):
        return aegis.FlatArenaDataLoader(
            Numbered(40, (3, 64, 64)), 4, shuffle=True, num_workers=workers, seed=4, **more
        )

    with make(device="cuda") as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = consume(batches, links[-1], 0)
        links[-1].synchronize()
    with make() as resumed:
        resumed.load_state_dict(state)
        same(rest, [[tensor.clone() for tensor in batch] for batch in resumed])


def test_a_set_of_buffers_left_with_a_copy_under_way_is_written_in_order_case58(tokens, links):
    links.eager = 0.0
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1, reuse=True, seed=1) as loader:
        batches = iter(loader)
        last = next(batches)
        del batches  # the second batch was copied ahead, and nobody gets it
        read = consume(loader, links[-1], 1)
        links[-1].synchronize()
    assert len(last) == 2
    same(read, list(aegis.FlatArenaDataLoader(tokens, 32, seed=1)))


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "default"])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_ordinary_whatever_mode_they_are_asked_for_in(tokens, links, workers, reuse, narrow, mode):
    given = {"device": "cuda", "narrow": narrow, "reuse": reuse, "num_workers": workers, "seed": 1}
    chain = aegis.evidence.IntegrityChain()
    with aegis.FlatArenaDataLoader(tokens, 32, chain=chain, **given) as loader:
        batches = iter(loader)
        with mode():
            got = [next(batches)]
            if workers == 0:  # else the second was asked for in that mode, too
                got.append(next(batches))
        if workers:
            got.append(next(batches))
        links[-1].synchronize()
        same(got, list(aegis.FlatArenaDataLoader(tokens, 32, seed=1))[:2])
        assert not any(tensor.is_inference() for batch in got for tensor in batch)
