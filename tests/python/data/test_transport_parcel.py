"""Packing and unpacking of batches within one process: any structure comes back as it was."""

import gc
import pickle
from collections import deque

import aegis.data.parcel as parcel
import aegis.data.worker as worker
import numpy as np
import pytest
import torch
from aegis.data.dtypes import CODES
from aegis.data.slots import SlotArena
from aegis.data.transport import Transport
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import Marked, Pair, Record, assert_same, large
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map


class Wire:
    """A parent and a worker in one process: the queue between them is a pickle."""

    def __init__(self):
        self.transport = Transport()
        self.arena = SlotArena()
        self.worker = worker.WorkerSlots(self.arena.file, 0)
        self.requests = 0

    def send(self, make, samples=None):
        request, self.requests = self.requests, self.requests + 1
        worker._receive(None, self.arena.lend(request))
        self.arena.sent(request, 0)
        try:
            sent = self.worker.collate(make, samples)
        except Exception:
            self.arena.keep(request)
            raise
        return self.arena.open(request, pickle.loads(pickle.dumps(sent)), self.transport)

    def stats(self):
        return {name: sum(lane[name] for lane in self.arena.stats()) for name in ("slots", "held", "fresh")}


@pytest.fixture
def wire(monkeypatch):
    """With slots for anything of more than 64 bytes, and torch's own collation restored afterwards."""
    before = dict(default_collate_fn_map)
    for module in (parcel, worker):
        monkeypatch.setattr(module, "SMALL", 64)
    yield Wire()
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


dtypes = st.sampled_from([*CODES, torch.float8_e5m2])
shapes = st.lists(st.integers(0, 6), max_size=5).map(tuple)


@st.composite
def tensors(draw):
    dtype, shape = draw(dtypes), draw(shapes)
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    values = torch.arange(nbytes, dtype=torch.int64).add(draw(st.integers(0, 255)))
    values = (values % 2 if dtype is torch.bool else values).to(torch.uint8)
    tensor = values.view(dtype).view(shape)
    if tensor.dim() > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, 1)
    if tensor.dim() > 0 and tensor.shape[0] > 2 and draw(st.booleans()):
        tensor = tensor[draw(st.integers(0, 1)) :: draw(st.integers(1, 2))]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


@st.composite
def arrays(draw):
    array = np.arange(draw(st.integers(0, 300))).astype(draw(st.sampled_from(["u1", "i4", "f8", "c8", "M8[s]"])))
    if len(array) % 6 == 0 and draw(st.booleans()):
        array = np.asfortranarray(array.reshape(-1, 6))
    array.flags.writeable = draw(st.booleans())
    return array


leaves = st.one_of(
    tensors(), arrays(), st.integers(), st.floats(allow_nan=False), st.text(max_size=200), st.binary(max_size=200),
    st.none(), st.booleans(),
)  # fmt: skip
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.tuples(inner, inner).map(lambda pair: Record(*pair)),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches)
def test_any_batch_comes_back_as_multiprocessing_brings_it(wire, batch):
    # multiprocessing's pickles give writable arrays back, in the order that they had in memory.
    expected = pickle.loads(pickle.dumps(batch, protocol=4)) if not _has_tensors(batch) else _writable(batch)
    found = wire.send(lambda _: batch)
    assert_same(found, expected)
    del found
    assert wire.stats()["held"] == 0


def _has_tensors(batch):
    return b"torch" in pickle.dumps(batch)


def _writable(batch):
    if isinstance(batch, np.ndarray):
        return pickle.loads(pickle.dumps(batch, protocol=4))
    if isinstance(batch, Record):
        return Record(_writable(batch.image), _writable(batch.label))
    if isinstance(batch, Pair):
        return Pair(*map(_writable, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(_writable, batch))
    if isinstance(batch, dict):
        return {key: _writable(value) for key, value in batch.items()}
    return batch


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sample=batches)
def test_any_samples_are_collated_as_by_torch(wire, sample):
    try:
        expected = default_collate([sample] * 3)
    except Exception as error:
        with pytest.raises(type(error)):
            wire.send(default_collate, [sample] * 3)
    else:
        assert_same(wire.send(default_collate, [sample] * 3), expected)


