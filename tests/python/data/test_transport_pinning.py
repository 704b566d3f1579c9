"""Batches of any data set in pinned memory."""

from collections import UserList

import aegis
import pytest
import torch
from aegis.data.torch_iter import MultiProcessIter, SingleProcessIter
from samples import Numbered, Pair, Samples, assert_same, outcomes
from torch.utils.data import DataLoader

FlatArenaDataLoader = aegis.FlatArenaDataLoader
pytestmark = pytest.mark.usefixtures("every_size_in_slots", "one_thread")


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
