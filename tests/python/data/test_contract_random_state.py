"""DataLoader's contract, random state: what is drawn from which generator, when, in torch's class and in ours."""

import aegis
import contract
import pytest
import torch
from contract import LOADERS, THREADED, Map, both_work, epoch, observed, seeds
from samples import assert_same
from torch.utils.data import DistributedSampler

UNSEEDED = [{}, {"shuffle": False}, {"shuffle": True}, {"batch_size": None}, {"sampler": [1, 2]}]


def draws(act):
    """How many int64 numbers ``act`` drew from the global generator."""
    state = torch.get_rng_state()
    act()
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    count = 0
    while not torch.equal(torch.get_rng_state(), after):
        torch.empty((), dtype=torch.int64).random_()
        count += 1
        assert count < 10
    return count


@pytest.mark.parametrize("arguments", UNSEEDED, ids=str)
def test_the_constructor_draws_nothing(way, arguments):
    def script(loader_type):
        return draws(lambda: way(loader_type, generator=torch.Generator(), **arguments)) + draws(
            lambda: way(loader_type, **arguments)
        )

    assert both_work(script) == 0


@pytest.mark.parametrize("arguments", UNSEEDED[:2] + UNSEEDED[3:], ids=str)
def test_iter_draws_one_base_seed_also_without_shuffle(way, arguments):
    def script(loader_type):
        loader, made = way(loader_type, **arguments), []
        counts = [draws(lambda: made.append(iter(loader)))]
        counts.append(draws(lambda: list(made[0])))
        return counts, made[0]._base_seed

    assert both_work(script)[0] == [1, 0]


def test_shuffle_draws_two_numbers_an_epoch_when_it_first_needs_them(way):
    """The sampler's own at the first next() without workers, at iter() with them."""

    def script(loader_type):
        loader, counts = way(loader_type, batch_size=3, shuffle=True), []
        for _ in range(2):
            made = []
            counts.append(draws(lambda made=made: made.append(iter(loader))))
            counts.append(draws(lambda made=made: next(made[0])))
            counts.append(draws(lambda made=made: list(made[0])))
        return counts

    assert both_work(script) == ([2, 0, 0] if way.workers else [1, 1, 0]) * 2


@pytest.mark.parametrize("way", THREADED, indirect=True)
def test_persistent_workers_draw_2_1_1(way):
    def script(loader_type):
        loader = way(loader_type, shuffle=True, persistent_workers=True)
        return [draws(lambda: list(loader)) for _ in range(3)]

    assert both_work(script) == [2, 1, 1]


@pytest.mark.parametrize("take", [0, 1, 2, 3, 4])
def test_a_generator_gives_base_seed_and_permutation_and_the_global_one_is_untouched(way, take):
    """Also at an early break: the sampler draws a second permutation, and discards it, once it is exhausted."""

    def script(loader_type):
        generator = torch.Generator().manual_seed(5)
        loader = way(loader_type, batch_size=3, shuffle=True, generator=generator)
        iterator = iter(loader)
        states = [iterator._base_seed, generator.get_state()]
        batches = contract.some(iterator, take)
        states.append(generator.get_state())
        if take == 4:
            contract.some(iterator, 1)
        return [*states, generator.get_state(), batches, draws(lambda: list(loader))]

    result = both_work(script)
    assert result[0] == torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(5))
    assert result[-1] == 0


def test_the_permutation_is_randperm_of_the_generator(way):
    def script(loader_type):
        return epoch(way(loader_type, shuffle=True, generator=torch.Generator().manual_seed(5)))

    generator = torch.Generator().manual_seed(5)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    order = torch.randperm(10, generator=generator).tolist()
    assert_same(both_work(script), both_work(lambda loader_type: epoch(way(loader_type, sampler=order))))


def test_the_permutation_without_generator_comes_from_one_seed_of_the_global_one(way):
    torch.manual_seed(3)
    _, seed = (int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = both_work(lambda loader_type: epoch(way(loader_type, shuffle=True)))
    assert_same(shuffled, both_work(lambda loader_type: epoch(way(loader_type, sampler=order))))


def test_epochs_differ_and_come_again_with_the_seed(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=5, shuffle=True)
        return [epoch(loader), epoch(loader)]

    both_work(script)


# --- workers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_seed_is_base_seed_plus_id_for_torch_and_random_and_hashed_for_numpy(workers, own):
    def script(loader_type):
        generator = torch.Generator().manual_seed(9) if own else None
        iterator = iter(loader_type(Map(seeds), None, num_workers=workers, generator=generator))
        return [iterator._base_seed, *contract.events(iterator)]

    base, *samples, _ = both_work(script)
    for _, initial, _, _, worker, _, seed in samples:
        assert initial == seed == base + worker


def test_persistent_workers_keep_their_generators():
    def script(loader_type):
        loader = loader_type(Map(seeds), None, num_workers=2, persistent_workers=True)
        return [*epoch(loader), *epoch(loader)]

    both_work(script)


def test_samples_made_in_this_process_draw_from_its_generators():
    def make(i):
        return torch.rand(3), i

    both_work(lambda loader_type: epoch(loader_type(Map(make), 4, shuffle=True)))


# --- DistributedSampler --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_distributed_sampler_is_seed_plus_epoch_and_pads_by_wrapping(way, rank, drop_last):
    def script(loader_type):
        sampler = DistributedSampler(way.dataset, 3, rank, seed=4, drop_last=drop_last)
        loader = way(loader_type, batch_size=2, sampler=sampler)
        found = [len(loader), epoch(loader), epoch(loader)]
        sampler.set_epoch(1)
        return [*found, epoch(loader)]

    length, first, second, third = both_work(script)
    assert length == 2
    assert_same(first, second)  # without set_epoch
    with pytest.raises(AssertionError):
        assert_same(first, third)


@pytest.mark.parametrize("way", contract.NATIVE + contract.ARENA, indirect=True)
def test_deviation_seed_alone_draws_nothing(way):
    def script(loader_type):
        loader = way(loader_type, batch_size=3, shuffle=True, seed=4)
        return draws(lambda: [epoch(loader), epoch(loader)])

    assert observed(aegis.FlatArenaDataLoader, script)["result"] == 0
    assert observed(LOADERS[0], script)["error"][0] == "TypeError"
