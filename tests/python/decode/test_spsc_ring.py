"""aegis.SpscRing between threads and processes of Python."""

import multiprocessing
import os
import signal
import threading

import aegis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

STRESS = int(os.environ.get("AEGIS_RING_STRESS", 1_000_000))
"""Entries of the test with two processes; 10**8 take a minute or two."""


def entries(first, count):
    """Entries that tell their own number, with a checksum of it."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    made = np.zeros(count, aegis.SpscRing.dtype)
    made["sequence"] = numbers
    made["token"] = numbers
    made["logit_delta"] = numbers % 1000
    made["slot"] = (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return made


def test_the_dtype_is_the_structs():
    kind = aegis.SpscRing.dtype
    assert kind.itemsize == 64
    assert {name: kind.fields[name][1] for name in kind.names} == {
        "sequence": 0,
        "token": 8,
        "position": 12,
        "logit_delta": 16,
        "draft_probability": 20,
        "flags": 24,
        "attestation": 28,
        "parent": 32,
        "slot": 36,
    }


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 9),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40),
    shared=st.booleans(),
)
def test_a_queue_of_limited_size(capacity, steps, shared):
    ring, queue, number = aegis.SpscRing(capacity, shared=shared), [], 0
    for push, count in steps:
        if push:
            some = entries(number, count)
            pushed = ring.push(some, timeout=0)
            assert pushed == min(count, ring.capacity - len(queue))
            queue += some[:pushed].tolist()
            number += pushed
        elif queue:
            got = ring.pop(count).tolist()
            assert got == queue[: len(got)]
            assert len(got) == min(count, len(queue))
            del queue[: len(got)]
        else:
            with pytest.raises(TimeoutError, match="pop: no entry came within 0 seconds"):
                ring.pop(count, timeout=0)
        assert len(ring) == len(queue)


def test_threads():
    ring, total = aegis.SpscRing(256), 50_000

    def produce():
        with ring:
            for first in range(0, total, 1000):
                assert ring.push(entries(first, 1000)) == 1000

    thread = threading.Thread(target=produce)
    thread.start()
    seen, out = 0, np.empty(300, ring.dtype)
    while len(got := ring.pop(out=out)):
        assert got.tobytes() == entries(seen, len(got)).tobytes()
        seen += len(got)
    thread.join()
    assert seen == total
    assert ring.closed


def produce(ring, total):
    with ring:
        for first in range(0, total, 50_000):
            ring.push(entries(first, min(50_000, total - first)), timeout=120)


@pytest.mark.parametrize(("method", "total"), [("fork", STRESS), ("spawn", 20_000)])
def test_processes(method, total):
    """Every entry once, in order: their numbers are looked at, and a checksum of all."""
    ring = aegis.SpscRing(4096, shared=True)
    process = multiprocessing.get_context(method).Process(target=produce, args=(ring, total))
    process.start()
    seen, checksum = 0, 0
    while len(got := ring.pop(timeout=120)):
        assert got["sequence"][0] == seen
        assert (np.diff(got["sequence"]) == 1).all()
        seen += len(got)
        checksum += int(got["slot"].sum(dtype=np.uint64))
    process.join()
    assert process.exitcode == 0
    assert seen == total
    parts = (entries(first, min(10**6, total - first))["slot"] for first in range(0, total, 10**6))
    assert checksum == sum(int(part.sum(dtype=np.uint64)) for part in parts)


def push_and_stay(ring):
    ring.push(entries(0, 3))
    signal.pause()


def test_a_killed_producer_is_an_error_and_not_a_wait():
    ring = aegis.SpscRing(8, shared=True)
    process = multiprocessing.get_context("fork").Process(target=push_and_stay, args=(ring,))
    process.start()
    assert ring.pop(1)["sequence"].tolist() == [0]
    process.kill()
    assert ring.pop(timeout=600)["sequence"].tolist() == [1, 2]
    with pytest.raises(BrokenPipeError, match="pop: the producer's process is gone, and nothing is left"):
        ring.pop(timeout=600)
    process.join()


def pop_once(ring):
    ring.pop(1)


def test_a_consumer_that_is_gone_is_an_error_once_there_is_no_room():
    ring = aegis.SpscRing(2, shared=True)
    process = multiprocessing.get_context("fork").Process(target=pop_once, args=(ring,))
    process.start()
    assert ring.push(entries(0, 1)) == 1
    process.join()
    assert ring.push(entries(1, 2)) == 2
    with pytest.raises(BrokenPipeError, match="push: the consumer's process is gone; 0 of 1 were pushed"):
        ring.push(entries(3, 1), timeout=600)
    assert ring.pop()["sequence"].tolist() == [1, 2]


def test_either_side_may_close():
    ring = aegis.SpscRing(4)
    ring.push(entries(0, 2))
    ring.close()
    with pytest.raises(BrokenPipeError, match="expected an open ring, got a closed one; 0 of 1 were pushed"):
        ring.push(entries(2, 1))
    assert ring.pop()["token"].tolist() == [0, 1]
    assert len(ring.pop()) == 0
    assert repr(ring) == "SpscRing(0 of 4 entries, closed)"


def test_a_wait_ends_with_a_signal():
    ring = aegis.SpscRing(4)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ring.pop(timeout=600)
    timer.join()


def test_arrays_that_are_not_contiguous_or_aligned():
    ring = aegis.SpscRing(8)
    ring.push(entries(0, 8)[::3])
    assert ring.pop()["sequence"].tolist() == [0, 3, 6]
    odd = np.frombuffer(bytearray(b"x" + entries(5, 2).tobytes()), aegis.SpscRing.dtype, offset=1)
    ring.push(odd)
    assert ring.pop()["sequence"].tolist() == [5, 6]
    with pytest.raises(ValueError, match=r"out: expected adjacent entries .*got them 128 bytes apart"):
        ring.pop(out=np.empty(8, ring.dtype)[::2], timeout=0)
    frozen = np.empty(2, ring.dtype)
    frozen.flags.writeable = False
    ring.push(entries(0, 1))
    with pytest.raises((ValueError, BufferError)):
        ring.pop(out=frozen)
    assert len(ring) == 1


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "capacity: expected 1 to 1073741824 entries, got 0", lambda ring: aegis.SpscRing(0)),
        (TypeError, "capacity: expected an int, got 2.0", lambda ring: aegis.SpscRing(2.0)),
        (RuntimeError, "fd: expected the descriptor of a ring, got -5", lambda ring: aegis.SpscRing.attach(-5)),
        (TypeError, "entries: expected an array of SpscRing.dtype, got list", lambda ring: ring.push([1])),
        (TypeError, "entries: expected .*, got float32", lambda ring: ring.push(np.zeros(2, np.float32))),
        (ValueError, "entries: expected one dimension", lambda ring: ring.push(entries(0, 4).reshape(2, 2))),
        (ValueError, "timeout: expected seconds", lambda ring: ring.pop(timeout=float("nan"))),
        (ValueError, "timeout: expected seconds", lambda ring: ring.pop(timeout=-1)),
        (ValueError, "most: expected at least 1, got 0", lambda ring: ring.pop(0)),
        (ValueError, "most: expected at least 1, got True", lambda ring: ring.pop(True)),
        (ValueError, "out: expected room for an entry", lambda ring: ring.pop(out=entries(0, 0))),
        (ValueError, "ring: expected one with shared=True", lambda ring: ring.fileno()),
        (ValueError, "ring: expected one with shared=True", lambda ring: ring.__reduce__()),
    ],
    ids=str,
)
def test_bad_input(error, message, call):
    ring = aegis.SpscRing(4)
    with pytest.raises(error, match=message):
        call(ring)
    assert len(ring) == 0
    assert ring.push(entries(0, 0)) == 0
