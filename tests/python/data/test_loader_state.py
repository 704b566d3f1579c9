"""Orders of one's own, ranks, and going on exactly where a run stopped."""

import json
import warnings

import aegis
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

FlatArenaDataLoader = aegis.FlatArenaDataLoader


def starts(batch):
    """Where each window of a batch was cut, in the file whose tokens are their positions."""
    return batch[0][:, 0].tolist()


def quiet_loader(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FlatArenaDataLoader(*arguments, **keywords)


def test_seeded_order_is_a_permutation_that_differs_between_epochs_and_comes_again_case23(tokens):
    loader = FlatArenaDataLoader(tokens, batch_size=100, shuffle=True, seed=1, num_workers=1)
    first, second = ([i for batch in loader for i in starts(batch)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(4984))
    assert first != second
    loader.set_epoch(0)
    assert [i for batch in loader for i in starts(batch)] == first
    again = FlatArenaDataLoader(tokens, batch_size=100, shuffle=True, seed=1)
    assert [i for batch in again for i in starts(batch)] == first
    other = FlatArenaDataLoader(tokens, batch_size=100, shuffle=True, seed=2)
    assert [i for batch in other for i in starts(batch)] != first


def test_order_without_shuffle_is_file_order_case41(tokens):
    loader = FlatArenaDataLoader(tokens, batch_size=100, seed=1, num_workers=2)
    assert [i for batch in loader for i in starts(batch)] == list(range(4984))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_get_disjoint_shares_of_equal_length_case35_case37(tokens, world_size, drop_last):
    def loader(rank, world_size):
        return FlatArenaDataLoader(
            tokens, 100, shuffle=True, drop_last=drop_last, seed=5, rank=rank, world_size=world_size
        )

    whole = [i for batch in loader(0, 1) for i in starts(batch)]
    parts = [[starts(batch) for batch in loader(rank, world_size)] for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    assert all(len(part) == len(loader(0, world_size)) for part in parts)
    together = [i for step in zip(*parts, strict=True) for part in step for i in part]
    assert together == whole[: len(together)]
    left_over = len(tokens) - len(together)
    assert left_over == loader(0, world_size).stats()["dropped_samples"]
    assert left_over < (100 * world_size if drop_last else world_size)


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_resume_on_other_ranks_continues_the_same_global_order_case27_case29_case31(token_file, data):
    dataset = aegis.TokenDataset(token_file, 16, dtype="uint16", stride=37)
    draw = data.draw
    seed, start_epoch = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 3))
    seen, states, epoch_ends = [], [None], []
    for _ in range(draw(st.integers(1, 4))):
        world_size, batch_size = draw(st.integers(1, 5)), draw(st.integers(1, 30))
        loaders = [
            quiet_loader(
                dataset, batch_size, shuffle=True, seed=seed, rank=rank, world_size=world_size,
                num_workers=draw(st.integers(0, 2)),
            )
            for rank in range(world_size)
        ]  # fmt: skip
        for loader in loaders:
            if states[-1] is None:
                loader.set_epoch(start_epoch)
            else:
                loader.load_state_dict(json.loads(json.dumps(states[-1])))
        iterators = [iter(loader) for loader in loaders]
        for _ in range(draw(st.integers(0, 8))):
            step = [next(iterator, None) for iterator in iterators]
            if step[0] is None:
                assert step == [None] * world_size
                break
            seen += [i for batch in step for i in starts(batch)]
        saved = [loader.state_dict() for loader in loaders]
        assert all(state == saved[0] for state in saved)
        states.append(saved[0])
        if saved[0]["position"] == 0 and seen and saved[0]["epoch"] > start_epoch:
            epoch_ends.append(len(seen))
            break
    whole = quiet_loader(dataset, 1, shuffle=True, seed=seed)
    whole.set_epoch(start_epoch)
    assert seen == [i for batch in whole for i in starts(batch)][: len(seen)]


@pytest.mark.parametrize("arguments", [{"seed": 3}, {}, {"generator": True}], ids=["seeded", "torch", "generator"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop_at", [0, 1, 7, 49, 50])
def test_resumed_run_equals_the_uninterrupted_one_case25_case30(tokens, arguments, workers, stop_at):
    def make(seed):
        own = {"generator": torch.Generator().manual_seed(seed)} if "generator" in arguments else arguments
        return FlatArenaDataLoader(tokens, 100, shuffle=True, num_workers=workers, **own)

    torch.manual_seed(8)
    loader = make(8)
    iterator = iter(loader)
    for _ in range(stop_at):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    random_state = torch.get_rng_state()
    rest = [starts(batch) for batch in iterator]
    drawn = torch.get_rng_state()

    torch.set_rng_state(random_state)
    resumed = make(99)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    again = [starts(batch) for batch in resumed] if stop_at < 50 else []
    assert again == rest
    if stop_at < 50:
        assert torch.equal(torch.get_rng_state(), drawn)


def test_state_at_the_end_of_an_epoch_begins_the_next_once_case25(tokens):
    loader = FlatArenaDataLoader(tokens, 1000, shuffle=True, seed=1)
    for _ in zip(range(5), loader, strict=False):
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    second, third = ([starts(batch) for batch in loader] for _ in range(2))
    resumed = FlatArenaDataLoader(tokens, 1000, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    assert [[starts(batch) for batch in resumed] for _ in range(2)] == [second, third]


def test_a_user_sampler_is_skipped_through(tokens):
    order = list(range(0, 4984, 11))
    loader = FlatArenaDataLoader(tokens, 10, sampler=order, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    resumed = FlatArenaDataLoader(tokens, 10, sampler=order)
    resumed.load_state_dict(state)
    assert [starts(batch) for batch in resumed] == [starts(batch) for batch in iterator]


def test_state_on_the_torch_way(tokens):
    class Plain(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return index

    for arguments in ({"seed": 2}, {}):
        for workers in (0, 1):
            torch.manual_seed(1)
            loader = FlatArenaDataLoader(Plain(), 4, shuffle=True, num_workers=workers, **arguments)
            iterator = iter(loader)
            head = [next(iterator).tolist() for _ in range(3)]
            state = loader.state_dict()
            rest = [batch.tolist() for batch in iterator]
            assert sorted(i for batch in head + rest for i in batch) == list(range(40))
            resumed = FlatArenaDataLoader(Plain(), 4, shuffle=True, num_workers=workers, **arguments)
            resumed.load_state_dict(state)
            assert [batch.tolist() for batch in resumed] == rest


class Broken(torch.utils.data.Dataset):
    """Number 5 cannot be read, in the first run."""

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5 and self.broken:
            raise OSError("five")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_ended_in_an_error_had_its_turn(workers):
    """Behind it, no batch comes twice and none is lost."""
    loader = FlatArenaDataLoader(Broken(True), 2, num_workers=workers)
    iterator = iter(loader)
    seen = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(OSError, match="five"):
        next(iterator)
    assert loader.state_dict()["position"] == 3
    seen.append(next(iterator).tolist())
    resumed = FlatArenaDataLoader(Broken(False), 2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert seen + [batch.tolist() for batch in resumed] == [[i, i + 1] for i in range(0, 20, 2) if i != 4]


def test_batches_in_no_order_have_no_state_amid_an_epoch():
    """By their number, those that resume would come twice or not at all."""
    loader = FlatArenaDataLoader(Broken(False), 2, num_workers=2, in_order=False, seed=1, shuffle=True)
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0
    next(iterator)
    with pytest.raises(ValueError, match="in_order: expected True for a state amid an epoch, got False"):
        loader.state_dict()
    assert len(list(iterator)) == 9
    assert loader.state_dict()["epoch"] == 1


def test_set_epoch_keeps_a_resumed_position_of_that_epoch_only(tokens):
    def resumed_at(epoch):
        loader = FlatArenaDataLoader(tokens, 1000, shuffle=True, seed=1)
        loader.load_state_dict(state)
        loader.set_epoch(epoch)
        return [starts(batch) for batch in loader]

    loader = FlatArenaDataLoader(tokens, 1000, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [starts(batch) for batch in iterator]
    assert resumed_at(0) == rest
    assert len(resumed_at(1)) == 5
    with pytest.raises(ValueError, match=r"epoch: expected 0 to 2\*\*63 - 1, got -1"):
        loader.set_epoch(-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "0000"}, "state: the files are what they were, but the samples made of them are not"),
        ({"fingerprint": "0000", "files": None}, "state: the data has changed: expected fingerprint .*got '0000'"),
        ({"samples": 3, "files": None}, "state: the data has changed: expected samples 4984"),
        ({"seed": 7}, r"state: expected seed 1 \(this loader's\), got 7"),
        ({"shuffle": False}, "state: expected shuffle True"),
        ({"version": 9}, "state: expected version 1"),
        ({"position": -1}, r"state: expected position to be an int from 0 to 2\*\*63 - 1, got -1"),
        ({"position": 4985}, "state: expected position 0 to 4984, got 4985"),
        ({"epoch": "one"}, "state: expected epoch to be an int"),
    ],
)
def test_bad_state_is_refused_case32(tokens, change, message):
    loader = FlatArenaDataLoader(tokens, 100, shuffle=True, seed=1)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**state, **change})
    with pytest.raises(ValueError, match="state: expected the key 'seed'"):
        loader.load_state_dict({name: value for name, value in state.items() if name != "seed"})
    assert len(list(loader)) == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": 1, "sampler": [1]}, "sampler: expected None beside seed="),
        ({"seed": 1, "batch_sampler": [[1]]}, "batch_sampler: expected None beside seed="),
        ({"seed": 1, "generator": torch.Generator()}, "generator: expected None beside seed="),
        ({"seed": -1}, r"seed: expected 0 to 2\*\*63 - 1, got -1"),
        ({"seed": 1, "rank": 2, "world_size": 2}, "rank: expected 0 to 1, got 2"),
        ({"seed": 1, "rank": 0, "world_size": 0}, "world_size: expected at least 1, got 0"),
        ({"rank": 0, "world_size": 2}, "rank and world_size: expected seed= beside them"),
    ],
)
def test_bad_order_arguments(tokens, arguments, message):
    with pytest.raises(ValueError, match=message):
        FlatArenaDataLoader(tokens, 10, **arguments)


def test_an_iterable_dataset_orders_itself():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(5))

    with pytest.raises(ValueError, match="seed: expected a map-style dataset"):
        FlatArenaDataLoader(Stream(), seed=1)
    loader = FlatArenaDataLoader(Stream(), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    with pytest.raises(TypeError, match="an IterableDataset keeps its own position"):
        loader.state_dict()


def test_a_billion_samples_start_and_resume_at_once_case17_case28_case56(tmp_path):
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(2 * (10**9 + 16))  # no blocks are allocated
    dataset = aegis.TokenDataset(path, 16, dtype="uint16", stride=1)
    assert len(dataset) == 10**9
    loader = FlatArenaDataLoader(dataset, 64, shuffle=True, seed=1, num_workers=1)
    state = {**loader.state_dict(), "epoch": 3, "position": 64 * 10**7, "started": True}
    loader.load_state_dict(state)
    batch = next(iter(loader))
    assert batch[0].shape == (64, 16)
    assert loader.state_dict()["position"] == 64 * (10**7 + 1)
    assert np.array_equal(batch[0], np.zeros((64, 16)))
