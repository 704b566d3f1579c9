"""Going on exactly: other ranks, threads and batch sizes, later epochs, packed rows, mixtures, more files."""

import json
import random

import aegis
import corpora
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ["stream", "packed", "mixture", "stopping"]


@pytest.fixture(scope="module", params=KINDS)
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mixture":
        return corpora.mixture(folder, samples=90)
    if request.param == "stopping":
        return corpora.mixture(folder, exhausted=["repeat", "stop", "repeat"])
    return corpora.dataset(folder, layout=request.param)


def loaders(data, batch_size, world_size, threads=0, **arguments):
    return [
        aegis.FlatArenaDataLoader(
            data, batch_size, shuffle=True, seed=5, rank=rank, world_size=world_size, num_workers=threads, **arguments
        )
        for rank in range(world_size)
    ]


def uninterrupted(data, epochs):
    (loader,) = loaders(data, 1, 1)
    return [[row for batch in loader for row in corpora.rows(batch)] for _ in range(epochs)]


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_samples_and_their_order_are_those_of_the_uninterrupted_run_case25_case27_case29_case31(data, seed):
    draw = random.Random(seed)
    whole = uninterrupted(data, 4)
    seen, state = [[] for _ in whole], None
    while True:
        world_size, batch_size = draw.randint(1, 4), draw.randint(1, 9)
        ranks = loaders(data, batch_size, world_size, draw.randint(0, 1))
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        epoch = ranks[0].state_dict()["epoch"]
        if epoch == len(whole):
            break
        iterators = [iter(loader) for loader in ranks]
        for _ in range(draw.randint(1, 60)):
            step = [next(iterator, None) for iterator in iterators]
            if step[0] is None:
                break
            seen[epoch] += [row for batch in step for row in corpora.rows(batch)]
        state, *others = [loader.state_dict() for loader in ranks]
        assert all(other == state for other in others)
        for loader in ranks:
            loader.close()
    for own, expected in zip(seen, whole, strict=True):
        assert own == expected[: len(own)]
        assert len(own) > len(expected) - 4  # fewer than world_size go to nobody


def test_new_weights_go_on_where_every_source_was(tmp_path):
    (before,) = loaders(corpora.mixture(tmp_path, samples=60), 5, 1)
    iterator = iter(before)
    head = [next(iterator) for _ in range(7)]
    state = json.loads(json.dumps(before.state_dict()))
    (after,) = loaders(corpora.mixture(tmp_path, (1, 4, 1), samples=60), 5, 1)
    after.load_state_dict(state)
    rest = list(after) + list(after)
    shares = np.bincount([source for batch in rest for source in corpora.sources_of(batch)], minlength=3)
    n = shares.sum()
    assert n == 25 + 60
    assert (abs(shares - n * np.array([1, 4, 1]) / 6) < 1).all()
    for source, length in enumerate(after.dataset.lengths):
        own = [
            row
            for b in head + rest
            for s, row in zip(corpora.sources_of(b), corpora.rows(b), strict=True)
            if s == source
        ]
        first_pass = own[:length]
        assert len(set(first_pass)) == len(first_pass)
    again = after.state_dict()
    (third,) = loaders(corpora.mixture(tmp_path, (1, 4, 1), samples=60), 3, 1)
    third.load_state_dict(again)
    expected = [row for batch in after for row in corpora.rows(batch)]
    assert [row for batch in third for row in corpora.rows(batch)] == expected


def files(folder, count):
    paths = []
    for at in range(count):
        paths.append(folder / f"{at}.bin")
        if not paths[-1].exists():
            np.arange(1000 * at, 1000 * at + 300 + at, dtype=np.int32).tofile(paths[-1])
    return aegis.TokenDataset(paths, 16, dtype="int32")


def test_a_changed_data_set_is_refused_by_the_name_of_the_file_case32(tmp_path):
    (loader,) = loaders(files(tmp_path, 3), 4, 1)
    state = loader.state_dict()
    np.arange(301, dtype=np.int32)[::-1].tofile(tmp_path / "1.bin")
    (changed,) = loaders(files(tmp_path, 3), 4, 1)
    for extend in (False, True):
        with pytest.raises(ValueError, match=r"the data has changed: file 1, .*/1\.bin, is not what it was"):
            changed.load_state_dict(state, extend=extend)
    (fewer,) = loaders(files(tmp_path, 1), 4, 1)
    with pytest.raises(ValueError, match="expected 3 files, got 1: the last are missing"):
        fewer.load_state_dict(state, extend=True)
    (cut,) = loaders(aegis.TokenDataset(loader.dataset.paths, 8, dtype="int32"), 4, 1)
    with pytest.raises(ValueError, match="the data has changed"):
        cut.load_state_dict(state, extend=True)
    torchs = aegis.FlatArenaDataLoader(files(tmp_path, 3), 4)
    with pytest.raises(ValueError, match="extend: expected a loader with seed="):
        torchs.load_state_dict(torchs.state_dict(), extend=True)


