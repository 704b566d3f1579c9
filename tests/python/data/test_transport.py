"""Batches of any data set through slots, against torch's DataLoader: the same batches, errors, order and draws."""

import itertools

import aegis
import numpy as np
import pytest
import torch
from aegis import _C
from aegis.data.collate import InProcessCollate
from samples import SAMPLES, WRONG, Numbered, NumberedStream, Record, Samples, assert_both_same, assert_same, outcomes
from torch.utils.data import DataLoader, Dataset, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("every_size_in_slots", "one_thread")


# --- structures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_every_kind_are_torchs(workers):
    kinds = [kind for kind in SAMPLES if workers == 0 or kind != "conjugate"]  # which torch's workers cannot stack
    loader = FlatArenaDataLoader(Samples(kinds), batch_size=4, num_workers=workers)
    theirs = DataLoader(Samples(kinds), batch_size=4, num_workers=workers)
    for kind, ours, expected in zip(kinds, loader, theirs, strict=True):
        try:
            assert_same(ours, expected)
        except AssertionError as error:
            raise AssertionError(kind) from error
    stats = loader.stats()
    assert stats["slot_batches"] > 20
    # Subclass, shared by the user, mixed dtypes and requiring grad or float8 where stacked.
    assert 2 <= stats["torch_batches"] <= 8
    assert stats["no_memory"] == 0
    assert stats["slot_batches"] + stats["small_batches"] + stats["torch_batches"] == len(kinds)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_collated_fails_as_torchs_does_and_the_rest_goes_on(workers):
    kinds = [kind for pair in itertools.zip_longest(WRONG, ["tensor"] * len(WRONG)) for kind in pair]
    ours, theirs = (
        outcomes(loader_type(Samples(kinds), batch_size=4, num_workers=workers))
        for loader_type in (FlatArenaDataLoader, DataLoader)
    )
    assert len(ours) == len(kinds)
    assert_same(ours, theirs)
    assert sum(isinstance(outcome, tuple) for outcome in ours) == len(WRONG)


class Raising(Samples):
    def __getitem__(self, i):
        if i % 8 == 5:
            raise KeyError("of two\nlines")
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 2])
def test_iteration_goes_on_after_an_error_in_getitem(workers):
    dataset = Raising(["tensor"] * 8)
    ours, theirs = (
        outcomes(loader_type(dataset, batch_size=4, num_workers=workers))
        for loader_type in (FlatArenaDataLoader, DataLoader)
    )
    assert_same(ours, theirs)
    assert [type(outcome) for outcome in ours] == [torch.Tensor, tuple] * 4


def shifted(samples):
    """Inputs and targets as views of one tensor, as language models have them."""
    batch = torch.stack(samples)
    return batch[..., :-1], batch[..., 1:]


def as_record(samples):
    return Record(default_collate(samples), len(samples))


def as_arrays(samples):
    array = torch.stack(samples).numpy()
    fixed, turned, small = array.copy(), np.asfortranarray(array[:, :1]), np.arange(3)
    for constant in (fixed, turned, small):
        constant.flags.writeable = False
    swapped, fields = array.astype(">f4"), np.full(9000, 7, [("a", ">i4"), ("b", "<f8")])
    batch = {"array": array, "t": array.T, "fixed": fixed, "turned": turned, "small": small, "name": "x" * 100_000}
    return {**batch, "swapped": swapped, "fields": fields}


def as_first(samples):
    return samples[0]


def as_requiring_grad(samples):
    return torch.stack(samples).requires_grad_()


def as_mixed_up(samples):
    """As MixUp does: a batch of torch's that does not leave the worker, and one made from it."""
    batch = default_collate(samples)
    return batch.flip(0) * 0.5 + batch * 0.5


def as_nested_views(samples):
    batch = torch.stack(samples)
    return [batch, {"whole": batch, "turned": batch.transpose(0, 1), "bits": batch.view(torch.int32)}]


COLLATE = [shifted, as_record, as_arrays, as_first, as_requiring_grad, as_mixed_up, as_nested_views]


