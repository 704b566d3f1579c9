"""Batches of any data set through slots, against torch's DataLoader: the same batches, errors, order and draws."""

import itertools
import multiprocessing
import pickle
import random
import warnings
from collections import UserList

import aegis
import numpy as np
import pytest
import torch
from aegis import _C
from aegis.data.collate import InProcessCollate
from aegis.data.torch_iter import MultiProcessIter, SingleProcessIter
from samples import SAMPLES, WRONG, Numbered, NumberedStream, Pair, Record, Samples, assert_same, large, outcomes
from torch.utils.data import DataLoader, Dataset, default_collate

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _every_size_in_slots(monkeypatch):
    monkeypatch.setattr(InProcessCollate, "MIN_BYTES", 1)


def both(dataset, **arguments):
    """Two epochs by torch's class and by ours from the same seed, and what is drawn from the generator afterwards."""
    found = []
    for loader_type in (DataLoader, FlatArenaDataLoader):
        torch.manual_seed(7)
        loader = loader_type(dataset, **arguments)
        found.append([*loader, *loader, torch.rand(2)])
    return found


def assert_both_same(dataset, **arguments):
    theirs, ours = both(dataset, **arguments)
    assert_same(ours, theirs)


# --- structures ----------------------------------------------------------------------------------------------------


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
    return {"array": array, "t": array.T, "fixed": fixed, "turned": turned, "small": small, "name": "x" * 100_000}


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


# --- torch's arguments ---------------------------------------------------------------------------------------------