@pytest.mark.parametrize("steps", [0, 3])
def test_appended_files_come_with_the_next_epoch_case32(tmp_path, steps):
    (loader,) = loaders(files(tmp_path, 2), 4, 1)
    iterator = iter(loader)
    if steps == 0:
        list(iterator)
    head = [next(iterator) for _ in range(steps)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [row for batch in iterator for row in corpora.rows(batch)]
    more = files(tmp_path, 3)
    (grown,) = loaders(more, 4, 1)
    with pytest.raises(ValueError, match=r"expected 2 files, got 3, with .*/2\.bin the first that is new: extend=True"):
        grown.load_state_dict(state)
    grown.load_state_dict(state, extend=True)
    if head:
        first = iter(grown)
        begun = [row for _ in range(2) for row in corpora.rows(next(first))]
        again = json.loads(json.dumps(grown.state_dict()))
        begun += [row for batch in first for row in corpora.rows(batch)]
        assert begun == rest
        (third,) = loaders(more, 1, 1)
        third.load_state_dict(again)
        assert [row for batch in third for row in corpora.rows(batch)] == rest[8:]
    following = [row for batch in grown for row in corpora.rows(batch)]
    assert len(set(following)) == len(following) == len(more)


def test_a_mixture_whose_source_grew_goes_on_case32(tmp_path):
    def make(count):
        return aegis.TokenMixture([files(tmp_path, count), corpora.dataset(tmp_path, "c", first=50_000)], [1, 1])

    (loader,) = loaders(make(2), 4, 1)
    iterator = iter(loader)
    head = [row for _ in range(3) for row in corpora.rows(next(iterator))]
    (grown,) = loaders(make(3), 4, 1)
    with pytest.raises(ValueError, match="extend=True goes on"):
        grown.load_state_dict(loader.state_dict())
    grown.load_state_dict(loader.state_dict(), extend=True)
    rest = [row for batch in grown for row in corpora.rows(batch)]
    assert len(rest) == grown.dataset.samples - len(head)
    steady = [row for row in head + rest if np.frombuffer(row, np.int64)[0] >= 50_000]
    assert len(set(steady[: grown.dataset.lengths[1]])) == min(len(steady), grown.dataset.lengths[1])


def test_a_change_in_the_middle_of_an_aegis_file_is_seen_and_told_by_file(tmp_path):
    paths = [tmp_path / "0.aegis", tmp_path / "1.aegis"]
    for path in paths:
        write_aegis(path, np.arange(40_000) % 1000)
    state = aegis.FlatArenaDataLoader(aegis.TokenDataset(paths, 16), 4, seed=1).state_dict()
    write_aegis(paths[1], np.where(np.arange(40_000) == 20_000, 1, np.arange(40_000) % 1000))
    loader = aegis.FlatArenaDataLoader(aegis.TokenDataset(paths, 16), 4, seed=1)
    with pytest.raises(ValueError, match=r"state: the data has changed: file 1, .*1\.aegis, is not what it was"):
        loader.load_state_dict(state)


def write_aegis(path, ids):
    writer = aegis._C.AegisWriter(str(path), "uint16")
    writer.add(ids.astype(np.uint16))
    writer.finish(0, bytes(32))


@pytest.mark.parametrize(
    ("other", "change"),
    [({"block_size": 32}, {}), ({"stride": 8}, {}), ({}, {"epoch_samples": [[0, 10**9]]}), ({}, {"epoch_samples": 5})],
)
def test_samples_cut_in_another_way_and_epochs_that_cannot_be_are_refused(tmp_path, other, change):
    path, _ = corpora.corpus(tmp_path, "a", 1500)
    given = {"block_size": 16, "dtype": "int32"}
    state = aegis.FlatArenaDataLoader(aegis.TokenDataset(path, **given), 4, seed=1).state_dict()
    loader = aegis.FlatArenaDataLoader(aegis.TokenDataset(path, **{**given, **other}), 4, seed=1)
    message = "the files are what they were, but the samples" if other else "state: expected epoch_samples"
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**state, **change})
