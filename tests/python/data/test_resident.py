"""``resident=True``: the same batches as the native path, cut from an arena on the device. Here that is the CPU."""

import pickle

import aegis
import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("a.bin", "b.bin", "c.bin")]
    for at, (path, count) in enumerate(zip(paths, (700, 5, 403), strict=True)):
        np.arange(at * 1000, at * 1000 + count, dtype=np.uint16).tofile(path)
    return paths


def assert_same(got, want):
    got, want = list(got), list(want)
    assert len(got) == len(want) > 0
    for ours, theirs in zip(got, want, strict=True):
        assert isinstance(ours, list)
        assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(ours, theirs, strict=True))


ORDERS = [
    {"shuffle": True, "seed": 2},
    {"shuffle": True, "seed": 2, "rank": 1, "world_size": 3, "tail": "wrap"},
    {"seed": 2, "drop_last": True},
    {"shuffle": True},
    {},
    {"sampler": [5, 3, 3, 0, 17]},
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_batches_and_states_are_those_of_the_native_path(files, order):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16", stride=3)
    plain = aegis.FlatArenaDataLoader(dataset, 16, **order)
    loader = aegis.FlatArenaDataLoader(dataset, 16, device="cpu", resident=True, **order)
    assert loader.path.startswith("resident")
    assert len(loader) == len(plain)
    for _ in range(2):
        torch.manual_seed(11)
        want = list(plain)
        after = torch.random.get_rng_state()
        torch.manual_seed(11)
        assert_same(loader, want)
        assert torch.equal(torch.random.get_rng_state(), after)
        assert loader.state_dict() == plain.state_dict()


def test_states_pass_between_resident_and_native_loaders(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    given = {"shuffle": True, "seed": 9}
    loader = aegis.FlatArenaDataLoader(dataset, 4, device="cpu", resident=True, **given)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    plain = aegis.FlatArenaDataLoader(dataset, 4, **given)
    plain.load_state_dict(loader.state_dict())
    assert_same(batches, plain)


def test_chains_are_the_same(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    chains = [aegis.evidence.IntegrityChain() for _ in range(2)]
    for chain, more in zip(chains, ({}, {"device": "cpu", "resident": True}), strict=True):
        assert list(aegis.FlatArenaDataLoader(dataset, 4, seed=1, chain=chain, **more))
    assert chains[0].state() == chains[1].state()


def test_a_loader_travels(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    loader = aegis.FlatArenaDataLoader(dataset, 4, device="cpu", resident=True, seed=1)
    assert_same(pickle.loads(pickle.dumps(loader)), loader)


def test_a_batch_that_ends_in_an_error_had_its_turn(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    states = []
    for more in ({}, {"device": "cpu", "resident": True}):
        loader = aegis.FlatArenaDataLoader(dataset, batch_sampler=[[0], [10**6], [1]], **more)
        batches = iter(loader)
        next(batches)
        with pytest.raises(IndexError, match="expected -"):
            next(batches)
        states.append(loader.state_dict())
        assert torch.equal(next(batches)[0], dataset[1][0][None])
    assert states[0] == states[1]


def test_a_file_cut_short_is_refused(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    files[2].write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"c\.bin"):
        aegis.FlatArenaDataLoader(dataset, 4, device="cpu", resident=True)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"device": None}, "device: expected one beside resident=True"),
        ({"collate_fn": list}, "resident: expected batches, and no collate_fn"),
        ({"batch_size": None}, "resident: expected batches, and no collate_fn"),
        ({"seed": 1, "tail": "pad"}, "tail: expected None or 'wrap' with resident=True"),
        ({"dataset": TensorDataset(torch.zeros(4))}, "got a TensorDataset"),
    ],
)
def test_refusals(files, change, match):
    given = {"dataset": aegis.TokenDataset(files, 8, dtype="uint16"), "batch_size": 4, "device": "cpu", **change}
    with pytest.raises(ValueError, match=match):
        aegis.FlatArenaDataLoader(resident=True, **given)


def test_documents_are_refused(files):
    dataset = aegis.TokenDataset(files[0], 8, dtype="uint16", documents=[np.array([0, 700])])
    with pytest.raises(ValueError, match="got a TokenDataset with them"):
        aegis.FlatArenaDataLoader(dataset, 4, device="cpu", resident=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_no_cuda_device_says_so(files):
    dataset = aegis.TokenDataset(files, 8, dtype="uint16")
    with pytest.raises(ValueError, match="no CUDA device"):
        aegis.FlatArenaDataLoader(dataset, 4, device="cuda", resident=True)
