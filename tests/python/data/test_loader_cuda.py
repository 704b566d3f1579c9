"""Pinned batches on a machine with a GPU: copies that are under way when the batch is dropped.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


def loader(tokens, **options):
    return aegis.FlatArenaDataLoader(tokens, 32, shuffle=True, seed=3, drop_last=True, **options)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_pinned_batches_are_the_same_and_pinned(tokens, num_workers):
    pairs = zip(loader(tokens), loader(tokens, num_workers=num_workers, pin_memory=True), strict=True)
    for want, got in pairs:
        assert got[0].is_pinned()
        assert got[1].is_pinned()
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_copies_under_way_are_not_overwritten_case58(tokens, num_workers):
    on_device = []
    with loader(tokens, num_workers=num_workers, pin_memory=True) as batches:
        for x, y in batches:
            torch.cuda._sleep(2_000_000)  # the copies wait behind this, while later batches are written
            on_device.append((x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)))
            del x, y
    for (x, y), (want_x, want_y) in zip(on_device, loader(tokens), strict=True):
        assert torch.equal(x.cpu(), want_x)
        assert torch.equal(y.cpu(), want_y)
