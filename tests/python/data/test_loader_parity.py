"""FlatArenaDataLoader over tokens against torch's DataLoader: same batches, same draws, same errors."""

import pickle
import warnings

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, SubsetRandomSampler, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader


def epochs(loader_type, dataset, count=2, take=None, **arguments):
    """Batches of some epochs and a number drawn from the global generator after each."""
    torch.manual_seed(11)
    loader = loader_type(dataset, **arguments)
    seen = []
    for _ in range(count):
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            seen.append([tensor.clone() for tensor in batch])
            if take is not None and number + 1 == take:
                break
        seen.append(torch.rand(2))
    return seen


def equal(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert type(a) is type(b)
        if isinstance(a, list):
            for x, y in zip(a, b, strict=True):
                assert x.dtype == y.dtype
                assert x.is_contiguous()
                assert torch.equal(x, y)
        else:
            assert torch.equal(a, b), "the global generator was drawn from differently"


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [None, False, True])
def test_batches_and_draws_are_torchs_case21(tokens, shuffle, drop_last, workers):
    arguments = {"batch_size": 300, "shuffle": shuffle, "drop_last": drop_last}
    ours = epochs(FlatArenaDataLoader, tokens, num_workers=workers, **arguments)
    equal(ours, epochs(DataLoader, tokens, **arguments))


@settings(deadline=None, max_examples=25)
@given(
    windows=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    workers=st.integers(0, 2),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    own_generator=st.booleans(),
)
def test_any_sizes(token_file, windows, batch_size, workers, drop_last, shuffle, own_generator):
    dataset = aegis.TokenDataset(token_file, 5000 - windows, dtype="uint16", stride=1)
    assert len(dataset) == windows

    def arguments():
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "generator": generator}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = epochs(FlatArenaDataLoader, dataset, num_workers=workers, **arguments())
    equal(ours, epochs(DataLoader, dataset, **arguments()))


@pytest.mark.parametrize("take", [1, 16, 17])
def test_a_given_generator_is_drawn_from_as_torch_does_also_at_an_early_break(tokens, take):
    states = []
    for loader_type in (FlatArenaDataLoader, DataLoader):
        generator = torch.Generator().manual_seed(5)
        epochs(loader_type, tokens, take=take, batch_size=300, shuffle=True, generator=generator)
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_user_samplers_are_honoured(tokens):
    class Every7th:
        def __iter__(self):
            return iter(range(-7, -4900, -7))

        def __len__(self):
            return 699

    for sampler in (
        lambda: {"sampler": SubsetRandomSampler(range(100, 400)), "batch_size": 32},
        lambda: {"sampler": RandomSampler(tokens, replacement=True, num_samples=500), "batch_size": 64},
        lambda: {"sampler": Every7th(), "batch_size": 50},
        lambda: {"batch_sampler": [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]},
        lambda: {"batch_sampler": BatchSampler(range(90, 0, -1), 40, False)},
    ):
        for workers in (0, 1, 2):
            torch.manual_seed(0)
            loader = FlatArenaDataLoader(tokens, num_workers=workers, **sampler())
            assert loader.path.startswith("native")
            ours = [[t.clone() for t in batch] for batch in loader]
            torch.manual_seed(0)
            equal(ours, [list(batch) for batch in DataLoader(tokens, **sampler())])


def test_subset_composes_with_the_loader_case39(tokens):
    subset = Subset(tokens, [5, 3, 9, 4000])
    loader = FlatArenaDataLoader(subset, batch_size=2, seed=1, rank=1, world_size=2)
    assert loader.path.startswith("arena")
    other = FlatArenaDataLoader(subset, batch_size=2, seed=1, rank=0, world_size=2)
    starts = [int(row[0]) for part in (other, loader) for x, _ in part for row in x]
    assert starts == [5, 3, 9, 4000]


