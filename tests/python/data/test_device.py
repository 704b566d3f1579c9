"""``device=``: batches copied beside the consumer's work, over a device that is late and does things out of turn."""

import dataclasses
from collections import OrderedDict, namedtuple

import aegis
import numpy as np
import pytest
import torch
from aegis.data.device_iter import DeviceIter
from aegis.data.device_memory import Transfer
from aegis.data.order import Progress
from fake_link import FakeLink, consume, flat, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import Numbered
from torch.utils.data import Dataset, TensorDataset

DATA = {
    "tokens": lambda path: aegis.TokenDataset(path, 64, dtype="uint16", stride=40),
    "fields": lambda path: aegis.TokenDataset(
        path, 64, dtype="uint16", documents=[np.arange(0, 5001, 25)], layout="packed", fields=("cu_seqlens", "valid")
    ),
    "tensors": lambda path: TensorDataset(torch.arange(400.0).reshape(100, 4), torch.arange(100)),
    "arena": lambda path: Numbered(40, (3, 16, 16)),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(list(DATA)),
    seed=st.integers(0, 2**32),
    eager=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    reuse=st.booleans(),
    lag=st.integers(0, 1),
    threads=st.integers(0, 2),
)
def test_late_copies_read_what_was_meant_case58(token_file, links, kind, seed, eager, reuse, lag, threads):
    links.seed, links.eager = seed, eager
    given = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 0 if kind == "arena" else threads}
    dataset = DATA[kind](token_file)
    with (
        aegis.FlatArenaDataLoader(dataset, **given) as plain,
        aegis.FlatArenaDataLoader(dataset, device="cuda", reuse=reuse, **given) as loader,
    ):
        for _ in range(2):  # epochs: buffers and slots go on
            want = [[tensor.clone() for tensor in flat(batch)] for batch in plain]
            got = consume(loader, links[-1], lag)
            assert loader.state_dict() == plain.state_dict()
        epoch_before = got
        links[-1].synchronize()
        same(epoch_before, want)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_worker_processes_case58(links, reuse, workers):
    links.eager = 0.05
    given = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": workers}
    dataset = Numbered(64, (3, 64, 64))
    want = [[tensor.clone() for tensor in flat(batch)] for batch in aegis.FlatArenaDataLoader(dataset, **given)]
    with aegis.FlatArenaDataLoader(dataset, device="cuda", reuse=reuse, **given) as loader:
        got = consume(loader, links[-1], 1)
        links[-1].synchronize()
        same(got, want)
        assert loader.stats()["device_batches"] == 16
        assert loader.stats()["slot_batches"] == 16


def test_held_batches_stay_valid_case59(tokens, links):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1) as loader:
        held = list(loader)
        links[-1].synchronize()
        same(held, list(aegis.FlatArenaDataLoader(tokens, 32)))


@pytest.mark.parametrize("workers", [0, 1])
def test_reused_buffers_keep_their_addresses(tokens, links, workers):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=workers, reuse=True) as loader:
        seen = [tuple(tensor.data_ptr() for tensor in batch) for _ in range(2) for batch in loader]
        links[-1].synchronize()
    assert len(set(seen)) == 3
    assert seen == [seen[at % 3] for at in range(len(seen))]
    assert links[-1].allocated == 2 * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dropped_iterator_leaves_its_copies_their_slots_case58(tokens, links, workers):
    links.eager = 0.0  # nothing is copied before somebody waits
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=workers, shuffle=True, seed=1) as loader:
        first = []
        for _ in range(6):  # epochs left after a batch, each with slots of the same pool
            batches = iter(loader)
            first.append(next(batches))
            del batches
        links[-1].synchronize()
        for epoch, got in enumerate(first):
            plain = aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, seed=1)
            plain.set_epoch(epoch)
            same([got], [next(iter(plain))])


def test_a_host_far_ahead_waits_for_the_device(tokens, links):
    links.eager = 0.0
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1) as loader:
        assert sum(1 for _ in loader) == 156
        stats = loader.stats()
    assert stats["device_waits"] >= 156 - Transfer.MOST_UNDER_WAY
    assert stats["slots"] <= Transfer.MOST_UNDER_WAY + 8


class Breaks(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise KeyError("sample 3")
        return torch.full((4,), index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_comes_in_its_turn(links, workers):
    with aegis.FlatArenaDataLoader(Breaks(), 1, device="cuda", num_workers=workers, seed=0) as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(3)]
        with pytest.raises(KeyError, match="sample 3"):
            next(batches)
        links[-1].synchronize()
    assert [int(batch[0, 0]) for batch in got] == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_state_counts_batches_handed_out_and_not_those_ahead(tokens, links, workers):
    def make(**more):
        return aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, num_workers=workers, **more)

    for more in ({"seed": 4}, {"generator": torch.Generator().manual_seed(2)}):
        with make(device="cuda", **more) as loader:
            batches = iter(loader)
            for _ in range(5):
                next(batches)
            state = loader.state_dict()
            rest = list(batches)
            links[-1].synchronize()
        resumed = make(**more)
        resumed.load_state_dict(state)
        same(rest, list(resumed))