class Drawing(Dataset):
    """Every generator a worker seeds, and what it knows of itself."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        where = (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed % 2**31)
        drawn = (float(torch.rand(())), random.random(), np.random.random_sample())  # noqa: NPY002
        return i, *where, *(drawn if info is not None else ())


def draw_also(worker):
    torch.rand(worker + 1)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_seeded_as_torchs_case22(persistent):
    arguments = {"batch_size": 3, "num_workers": 2, "worker_init_fn": draw_also, "persistent_workers": persistent}
    assert_both_same(Drawing(), shuffle=True, **arguments)
    theirs, ours = (
        [*loader_type(Drawing(), generator=torch.Generator().manual_seed(5), **arguments)]
        for loader_type in (DataLoader, FlatArenaDataLoader)
    )
    assert_same(ours, theirs)


def test_draws_in_this_process_are_torchs():
    assert_both_same(Drawing(), batch_size=3, shuffle=True)


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_prefetching_and_the_last_batch(prefetch, drop_last):
    assert_both_same(Numbered(22), batch_size=4, num_workers=2, prefetch_factor=prefetch, drop_last=drop_last)


class Waiting(Dataset):
    """Item 0 is not ready before item 5 is."""

    def __init__(self):
        self.last = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 0:
            assert self.last.wait(60)
        if i == 5:
            self.last.set()
        return large(i)


def test_in_order_false_gives_batches_as_they_come_case34():
    orders = []
    for loader_type in (DataLoader, FlatArenaDataLoader):
        loader = loader_type(
            Waiting(), None, num_workers=2, in_order=False, prefetch_factor=1, multiprocessing_context="fork"
        )
        orders.append([int(x.view(-1)[0]) for x in loader])
    assert orders == [[1, 2, 3, 4, 5, 0]] * 2


class Unready(Dataset):
    def __init__(self, event):
        self.event = event

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.event.wait(60)
        return large(i)


def test_timeout_has_torchs_message():
    event = multiprocessing.get_context("fork").Event()
    loader = FlatArenaDataLoader(Unready(event), num_workers=1, timeout=0.2, multiprocessing_context="fork")
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iterator)
    event.set()


class Ending(Samples):
    def __getitem__(self, i):
        if i == 5:
            raise StopIteration
        return super().__getitem__(i)


def test_stop_iteration_in_getitem_is_as_in_torch_case66():
    for workers in (0, 1):
        ours, theirs = (
            outcomes(loader_type(Ending(["tensor"] * 3), batch_size=4, num_workers=workers))
            for loader_type in (FlatArenaDataLoader, DataLoader)
        )
        assert_same(ours, theirs)


def test_empty_data_sets_case64():
    for workers in (0, 1):
        assert list(FlatArenaDataLoader([], num_workers=workers)) == []
        with pytest.raises(ValueError, match="num_samples=0"):
            FlatArenaDataLoader([], shuffle=True, num_workers=workers)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_case12_case14(context):
    arguments = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": context}
    loader = FlatArenaDataLoader(Numbered(24), **arguments)
    assert_same(list(loader), list(DataLoader(Numbered(24), batch_size=4)))
    assert loader.stats()["slot_batches"] == 6
    assert loader.stats()["torch_batches"] == 0


def test_what_cannot_be_sent_to_a_spawned_worker_fails_as_in_torch_case13_case14():
    class Local(Numbered):
        pass

    for dataset, collate_fn in ((Numbered(4), lambda samples: samples), (Local(4), None)):
        errors = []
        for loader_type in (DataLoader, FlatArenaDataLoader):
            loader = loader_type(dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=collate_fn)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
                    iter(loader)
            errors.append((caught.type, str(caught.value)))
        assert errors[0] == errors[1]


def test_a_loader_pickles_also_after_use_case13():
    for workers in (0, 1):
        loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=workers)
        first = list(loader)
        assert_same(list(pickle.loads(pickle.dumps(loader))), first)


def test_two_iterators_of_one_loader_do_not_mix():
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=1)
    for (one, _), (other, _) in zip(loader, loader, strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert len(loader._delivery.transport._arenas) == 2


def test_iterators_are_torchs_classes_and_say_what_they_do():
    for workers, kind in ((0, SingleProcessIter), (1, MultiProcessIter)):
        loader = FlatArenaDataLoader(Numbered(4), num_workers=workers)
        assert loader.path.startswith("arena: the samples of a Numbered are made by Python; ")
        assert type(iter(loader)) is kind


# --- state ---------------------------------------------------------------------------------------------------------


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


# --- memory --------------------------------------------------------------------------------------------------------


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


# --- pinning -------------------------------------------------------------------------------------------------------


class Custom:
    """A batch that pins itself."""

    def __init__(self, samples):
        self.images = torch.stack([image for image, _ in samples])
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def test_pin_memory_without_an_accelerator_warns_as_torch():
    for workers in (0, 1):
        texts = []
        for loader_type in (DataLoader, FlatArenaDataLoader):
            with pytest.warns(UserWarning, match="no accelerator") as caught:
                list(loader_type(Numbered(8), batch_size=4, num_workers=workers, pin_memory=True))
            texts.append([str(warning.message) for warning in caught])
        assert texts[0] == texts[1]


@pytest.fixture
def pinning(monkeypatch):
    """An accelerator that is not there: pinned tensors are copies that this list knows."""
    pinned = []

    def pin(tensor, *_):
        if any(known is tensor for known in pinned):
            return tensor
        pinned.append(tensor.clone())
        return pinned[-1]

    def pinned_memory(shape, dtype):
        pinned.append(torch.empty(shape, dtype=dtype))
        return pinned[-1]

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(SingleProcessIter, "pinned_memory", staticmethod(pinned_memory))
    return pinned


@pytest.mark.parametrize("workers", [0, 1])
def test_pinning_copies_out_of_the_slot_and_keeps_types_case60(pinning, workers):
    kinds = ["named", "dict", "ordered", "userdict", "userlist", "tuple", "str"]
    loader = FlatArenaDataLoader(Samples(kinds), batch_size=4, num_workers=workers, pin_memory=True)
    batches = list(loader)
    assert_same(batches, list(DataLoader(Samples(kinds), batch_size=4)))
    named, *_ = batches
    assert type(named) is Pair
    assert all(any(known is tensor for known in pinned_list) for pinned_list in (pinning,) for tensor in named)
    assert type(batches[4]) is UserList
    assert loader.stats()["held_slots"] == 0


def test_pinning_calls_the_method_of_custom_batches_case60(pinning):
    loader = FlatArenaDataLoader(Numbered(8), batch_size=4, num_workers=1, pin_memory=True, collate_fn=Custom)
    batches = list(loader)
    assert all(batch.pinned for batch in batches)
    assert [int(batch.images[1, 0, 0, 0]) for batch in batches] == [1, 5]


def test_an_error_while_pinning_surfaces_and_iteration_goes_on_case6(pinning, monkeypatch):
    def pin(batch, device):
        if int(batch[1][0]) == 8:
            raise RuntimeError("no pinned memory left")
        return batch

    monkeypatch.setattr(MultiProcessIter, "pin", staticmethod(pin))
    loader = FlatArenaDataLoader(Numbered(24), batch_size=4, num_workers=1, pin_memory=True)
    found = outcomes(loader)
    assert found[2] == (RuntimeError, "no pinned memory left", "no pinned memory left")
    assert [int(labels[0]) for _, labels in found[:2] + found[3:]] == [0, 4, 12, 16, 20]
