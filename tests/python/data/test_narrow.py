"""``narrow=True``: windows cross the bus as they lie in their files. The batches are those of the wide path."""

import pickle

import aegis
import aegis.data.link as link_module
import numpy as np
import pytest
import torch
from fake_link import consume, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

DTYPES = ["uint8", "uint16", "uint32", "int32", "int64"]
ORDERS = [
    {"batch_size": 8, "shuffle": True, "seed": 3},
    {"batch_size": 7, "shuffle": True, "seed": 3, "rank": 1, "world_size": 2, "tail": "wrap"},
    {"batch_size": 8, "drop_last": True},
    {"batch_sampler": [[5, 3, -1], [0], [17, 2, 2, 9, 4], [6]]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two files of each dtype, of ids over all of its range."""
    folder = tmp_path_factory.mktemp("narrow")
    random = np.random.default_rng(3)
    for dtype in DTYPES:
        ends = np.iinfo(dtype)
        for name, count in (("a", 1200), ("b", 333)):
            ids = random.integers(ends.min, ends.max, count, dtype=dtype, endpoint=True)
            ids[:2] = ends.min, ends.max
            ids.tofile(folder / f"{dtype}_{name}.bin")
    return folder


def dataset_of(folder, dtype="uint16", block_size=24, **options):
    return aegis.TokenDataset([folder / f"{dtype}_{name}.bin" for name in "ab"], block_size, dtype=dtype, **options)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from(ORDERS),
    block_size=st.sampled_from([1, 24, 65]),
    seed=st.integers(0, 2**32),
    eager=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    reuse=st.booleans(),
    lag=st.integers(0, 1),
    threads=st.integers(0, 2),
)
def test_late_batches_are_those_of_the_wide_path_case58(
    folder, links, dtype, order, block_size, seed, eager, reuse, lag, threads
):
    links.seed, links.eager = seed, eager
    dataset = dataset_of(folder, dtype, block_size, stride=13)
    with (
        aegis.FlatArenaDataLoader(dataset, num_workers=threads, **order) as plain,
        aegis.FlatArenaDataLoader(
            dataset, num_workers=threads, device="cuda", narrow=True, reuse=reuse, **order
        ) as loader,
    ):
        for _ in range(2):  # epochs: buffers and slots go on
            want = [[tensor.clone() for tensor in batch] for batch in plain]
            got = consume(loader, links[-1], lag)
            assert loader.state_dict() == plain.state_dict()
            links[-1].synchronize()
            same(got, want)
        rows = sum(len(batch[0]) for batch in want)
        assert loader.stats()["device_bytes"] == 2 * rows * (block_size + 1) * np.dtype(dtype).itemsize
        assert loader.stats()["bytes"] == plain.stats()["bytes"]


@pytest.mark.parametrize("workers", [0, 1])
def test_reused_buffers_keep_their_addresses(folder, links, workers):
    dataset = dataset_of(folder)
    given = {"device": "cuda", "narrow": True, "num_workers": workers, "reuse": True}
    with aegis.FlatArenaDataLoader(dataset, 16, **given) as loader:
        seen = [tuple(tensor.data_ptr() for tensor in batch) for _ in range(3) for batch in loader]
        links[-1].synchronize()
    assert len(set(seen)) == 3
    assert seen == [seen[at % 3] for at in range(len(seen))]


def test_fresh_batches_may_be_kept_case59(folder, links):
    dataset = dataset_of(folder)
    with aegis.FlatArenaDataLoader(dataset, 4, device="cuda", narrow=True, num_workers=1) as loader:
        held = list(loader)
        links[-1].synchronize()
        assert len({batch[0].data_ptr() for batch in held}) == len(held)
        same(held, list(aegis.FlatArenaDataLoader(dataset, 4)))


def test_the_chain_is_that_of_the_host(folder, links):
    chains = [aegis.evidence.IntegrityChain() for _ in range(2)]
    for chain, more in zip(chains, ({}, {"device": "cuda", "narrow": True}), strict=True):
        with aegis.FlatArenaDataLoader(dataset_of(folder), 5, seed=1, num_workers=1, chain=chain, **more) as loader:
            batches = iter(loader)
            for _ in range(4):
                next(batches)
    assert chains[0].state() == chains[1].state()


class Slices:
    """Batches that only the data set can make anything of."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([[0, 1], np.array([True] * 2), [2, 3]])


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_anything_but_numbers_come_wide(folder, links, workers):
    dataset = dataset_of(folder)

    def outcomes(**more):
        found = []
        with aegis.FlatArenaDataLoader(dataset, batch_sampler=Slices(), num_workers=workers, **more) as loader:
            batches = iter(loader)
            for _ in range(3):
                try:
                    found.append([tensor.clone() for tensor in next(batches)] if not more else next(batches))
                except Exception as error:
                    found.append((type(error), str(error)))
        return found

    got = outcomes(device="cuda", narrow=True)
    links[-1].synchronize()
    want = outcomes()
    assert [type(item) for item in got] == [type(item) for item in want]
    same([got[0], got[2]], [want[0], want[2]])


def test_a_file_cut_short_is_an_error_in_its_turn(tmp_path, links):
    path = tmp_path / "tokens.bin"
    np.arange(20_000, dtype=np.uint16).tofile(path)
    dataset = aegis.TokenDataset(path, 16, dtype="uint16")
    with aegis.FlatArenaDataLoader(dataset, 8, device="cuda", narrow=True) as loader:
        batches = iter(loader)
        first = next(batches)
        with path.open("r+b") as file:
            file.truncate(100)
        with pytest.raises(RuntimeError, match=r"tokens\.bin"):
            for _ in batches:
                pass
        links[-1].synchronize()
    assert torch.equal(first[0].flatten(), torch.arange(8 * 16))


def test_on_the_cpu_it_has_no_effect(folder):
    dataset = dataset_of(folder)
    loader = aegis.FlatArenaDataLoader(dataset, 4, device="cpu", narrow=True)
    assert "widened" not in loader.path
    same(
        [[t.clone() for t in batch] for batch in loader],
        [[t.clone() for t in batch] for batch in aegis.FlatArenaDataLoader(dataset, 4)],
    )


def test_a_loader_travels(folder, links):
    loader = aegis.FlatArenaDataLoader(dataset_of(folder), 4, device="cuda", narrow=True, seed=1)
    assert loader.path.endswith("copied as they lie in their files, and widened on cpu")
    other = pickle.loads(pickle.dumps(loader))
    got = consume(other, links[-1], 0)
    links[-1].synchronize()
    same(got, [[t.clone() for t in b] for b in aegis.FlatArenaDataLoader(dataset_of(folder), 4, seed=1)])


def mixture_of(folder):
    return aegis.TokenMixture([dataset_of(folder)] * 2, [0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "change", "match"),
    [
        (dataset_of, {"device": None}, "device: expected one beside narrow=True, got None"),
        (dataset_of, {"resident": True}, "narrow: expected False with resident=True"),
        (dataset_of, {"collate_fn": list}, "narrow: expected batches, and no collate_fn"),
        (dataset_of, {"batch_size": None}, "narrow: expected batches, and no collate_fn"),
        (dataset_of, {"seed": 1, "tail": "pad"}, "tail: expected None or 'wrap' with narrow=True, got 'pad'"),
        (dataset_of, {"pin_memory": True}, "pin_memory: expected False with device='cuda'"),
        (lambda _: TensorDataset(torch.zeros(4)), {}, "narrow: expected a TokenDataset .* got a TensorDataset"),
        (lambda folder: dataset_of(folder, eos_id=7), {}, "got a TokenDataset with them"),
        (lambda folder: dataset_of(folder, fields=("valid",)), {}, "got a TokenDataset with them"),
        (mixture_of, {"seed": 1}, "got a TokenMixture"),
    ],
)
def test_refusals(folder, links, make, change, match):
    with pytest.raises(ValueError, match=match):
        aegis.FlatArenaDataLoader(make(folder), **{"batch_size": 4, "device": "cuda", "narrow": True, **change})


def test_a_build_without_cuda_kernels_says_so(monkeypatch):
    monkeypatch.setattr(link_module._C, "build_info", lambda: {"cuda": False})
    with pytest.raises(ValueError, match="narrow: expected an aegis built with CUDA kernels"):
        link_module.require_kernels(torch.device("cuda"), "narrow")
    link_module.require_kernels(torch.device("cpu"), "narrow")
