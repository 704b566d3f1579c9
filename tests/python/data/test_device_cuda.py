"""``device=`` on a machine with a GPU: every path's batches, bit for bit, while kernels hold the copies up.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3, 64, 64), float(index)), index


@pytest.fixture(params=["tokens", "tensors", "images"])
def dataset(request, tokens):
    return {
        "tokens": tokens,
        "tensors": TensorDataset(torch.arange(40_000.0).reshape(1000, 40), torch.arange(1000)),
        "images": Images(),
    }[request.param]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_late_copies_read_what_was_meant_case58(dataset, workers, reuse):
    given = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": workers}
    want = [[tensor.clone() for tensor in batch] for batch in aegis.FlatArenaDataLoader(dataset, **given)]
    with aegis.FlatArenaDataLoader(dataset, device="cuda", reuse=reuse, **given) as loader:
        for _ in range(2):
            read = []
            for batch in loader:
                torch.cuda._sleep(2_000_000)
                read.append([tensor.clone() for tensor in batch])
            if loader.state_dict()["epoch"] == 1:
                for got, expected in zip(read, want, strict=True):
                    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, expected, strict=True))
        stats = loader.stats()
    assert stats["pins_refused"] == 0
    assert stats["pinned_slots"] > 0
    assert len(read) == len(want)


def test_held_batches_stay_valid_case59(tokens):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=2) as loader:
        held = list(loader)
    for got, want in zip(held, aegis.FlatArenaDataLoader(tokens, 32), strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


def test_reused_buffers_keep_their_addresses(tokens):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=1, reuse=True) as loader:
        seen = {tuple(tensor.data_ptr() for tensor in batch) for _ in range(2) for batch in loader}
    assert len(seen) == 3


@pytest.mark.parametrize("order", [{"shuffle": True, "seed": 4}, {}])
def test_resident_batches_are_the_same(tokens, order):
    loader = aegis.FlatArenaDataLoader(tokens, 32, device="cuda", resident=True, **order)
    for got, want in zip(loader, aegis.FlatArenaDataLoader(tokens, 32, **order), strict=True):
        assert all(a.is_cuda and torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