def test_other_ways_say_why(tokens):
    class Reversed(aegis.TokenDataset):
        def __getitem__(self, index):
            return super().__getitem__(len(self) - 1 - index)

    def first(samples):
        return default_collate(samples)[0]

    reversed_tokens = Reversed(tokens.paths[0], 16, dtype="uint16", stride=1)
    for dataset, arguments, way, why in (
        (reversed_tokens, {}, "arena", "the samples of a Reversed are made by Python"),
        (tokens, {"collate_fn": first}, "torch", "collate_fn"),
        (tokens, {"batch_size": None}, "torch", "batch_size=None"),
        ([1, 2, 3], {}, "arena", "the samples of a list are made by Python"),
    ):
        loader = FlatArenaDataLoader(dataset, **arguments)
        assert loader.path.startswith(f"{way}: ")
        assert why in loader.path
        for ours, theirs in zip(loader, DataLoader(dataset, **arguments), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -1},
        {"persistent_workers": True},
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"batch_size": True},
        {"batch_size": None, "drop_last": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "nothing"},
        {"num_workers": 1, "multiprocessing_context": 3},
    ],
    ids=str,
)
def test_constructor_errors_are_torchs(tokens, arguments):
    with pytest.raises((ValueError, TypeError)) as theirs:
        DataLoader(tokens, **arguments)
    with pytest.raises(type(theirs.value)) as ours:
        FlatArenaDataLoader(tokens, **arguments)
    assert str(ours.value) == str(theirs.value)


def test_errors_at_iter_are_torchs_kinds(tokens):
    with pytest.raises(AssertionError):
        iter(FlatArenaDataLoader(tokens, timeout=1))
    with pytest.raises(AssertionError):
        iter(FlatArenaDataLoader(tokens, num_workers=1, prefetch_factor=0))


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_setattr_guards(tokens, name):
    loader = FlatArenaDataLoader(tokens)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after FlatArenaDataLoader"):
        setattr(loader, name, None)
    loader.pin_memory = False


@pytest.mark.parametrize("drop_last", [False, True])
def test_length(tokens, drop_last):
    for arguments in ({"batch_size": 300}, {"batch_size": 5000}, {"batch_size": 1}):
        ours = FlatArenaDataLoader(tokens, drop_last=drop_last, **arguments)
        assert len(ours) == len(DataLoader(tokens, drop_last=drop_last, **arguments))
        assert len(iter(ours)) == len(ours)


def test_empty_dataset_with_shuffle_is_torchs_error_case64():
    with pytest.raises(ValueError, match="num_samples=0"):
        FlatArenaDataLoader([], shuffle=True)


def test_iterators_are_independent_and_end_for_good(tokens):
    loader = FlatArenaDataLoader(tokens, batch_size=2000, num_workers=1)
    one, other = iter(loader), iter(loader)
    assert one is iter(one)
    assert int(next(one)[0][0, 0]) == int(next(other)[0][0, 0]) == 0
    assert int(next(one)[0][0, 0]) == 2000
    assert int(next(other)[0][0, 0]) == 2000
    assert len(next(one)[0]) == 984
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(one)
    with pytest.raises(NotImplementedError):
        pickle.dumps(one)


def test_persistent_workers_give_the_same_iterator_again(tokens):
    drawn = {}
    for loader_type in (FlatArenaDataLoader, DataLoader):
        torch.manual_seed(0)
        arguments = {"batch_size": 1000, "num_workers": 1, "persistent_workers": True, "shuffle": True}
        loader = loader_type(tokens, **arguments)
        first, batches = None, []
        for _ in range(3):
            iterator = iter(loader)
            assert first is None or iterator is first
            first = iterator
            batches += [batch[0].clone() for batch in iterator]
            batches.append(torch.rand(1))
        drawn[loader_type] = batches
        del iterator, first, loader
    assert all(map(torch.equal, *drawn.values()))


def test_a_pickled_loader_gives_the_same_batches_case13(tokens):
    loader = FlatArenaDataLoader(tokens, batch_size=500, num_workers=1, shuffle=True, seed=4)
    copy = pickle.loads(pickle.dumps(loader))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(loader, copy, strict=True))


def test_arguments_without_effect_are_said_once(tokens):
    with pytest.warns(UserWarning, match="worker_init_fn and multiprocessing_context: no effect"):
        loader = FlatArenaDataLoader(
            tokens, num_workers=1, worker_init_fn=print, multiprocessing_context="fork", batch_size=500
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 10


def test_frameworks_find_what_they_look_for(tokens):
    loader = FlatArenaDataLoader(tokens, batch_size=7, shuffle=True, num_workers=1, seed=3, rank=1, world_size=2)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (7, 1, False)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert loader.batch_sampler.sampler is loader.sampler
    assert loader.collate_fn is default_collate
    assert (loader.seed, loader.rank, loader.world_size, loader.reuse) == (3, 1, 2, False)
    assert sum(len(indices) for indices in loader.batch_sampler) == len(loader.sampler)


def test_global_state_is_untouched_with_a_seed_case21(tokens):
    before = torch.get_rng_state()
    for _ in FlatArenaDataLoader(tokens, batch_size=500, shuffle=True, seed=1):
        pass
    assert torch.equal(torch.get_rng_state(), before)