@pytest.mark.parametrize("collate_fn", COLLATE)
def test_custom_collate_functions_get_the_transport(collate_fn):
    dataset = Samples(["tensor"] * 6)
    assert_both_same(dataset, batch_size=4, num_workers=1, collate_fn=collate_fn)
    loader = FlatArenaDataLoader(dataset, batch_size=4, num_workers=1, collate_fn=collate_fn)
    list(loader)
    stats = loader.stats()
    key = "torch_batches" if collate_fn is as_requiring_grad else "slot_batches"
    assert stats[key] == 6
    assert (
        loader.path
        == "arena: collate_fn asks for samples one by one; 1 worker process(es) write batches into shared slots"
    )


def test_tensors_that_share_memory_go_on_sharing_it():
    for loader_type in (DataLoader, FlatArenaDataLoader):
        for inputs, targets in loader_type(Samples(["tensor"] * 3), batch_size=4, num_workers=1, collate_fn=shifted):
            inputs[..., 1] = -1
            assert bool((targets[..., 0] == -1).all())
            assert inputs.untyped_storage().data_ptr() == targets.untyped_storage().data_ptr()


class Keeping:
    """Returns the batch and what it kept of the one before, which only its process refers to."""

    def __init__(self):
        self.kept = []

    def __call__(self, samples):
        batch = default_collate(samples)
        self.kept.append(batch)
        before = self.kept.pop(0).sum((1, 2, 3)) if len(self.kept) > 10 else torch.zeros(4)
        return batch, before