def test_views_of_one_storage_stay_views_of_one_storage(wire):
    whole = torch.arange(100.0)
    batch = wire.send(lambda _: [whole, whole[::2], {"turned": whole.view(10, 10).t()}, whole.view(torch.int32), whole])
    batch[0][4] = -1
    assert batch[1][2] == -1
    assert batch[2]["turned"][4, 0] == -1
    assert batch[4] is batch[0]
    assert len({tensor.untyped_storage().data_ptr() for tensor in (*batch[:2], batch[3])}) == 1
    assert wire.stats() == {"slots": 1, "held": 1, "fresh": 1}


def test_a_small_view_of_something_large_is_left_to_torch(wire):
    data = torch.arange(10_000.0)
    assert torch.equal(wire.send(lambda _: data[:100]), torch.arange(100.0))
    assert data.is_shared(), "moved once, for all the batches to come"
    assert wire.transport.torch_batches == 1


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "make",
    [
        lambda: large(1).as_subclass(Marked),
        lambda: large(1).to_sparse(),
        lambda: large(1).requires_grad_(),
        lambda: large(1).share_memory_(),
        lambda: torch.nn.Parameter(large(1)),
    ],
)
def test_what_torch_treats_in_its_own_way_is_left_to_it(wire, make):
    made = make()
    found = wire.send(lambda _: {"a": made, "b": large(2)})
    assert type(found["a"]) is type(made)
    assert found["a"].requires_grad == made.requires_grad
    assert torch.equal(found["a"].to_dense(), made.to_dense())
    assert torch.equal(found["b"], large(2))


def test_a_meta_tensor_comes_back(wire):
    found = wire.send(lambda _: torch.empty(1000, device="meta"))
    assert (found.device.type, found.shape) == ("meta", (1000,))


def test_small_tensors_come_in_memory_of_their_own(wire):
    found = wire.send(lambda _: [torch.arange(4), torch.arange(100)])
    found[0].resize_(1000)
    assert wire.stats()["held"] == 1


def test_what_tensors_and_arrays_consist_of_is_not_in_the_message(wire, monkeypatch):
    sizes, dumps = [], pickle.dumps
    monkeypatch.setattr(pickle, "dumps", lambda *arguments: sizes.append(dumps(*arguments)) or sizes[-1])
    for n in (1000, 1_000_000):
        batch = wire.send(default_collate, [{"x": torch.ones(n), "y": np.zeros((n, 2))}] * 4)
        assert (batch["x"].shape, batch["y"].shape) == ((4, n), (4, n, 2))
    small, large_ = map(len, sizes)
    assert large_ - small < 100
    assert large_ < 1000


def test_slots_are_used_again_and_stay_warm(wire):
    addresses = deque(maxlen=20)
    for i in range(60):
        batch = wire.send(default_collate, [torch.full((50,), i)] * 4)
        assert bool((batch == i).all())
        addresses.append(batch.data_ptr())
    assert len(set(addresses)) == 2
    assert wire.stats() == {"slots": 2, "held": 1, "fresh": 2}


def test_what_the_worker_refers_to_is_not_written_before_it_lets_go(wire):
    kept = []

    def collate(samples):
        batch = default_collate(samples)
        if int(samples[0][0]) == 3:
            kept.append(batch)
        return batch

    for i in range(12):
        batch = wire.send(collate, [torch.full((50,), i)] * 4)
    assert bool((kept[0] == 3).all())
    assert wire.stats() == {"slots": 3, "held": 2, "fresh": 3}
    kept.clear()
    for i in range(12):
        batch = wire.send(collate, [torch.full((50,), 20 + i)] * 4)
    del batch
    assert wire.stats()["held"] == 0


