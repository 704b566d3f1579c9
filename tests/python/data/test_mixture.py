"""Several token data sets by weight."""

import math
import pickle

import aegis
import corpora
import numpy as np
import pytest
import torch
from aegis.data.mixture import whole_weights
from aegis.data.order import SeededSampler
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture
def mixture(tmp_path):
    return corpora.mixture(tmp_path)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_source_is_within_one_sample_of_its_share(mixture, shuffle, world_size):
    def loader(rank):
        return aegis.FlatArenaDataLoader(mixture, 4, shuffle=shuffle, seed=2, rank=rank, world_size=world_size)

    ranks = [loader(rank) for rank in range(world_size)]
    assert ranks[0].path == "native: batches of a TokenMixture are written by the calling thread"
    order = []
    for _ in range(3):
        for step in zip(*ranks, strict=True):
            order += [source for batch in step for source in corpora.sources_of(batch)]
    assert len(order) >= 3 * (mixture.samples - world_size)
    had = np.cumsum(np.eye(3)[order], axis=0)
    share = np.arange(1, len(order) + 1)[:, None] * np.array([3, 1, 2]) / 6
    drift = 0 if world_size == 1 else 3 * world_size  # of samples that nobody gets at the ends of epochs
    assert (np.abs(had - share) < 1 + drift).all()


def test_a_source_is_gone_through_before_it_comes_again_case23(mixture):
    loader = aegis.FlatArenaDataLoader(mixture, 5, shuffle=True, seed=7, num_workers=1)
    seen = [[], [], []]
    for _ in range(6):
        for batch in loader:
            for source, row in zip(corpora.sources_of(batch), corpora.rows(batch), strict=True):
                seen[source].append(row)
    for own, length in zip(seen, mixture.lengths, strict=True):
        passes = [own[at : at + length] for at in range(0, len(own) - length + 1, length)]
        assert len(passes) >= 2
        assert all(len(set(one)) == length for one in passes)
        assert all(set(one) == set(passes[0]) and one != passes[0] for one in passes[1:])


def test_an_epoch_ends_where_a_source_stops(tmp_path):
    mixture = corpora.mixture(tmp_path, exhausted=["repeat", "stop", "repeat"])
    assert mixture.samples < mixture.total * 6
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        sources = [source for batch in batches for source in corpora.sources_of(batch)]
        own = [
            row
            for batch in batches
            for s, row in zip(corpora.sources_of(batch), corpora.rows(batch), strict=True)
            if s == 1
        ]
        assert len(sources) == mixture.samples
        assert len(set(own)) == len(own) == mixture.lengths[1]
        epochs.append(own)
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) == set(epochs[1])
    assert corpora.mixture(tmp_path, exhausted="stop", samples=11).samples == 11


def test_batches_are_those_of_the_sources_on_every_way(tmp_path):
    fields = ("document_ids", "cu_seqlens", "valid")
    sources = [
        corpora.dataset(tmp_path, "a", 800, layout="packed", fields=fields),
        corpora.dataset(tmp_path, "b", 600, first=10_000, dtype="uint16", fields=fields),
    ]
    mixture = aegis.TokenMixture(sources, [0.25, 0.75])
    native = list(aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=3))
    python = list(
        aegis.FlatArenaDataLoader(
            mixture, 4, shuffle=True, seed=3, collate_fn=lambda s: torch.utils.data.default_collate(s)
        )
    )
    sampler = SeededSampler(mixture, 4, shuffle=True, seed=3)
    plain = list(torch.utils.data.DataLoader(mixture, 4, sampler=sampler, num_workers=1))
    for batch, *others in zip(native, python, plain, strict=True):
        for other in others:
            assert type(batch) is type(other) is aegis.TokenBatch
            assert all(torch.equal(batch[name], other[name]) for name in batch)
    first = mixture[len(sources[0]) + 2]
    assert torch.equal(first.inputs, sources[1][2].inputs)


def test_choices_at_ten_million_steps_need_no_replay_case28(mixture):
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    state = {**loader.state_dict(), "epoch": 10**7, "position": 8, "started": True}
    loader.load_state_dict(state)
    batch = next(iter(loader))
    number = 10**7 * mixture.samples + 8
    expected = [mixture._round.at(number + at)[0] for at in range(4)]
    assert corpora.sources_of(batch) == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=8))