ROWS = {
    "rows": lambda: [torch.rand(3, 50) for _ in range(4)],
    "views": lambda: [torch.rand(4, 3, 50)[i] for i in range(4)],
    "other_order": lambda: [torch.rand(50, 3).t() for _ in range(4)],
    "one_other_order": lambda: [torch.rand(3, 50), torch.rand(50, 3).t()] * 2,
    "conjugate": lambda: [torch.rand(3, 50, dtype=torch.complex64).conj()] * 4,
    "negative": lambda: [torch.rand(3, 50, dtype=torch.complex64).conj().imag] * 4,
    "unaligned": lambda: [torch.arange(400, dtype=torch.uint8)[i : i + 331] for i in range(4)],
    "ragged": lambda: [torch.rand(3, 50), torch.rand(3, 49)] * 2,
    "sparse": lambda: [torch.rand(3, 50), torch.rand(3, 50).to_sparse()] * 2,
    "elsewhere": lambda: [torch.rand(3, 50), torch.rand(3, 50, device="meta")] * 2,
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_are_written_past_the_caches_are_what_stack_gives(kind, monkeypatch):
    monkeypatch.setattr(InProcessCollate, "STREAM_FROM", 1)
    streamed, copy_rows = [], _C.copy_rows
    monkeypatch.setattr(_C, "copy_rows", lambda *arguments: streamed.append(copy_rows(*arguments)))
    samples = ROWS[kind]()
    loaders = (FlatArenaDataLoader(samples, batch_size=4), DataLoader(samples, batch_size=4))
    ours, theirs = map(outcomes, loaders)
    assert_same(ours, theirs)
    assert bool(streamed) == (kind in ("rows", "views", "unaligned"))


def test_what_a_collate_function_keeps_stays_as_it_was():
    dataset = Samples(["tensor"] * 40)
    theirs, ours = (
        [before.tolist() for _, before in loader_type(dataset, batch_size=4, num_workers=1, collate_fn=Keeping())]
        for loader_type in (DataLoader, FlatArenaDataLoader)
    )
    assert ours == theirs
    loader = FlatArenaDataLoader(dataset, batch_size=4, num_workers=1, collate_fn=Keeping())
    assert sum(1 for _ in loader) == 40
    assert loader.stats()["fresh_slots"] < 20, "kept slots come back"


class Lengths(Dataset):
    """Texts of various lengths, padded by the collate function below."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return torch.full((1 + i * 7919 % 3000,), i)


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def test_slots_follow_sizes_that_vary():
    loader = FlatArenaDataLoader(Lengths(), batch_size=8, num_workers=1, collate_fn=padded)
    for ours, theirs in zip(loader, DataLoader(Lengths(), batch_size=8, collate_fn=padded), strict=True):
        assert_same(ours, theirs)
    assert loader.stats()["slot_batches"] == 50
    assert loader.stats()["fresh_slots"] < 20


def test_without_batching_samples_come_as_they_are():
    dataset = Samples(["tensor", "array", "dict", "int", "str", "named", "tuple"])
    for workers in (0, 1):
        assert_both_same(dataset, batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_data_sets_come_the_same_way(workers):
    assert_both_same(NumberedStream(50), batch_size=4, num_workers=workers)
    assert_both_same(NumberedStream(50), batch_size=4, num_workers=workers, drop_last=True)
    loader = FlatArenaDataLoader(NumberedStream(50), batch_size=4, num_workers=workers)
    assert len(list(loader)) == loader.stats()["slot_batches"] > 12
    assert loader.stats()["held_slots"] == 0


# --- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_state_counts_what_was_delivered(workers):
    arguments = {"batch_size": 4, "num_workers": workers, "shuffle": True, "seed": 3}
    loader = FlatArenaDataLoader(Numbered(40), **arguments)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert state["position"] == 12
    rest = list(iterator)
    resumed = FlatArenaDataLoader(Numbered(40), **arguments)
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_held_batches_stay_valid_case59(workers):
    loader = FlatArenaDataLoader(Numbered(120), batch_size=4, num_workers=workers)
    held = list(loader)
    assert [int(x[2, 0, 0, 0]) for x, _ in held] == list(range(2, 120, 4))
    assert len({x.data_ptr() for x, _ in held}) == 30
    assert all(x.data_ptr() % 64 == 0 for x, _ in held)
    assert loader.stats()["held_slots"] == 30
    again = list(loader)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(held, again, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slot_is_free_when_the_last_tensor_over_it_is_gone_case59(workers):
    loader = FlatArenaDataLoader(Numbered(160), batch_size=4, num_workers=workers)
    held = [x for x, _ in loader][:1]
    view, array = held[0][1], held[0][0].numpy()
    weight = torch.ones(3, 128, 128, requires_grad=True)
    loss = (held[0] * weight).sum()
    held.clear()
    assert sum(1 for _ in loader) == 40
    assert bool((view == 1).all())
    assert bool((array == 0).all())
    loss.backward()
    assert bool((weight.grad == 6).all())
    assert loader.stats()["held_slots"] == 1
    del view, array, loss
    assert loader.stats()["held_slots"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_in_steady_use_no_slot_is_made(workers):
    loader = FlatArenaDataLoader(Numbered(400), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    for _ in loader:
        pass
    fresh = loader.stats()["fresh_slots"]
    assert fresh <= 10
    for _ in loader:
        pass
    assert loader.stats()["fresh_slots"] == fresh


def test_small_tensors_that_are_kept_keep_no_slot():
    loader = FlatArenaDataLoader(Numbered(80), batch_size=4, num_workers=1)
    labels = [label for _, label in loader]
    assert torch.equal(torch.cat(labels), torch.arange(80))
    assert loader.stats()["held_slots"] == 0


def test_two_large_tensors_of_a_batch_are_held_apart():
    for workers in (0, 1):
        loader = FlatArenaDataLoader(Samples(["two"] * 20), batch_size=4, num_workers=workers)
        kept = [ints for _, ints, _ in loader]
        assert loader.stats()["held_slots"] == 20
        assert all(int(ints[1, 0, 0, 0]) == 4 * i + 2 for i, ints in enumerate(kept))


def test_batches_outlive_the_loader():
    for workers in (0, 1):
        loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=workers)
        iterator = iter(loader)
        x, _ = next(iterator)
        loader.close()
        loader.close()
        del loader, iterator
        assert torch.equal(x[3], torch.full((3, 128, 128), 3.0))


def test_small_batches_are_left_to_malloc(monkeypatch):
    monkeypatch.undo()
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4)
    list(loader)
    assert loader.stats()["small_batches"] == 6
    assert loader.stats()["slots"] == 0
    large_batches = FlatArenaDataLoader(Numbered(48), batch_size=24)
    list(large_batches)
    assert large_batches.stats()["slot_batches"] == 2