def test_slots_of_a_batch_that_failed_come_back(wire):
    errors = []

    def collate(samples):
        batch = default_collate(samples)
        if int(samples[0][0]) % 2:
            errors.append(RuntimeError("odd"))  # its traceback keeps the batch
            raise errors[-1]
        return batch

    for i in range(40):
        if i % 2:
            with pytest.raises(RuntimeError, match="odd"):
                wire.send(collate, [torch.full((50,), i)] * 4)
            if i % 8 == 1:
                errors.clear()
        else:
            assert bool((wire.send(collate, [torch.full((50,), i)] * 4) == i).all())
    errors.clear()
    wire.send(collate, [torch.zeros(50)] * 4)
    assert wire.stats()["held"] == 0
    assert wire.stats()["fresh"] < 12


def test_what_a_batch_did_not_take_along_is_used_again(wire):
    file = wire.arena.file

    def mixed(samples):
        return default_collate(samples) * 2

    for i in range(10):
        assert bool((wire.send(mixed, [torch.full((50,), i)] * 4) == 2 * i).all())
    reserved = file.reserved
    for i in range(50):
        wire.send(mixed, [torch.full((50,), i)] * 4)
    assert file.reserved == reserved


def test_a_batch_that_cannot_be_pickled_is_an_error_and_the_next_one_comes(wire):
    with pytest.raises((AttributeError, pickle.PicklingError)):
        wire.send(lambda _: [large(1), lambda: None])
    assert torch.equal(wire.send(lambda _: large(2)), large(2))


def test_a_batch_that_cannot_be_unpickled_gives_its_slots_back(wire):
    class Unready:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ValueError, match="no number"):
        wire.send(lambda _: [large(1), Unready()])
    gc.collect()
    assert wire.stats()["held"] == 0
    assert torch.equal(wire.send(lambda _: large(2)), large(2))


def test_lanes_that_fall_out_of_use_give_their_slots_back(wire):
    for _ in range(5):
        wire.send(lambda _: [large(i) for i in range(5)])
    assert wire.stats()["slots"] == 5
    for _ in range(200):
        wire.send(lambda _: large(1))
    assert wire.stats()["slots"] == 1


def test_ended_workers_leave_nothing_that_is_not_held(wire):
    held = wire.send(lambda _: large(3))
    wire.worker._fresh(0, 1 << 20)  # made, and never handed over
    wire.arena.lend(99)
    wire.arena.reclaim()
    assert wire.stats()["held"] == 1
    assert torch.equal(held, large(3))
    taken = sum(sum(lane.ranges().values()) for lane in wire.arena._lanes)
    assert taken < 1 << 18


def test_a_slot_that_cannot_be_mapped_is_read(wire, monkeypatch):
    def full(slot, *_):
        raise RuntimeError("slots: expected at most 16384 in use at once")

    class Unmapped:
        def __init__(self, lease):
            self.read, self.view = lease.read, full

    make = parcel._Memory.__init__

    def unmapped(memory, *arguments):
        make(memory, *arguments)
        memory._slot = memory._slot and Unmapped(memory._slot)

    monkeypatch.setattr(parcel._Memory, "__init__", unmapped)
    whole = torch.arange(1000.0)
    found = wire.send(lambda _: [whole, whole[10:], whole.numpy()])
    assert_same(found, [whole, whole[10:], whole.numpy()])
    assert found[0].resize_(2000).shape == (2000,)
    del found
    assert wire.stats()["held"] == 0


def test_without_memory_a_batch_is_left_to_torch(wire, monkeypatch):
    class Full:
        first = 4096

        def reserve(self, nbytes):
            raise RuntimeError("no memory")

    monkeypatch.setattr(wire.worker, "_file", Full())
    assert torch.equal(wire.send(lambda _: large(1)), large(1))
    assert torch.equal(wire.send(default_collate, [large(1)] * 4)[2], large(1))
    assert wire.transport.no_memory == 2
    assert wire.transport.torch_batches == 2
