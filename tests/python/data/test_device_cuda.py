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


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_late_windows_are_widened_to_what_was_meant_case58(tmp_path, dtype, workers, reuse):
    path = tmp_path / "tokens.bin"
    stored = getattr(torch, dtype)
    ends = torch.iinfo(stored)
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(max(ends.min, -(2**40)), min(ends.max, 2**40), (5000,), generator=random)
    ids[:2] = torch.tensor([ends.min, ends.max])
    ids.to(stored).numpy().tofile(path)
    dataset = aegis.TokenDataset(path, 48, dtype=dtype, stride=13)
    given = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": workers}
    want = [[tensor.clone() for tensor in batch] for batch in aegis.FlatArenaDataLoader(dataset, **given)]
    with aegis.FlatArenaDataLoader(dataset, device="cuda", narrow=True, reuse=reuse, **given) as loader:
        read, seen = [], set()
        for batch in loader:
            torch.cuda._sleep(2_000_000)
            read.append([tensor.clone() for tensor in batch])
            seen.add(tuple(tensor.data_ptr() for tensor in batch))
        stats = loader.stats()
    for got, expected in zip(read, want, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, expected, strict=True))
    assert len(seen) == 3 or not reuse
    assert stats["device_bytes"] == sum(len(x) for x, _ in want) * 49 * stored.itemsize
    assert stats["pinned_slots"] > 0
    assert stats["pins_refused"] == 0


def test_buffers_made_under_inference_mode_are_ordinary(tokens):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", reuse=True, narrow=True, seed=1) as loader:
        for mode in (torch.inference_mode, torch.enable_grad):
            with mode():
                read = [[tensor.clone() for tensor in batch] for batch in loader]
    for got, want in zip(read, aegis.FlatArenaDataLoader(tokens, 32, seed=1), strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds one CUDA device")
@pytest.mark.parametrize("narrow", [False, True])
def test_a_device_that_is_not_the_current_one(tokens, narrow):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda:1", num_workers=1, narrow=narrow) as loader:
        for got, want in zip(loader, aegis.FlatArenaDataLoader(tokens, 32), strict=True):
            assert all(a.device.index == 1 and torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("narrow", [False, True])
def test_held_batches_stay_valid_case59(tokens, narrow):
    with aegis.FlatArenaDataLoader(tokens, 32, device="cuda", num_workers=2, narrow=narrow) as loader:
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
