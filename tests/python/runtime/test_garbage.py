"""Garbage collection: what is restored, and when."""

import gc
import subprocess
import sys
import threading

import pytest
from aegis import runtime


@pytest.fixture(autouse=True)
def _collector_stays_as_it_was():
    enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_packages_are_there_after_import_aegis():
    code = "import aegis; aegis.runtime.freeze, aegis.evidence.IntegrityChain, aegis.decode.register_attention"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Cycle:
    def __init__(self):
        self.me = self


@pytest.mark.parametrize("before", [True, False])
def test_no_gc_cycle_restores_what_the_caller_had_case56(before):
    (gc.enable if before else gc.disable)()
    with runtime.no_gc_cycle():
        assert not gc.isenabled()
        with runtime.no_gc_cycle():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner block turned the collector on"
    assert gc.isenabled() == before


def test_no_gc_cycle_restores_after_an_exception_case56():
    gc.enable()
    with pytest.raises(KeyError), runtime.no_gc_cycle(), runtime.no_gc_cycle():
        raise KeyError
    assert gc.isenabled()


def test_no_gc_cycle_collects_before_and_not_inside():
    import weakref

    gc.enable()
    old = weakref.ref(Cycle())
    with runtime.no_gc_cycle():
        assert old() is None
        new = weakref.ref(Cycle())
        _ = [[] for _ in range(200_000)]  # far beyond every threshold
        assert new() is not None
        gc.collect()
        assert new() is None


def test_blocks_of_two_threads_may_overlap():
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with runtime.no_gc_cycle():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with runtime.no_gc_cycle():
        thread.start()
        assert inside.wait(30)
    assert not gc.isenabled(), "the other thread's block has not ended"
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_freeze_sets_objects_aside_and_unfreeze_brings_them_back():
    import weakref

    kept = Cycle()
    count = runtime.freeze()
    assert count > 1000
    assert 0 < runtime.gc_report().frozen <= count  # some may have been freed since
    assert not any(o is kept for o in gc.get_objects())
    frozen = weakref.ref(kept)
    del kept
    gc.collect()
    assert frozen() is not None, "a collection looked at a frozen object"
    runtime.unfreeze()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert frozen() is None


def test_report():
    gc.disable()
    report = runtime.gc_report()
    assert not report.enabled
    assert report.pause_ms is None
    assert report.tracked > 1000
    measured = runtime.gc_report(measure=True)
    assert measured.pause_ms > 0
    assert measured.collections[2] == report.collections[2] + 1
    assert "a full collection takes" in str(measured)
    assert str(report).startswith("collector off")
