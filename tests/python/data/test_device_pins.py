"""Slots are pinned when they are mapped and until they are unmapped, by a library that stands in for CUDA's driver."""

import ctypes
import gc
import os
import subprocess
from pathlib import Path

import aegis
import aegis.data.loader as loader_module
import pytest
import torch
from aegis import _C
from fake_link import FakeLink
from samples import Numbered


class Driver:
    def __init__(self, path):
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_covers.argtypes = [ctypes.c_size_t]
        self.broken, self.registered, self.total = (
            self.library.fake_broken,
            self.library.fake_registered,
            self.library.fake_total,
        )

    def covers(self, tensor):
        return bool(self.library.fake_covers(tensor.data_ptr()))


@pytest.fixture(scope="module")
def driver_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libfake_cuda.so"
    source = Path(__file__).with_name("fake_driver.cpp")
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def driver(driver_path):
    driver = Driver(driver_path)
    yield driver
    driver.library.fake_refuse(0)
    gc.collect()
    assert driver.broken() == 0
    assert driver.registered() == 0


class PinnedLink(FakeLink):
    """Says of each copy whether its source was pinned when it was asked for."""

    def __init__(self, driver):
        super().__init__(0, eager=0.1)
        self._driver = driver
        self.pins = _C.DevicePins(0, driver.path)
        self.pinned = []

    def copy(self, target, source):
        self.pinned.append(self._driver.covers(source))
        super().copy(target, source)


def run(monkeypatch, driver, dataset, **given):
    """Two epochs; the loader's link and its counters."""
    link = PinnedLink(driver)
    monkeypatch.setattr(loader_module, "make_link", lambda device: link)
    want = [batch[0].clone() for batch in aegis.FlatArenaDataLoader(dataset, **{**given, "narrow": False})]
    with aegis.FlatArenaDataLoader(dataset, device="cuda", **given) as loader:
        for _ in range(2):
            got = [batch[0] for batch in loader]
            link.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        stats = loader.stats()
    return link, stats


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("narrow", [False, True])
def test_native_slots_are_pinned_once(monkeypatch, driver, tokens, threads, narrow):
    before = driver.total()
    link, stats = run(monkeypatch, driver, tokens, narrow=narrow, batch_size=64, num_workers=threads)
    assert link.pinned
    assert all(link.pinned)
    assert stats["pinned_slots"] == stats["slots"]
    assert driver.total() - before <= stats["slots"] + stats["fresh_slots"] < len(link.pinned)
    assert stats["pins_refused"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_slots_of_python_batches_are_pinned(monkeypatch, driver, workers):
    link, stats = run(monkeypatch, driver, Numbered(48, (3, 64, 64)), batch_size=4, num_workers=workers)
    images = link.pinned[::2]  # labels are small: a worker's message carries them
    assert len(images) == 24
    assert all(images)
    assert stats["pinned_bytes"] > 0


def test_a_driver_that_refuses_costs_speed_alone(monkeypatch, driver, tokens):
    driver.library.fake_refuse(1)
    link, stats = run(monkeypatch, driver, tokens, batch_size=64, num_workers=1)
    assert not any(link.pinned)
    assert stats["pinned_slots"] == 0
    assert stats["pins_refused"] >= stats["slots"]


def test_a_driver_that_refuses_the_workers_arena_costs_speed_alone(monkeypatch, driver):
    driver.library.fake_refuse(1)
    link, stats = run(monkeypatch, driver, Numbered(24, (3, 64, 64)), batch_size=4, num_workers=1)
    assert not any(link.pinned)
    assert stats["pinned_bytes"] == 0
    assert stats["pins_refused"] > 0


def test_a_forked_child_leaves_pins_alone_case12(driver):
    pool = _C.SlotPool(4096, 3, _C.DevicePins(0, driver.path))
    assert driver.registered() == 3
    child = os.fork()
    if child == 0:
        del pool
        gc.collect()
        os._exit(0 if driver.registered() == 3 and driver.broken() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert driver.registered() == 3
    del pool


def test_what_is_missing_is_said(driver, tmp_path):
    with pytest.raises(RuntimeError, match=r"could not open .*nowhere"):
        _C.DevicePins(0, str(tmp_path / "nowhere.so"))
    with pytest.raises(RuntimeError, match="cuDeviceGet returned error 101"):
        _C.DevicePins(5, driver.path)
    with pytest.raises(RuntimeError, match="expected the function cuInit"):
        _C.DevicePins(0, "libm.so.6")