def test_weights_become_whole_numbers_near_their_shares(weights):
    whole = whole_weights(weights)
    assert sum(whole) <= 2**20
    for weight, own in zip(weights, whole, strict=True):
        assert abs(weight / math.fsum(weights) - own / sum(whole)) <= 2**-20


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([5, 10], [1, 2]),
        ([0.123456, 0.876544], [1929, 13696]),
        (np.array([0.25, 0.75], np.float32), [1, 3]),
        (torch.tensor([1, 3]), [1, 3]),
        ([1 << 60, 1 << 61], [1, 2]),
        ([1] * 5000, [1] * 5000),
    ],
)
def test_weights_of_few_decimals_are_exact(weights, whole):
    assert whole_weights(weights) == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1, 0, 1]}, "weights: expected numbers above 0, got 0 for source 1: leave a source out"),
        ({"weights": [1, -0.5, 1]}, "weights: expected numbers above 0, got -0.5 for source 1"),
        ({"weights": [1, math.nan, 1]}, "weights: expected numbers above 0, got nan for source 1"),
        ({"weights": [math.inf, 1, 1]}, "weights: expected numbers above 0, got inf for source 0"),
        ({"weights": [1, 1e-9, 1]}, r"weights: expected at least 2\*\*-20 of all, got 1e-09 for source 1"),
        ({"weights": [10**30, 1, 1]}, r"weights: expected at least 2\*\*-20 of all, got 1 for source 1"),
        ({"weights": [1, 1]}, "weights: expected one for each of 3 sources, got 2"),
        ({"exhausted": "end"}, "exhausted: expected 'repeat' or 'stop', got 'end'"),
        ({"exhausted": ["stop"]}, "exhausted: expected one for each of 3 sources, got 1"),
        ({"samples": 0}, "samples: expected at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        corpora.mixture(tmp_path, **arguments)


def test_sources_must_fit_each_other_and_the_loader(tmp_path, mixture):
    source = mixture.sources[0]
    for other, message in (
        (corpora.dataset(tmp_path, "d", block=8), "expected one block_size, got 16 and, in source 1, 8"),
        (
            corpora.dataset(tmp_path, "e", fields="valid"),
            r"expected one fields, got \(\) and, in source 1, \('valid',\)",
        ),
        (range(3), "sources: expected data sets of tokens, got a range as source 1"),
    ):
        with pytest.raises(ValueError, match=message):
            aegis.TokenMixture([source, other])
    with pytest.raises(ValueError, match="position: expected at least 0, got -1"):
        aegis._C.MixtureRound([1, 2]).count(0, -1)
    with pytest.raises(ValueError, match="sources: expected at least one"):
        aegis.TokenMixture([])
    with pytest.raises(ValueError, match="seed: expected one with a TokenMixture"):
        aegis.FlatArenaDataLoader(mixture, 4)
    with pytest.raises(TypeError, match="a TokenMixture has no length"):
        torch.utils.data.DataLoader(mixture, 4, shuffle=True)


def test_a_mixture_travels_to_other_processes(tmp_path, mixture):
    copy = pickle.loads(pickle.dumps(mixture))
    assert (copy.weights, copy.fingerprint(), copy.samples) == (mixture.weights, mixture.fingerprint(), mixture.samples)
    sampler = SeededSampler(mixture, 4, shuffle=True, seed=3)
    spawned = torch.utils.data.DataLoader(
        mixture, 4, sampler=sampler, num_workers=1, multiprocessing_context="spawn", drop_last=True
    )
    loader = pickle.loads(pickle.dumps(aegis.FlatArenaDataLoader(copy, 4, shuffle=True, seed=3, drop_last=True)))
    for batch, ours in zip(spawned, loader, strict=True):
        assert all(map(torch.equal, batch, ours))


def test_a_state_that_does_not_fit_changes_nothing(mixture):
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    state = loader.state_dict()
    before = [corpora.rows(batch) for batch in loader]
    other = {**state["mixture"], "weights": [1, 1, 1]}
    with pytest.raises(ValueError, match=f"position 0 to {mixture.samples}, got 10000"):
        loader.load_state_dict({**state, "mixture": other, "position": 10_000})
    with pytest.raises(ValueError, match="state: expected that of a mixture"):
        loader.load_state_dict({**state, "mixture": None})
    loader.load_state_dict(state)
    assert [corpora.rows(batch) for batch in loader] == before


def test_thousands_of_weights_become_whole_numbers_at_once():
    weights = np.random.default_rng(0).random(4000) + 0.1
    whole = np.array(whole_weights(weights.tolist()))  # each source's fraction of the sum is exact, all of them are not
    assert whole.sum() == 2**20
    assert (np.abs(whole / 2**20 - weights / weights.sum()) <= 2**-20).all()


def with_changed_weights(tmp_path, mixture, batches):
    """A loader that took up other weights after so many batches of four."""
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    epochs, rest = divmod(batches, len(loader))
    for _ in range(epochs):
        list(loader)
    for _, _ in zip(range(rest), loader, strict=False):
        pass
    changed = aegis.FlatArenaDataLoader(corpora.mixture(tmp_path, (1, 2, 3)), 4, shuffle=True, seed=1)
    changed.load_state_dict(loader.state_dict())
    return changed


def test_an_epoch_is_not_entered_before_its_weights_were_changed(tmp_path, mixture):
    loader = with_changed_weights(tmp_path, mixture, 10)
    list(loader)
    loader.set_epoch(0)
    with pytest.raises(ValueError, match=r"epoch: 0 can be entered from sample 40 on, .* got sample 0"):
        iter(loader)
    state = {**loader.state_dict(), "epoch": 0, "position": 8}
    with pytest.raises(ValueError, match="weights were changed at sample 40 of epoch 0"):
        loader.load_state_dict(state)
    order = mixture.order(0, loader.sampler.base, seed=1, shuffle=True)
    with pytest.raises(ValueError, match="position: expected at least 40, got 39"):
        order.sample(39)


def test_lengths_and_counters_after_weights_were_changed_in_a_later_epoch(tmp_path, mixture):
    per_epoch = -(-mixture.samples // 4)
    loader = with_changed_weights(tmp_path, mixture, 2 * per_epoch + 3)
    assert len(loader) == per_epoch
    assert loader.stats()["dropped_samples"] == 0
    assert len(list(loader)) == per_epoch - 3
    loader.set_epoch(1)
    with pytest.raises(ValueError, match="epoch: expected at least 2, where the weights were changed, got 1"):
        iter(loader)


def test_samples_of_an_epoch_may_change_at_resume(tmp_path):
    def loader(samples):
        data = corpora.mixture(tmp_path, samples=samples)
        return aegis.FlatArenaDataLoader(data, 4, seed=1)

    whole = loader(500)
    expected = [row for batch in whole for row in corpora.rows(batch)]
    short = loader(100)
    list(short)
    for _, _ in zip(range(5), short, strict=False):
        pass
    longer = loader(200)
    longer.load_state_dict(short.state_dict())
    rest = [row for batch in longer for row in corpora.rows(batch)]
    following = [row for batch in longer for row in corpora.rows(batch)]
    assert len(rest) == 180
    assert rest + following == expected[120:500]


@pytest.mark.parametrize(
    "change",
    [{"starts": [[0, -1], [0, 0], [0, 0]]}, {"starts": [[0, 0]]}, {"weights": [0, 1, 1]}, {"lengths": [0, 1, 1]}],
)
def test_a_mixture_state_that_is_none_changes_nothing(mixture, change):
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="state: not the state of such a mixture"):
        loader.load_state_dict({**state, "epoch": 1, "mixture": {**state["mixture"], **change}})
    assert loader.state_dict() == state


def test_numbers_beyond_64_bits_are_refused_by_name(mixture):
    loader = aegis.FlatArenaDataLoader(mixture, 4, shuffle=True, seed=1)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=r"epoch: expected 0 to 2\*\*63 - 1"):
        loader.set_epoch(2**63)
    with pytest.raises(ValueError, match=r"position to be an int from 0 to 2\*\*63 - 1"):
        loader.load_state_dict({**state, "position": 2**70})
    loader.set_epoch(2**61)
    with pytest.raises(ValueError, match=r"epoch: expected one with fewer than 2\*\*62 samples before it"):
        iter(loader)
    with pytest.raises(TypeError, match="float"):
        mixture[1.5]