def test_the_chain_is_that_of_the_host(tokens, links):
    chains = [aegis.evidence.IntegrityChain() for _ in range(2)]
    for chain, device in zip(chains, (None, "cuda"), strict=True):
        with aegis.FlatArenaDataLoader(tokens, 32, seed=1, num_workers=1, chain=chain, device=device) as loader:
            batches = iter(loader)
            for _ in range(7):
                next(batches)
    assert chains[0].state() == chains[1].state()


Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Item:
    x: torch.Tensor
    name: str


class Moves:
    def to(self, device):
        return ("moved", device)


def identity(samples):
    return samples[0]


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(3),
        [torch.arange(3), "text", 4, None, b"bytes"],
        (torch.arange(3), (torch.zeros(0), torch.tensor(2.5))),
        Point(torch.arange(3), {"a": torch.ones(2, 3).t()}),
        OrderedDict(b=torch.tensor(True), a=[torch.ones(1, dtype=torch.complex64)]),
        Item(torch.arange(3), "name"),
        aegis.TokenBatch(inputs=torch.arange(4)),
        torch.ones(1).expand(5),
    ],
    ids=lambda batch: type(batch).__name__,
)
@pytest.mark.parametrize("reuse", [False, True])
def test_containers_keep_their_types_case60(links, batch, reuse):
    loader = aegis.FlatArenaDataLoader([batch], 1, collate_fn=identity, device="cuda", reuse=reuse)
    (got,) = list(loader)
    links[-1].synchronize()
    assert type(got) is type(batch)
    same([flat(got)], [flat(batch)])
    if isinstance(batch, list):
        assert got[1:] == batch[1:]


def test_what_is_no_plain_tensor_moves_itself_case60(links):
    sparse = torch.eye(3).to_sparse()
    loader = aegis.FlatArenaDataLoader([{"a": Moves(), "b": sparse}], 1, collate_fn=identity, device="cuda")
    (got,) = list(loader)
    assert got["a"] == ("moved", links[-1].device)
    assert got["b"].is_sparse


def test_a_batch_that_cannot_be_copied_is_an_error_in_its_turn(tokens, links, monkeypatch):
    def refuse(shape, dtype):
        raise MemoryError("device")

    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1, seed=0) as loader:
        batches = iter(loader)
        got = [next(batches)]  # the copy of the second is asked for
        with monkeypatch.context() as patch:
            patch.setattr(links[-1], "empty", refuse)
            got.append(next(batches))
            with pytest.raises(MemoryError, match="device"):
                next(batches)
        with pytest.raises(MemoryError, match="device"):
            next(batches)
        got.append(next(batches))
        links[-1].synchronize()
    want = list(aegis.FlatArenaDataLoader(tokens, 32, seed=0))
    same(got, [want[0], want[1], want[4]])


def test_an_empty_epoch(links):
    progress = Progress(0)
    batches = DeviceIter(iter([]), Transfer(FakeLink(0)), progress, progress, ahead=1, reuse=True)
    assert list(batches) == []
    assert list(batches) == []


def test_cpu_is_where_batches_are(tokens):
    loader = aegis.FlatArenaDataLoader(tokens, 32, device="cpu")
    assert "copied" not in loader.path
    same([next(iter(loader))], [next(iter(aegis.FlatArenaDataLoader(tokens, 32)))])


@pytest.mark.parametrize(
    ("device", "error", "match"),
    [
        ("mps", ValueError, "device: expected cpu or cuda, got 'mps'"),
        (torch.device("meta"), ValueError, "device: expected cpu or cuda, got device"),
        ("nonsense", ValueError, "device: expected cpu or cuda, got 'nonsense'"),
        ("", ValueError, "device: expected cpu or cuda, got ''"),
        ("cuda:-1", ValueError, "got 'cuda:-1'"),
        ("cuda:256", ValueError, "got 'cuda:256'"),  # cuda:0 to torch
        (256, ValueError, "device: expected the number of a CUDA device, got 256"),
        (-1, ValueError, "got -1"),
        (True, TypeError, "device: expected a torch.device, a name, a number or None, got bool"),
        (1.5, TypeError, "got float"),
    ],
)
def test_devices_refused(tokens, device, error, match):
    with pytest.raises(error, match=match):
        aegis.FlatArenaDataLoader(tokens, 32, device=device)


@pytest.mark.parametrize("more", [{}, {"resident": True}, {"narrow": True}])
def test_a_device_that_is_not_there_is_named(tokens, monkeypatch, more):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda:2", 7):
        with pytest.raises(ValueError, match=r"device: expected cuda:0 to cuda:1, which torch finds, got cuda:[27]"):
            aegis.FlatArenaDataLoader(tokens, 32, device=device, **more)


def test_pin_memory_beside_a_device_is_refused(tokens):
    with pytest.raises(ValueError, match="pin_memory: expected False"):
        aegis.FlatArenaDataLoader(tokens, 32, device="cuda", pin_memory=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_no_cuda_device_says_so(tokens):
    with pytest.raises(ValueError, match="no CUDA device"):
        aegis.FlatArenaDataLoader(tokens, 32, device="cuda")
