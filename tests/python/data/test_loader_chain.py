"""FlatArenaDataLoader(..., chain=): every batch delivered, in its turn, as it is before the caller has it."""

import copy
import pickle

import aegis
import numpy as np
import pytest
import torch
from aegis.evidence import IntegrityChain
from samples import SAMPLES, Numbered, NumberedStream, Samples
from torch.utils.data import DataLoader, TensorDataset

FlatArenaDataLoader = aegis.FlatArenaDataLoader


def collate_lists(samples):
    return {"images": [image for image, _ in samples], "labels": tuple(label for _, label in samples)}


def spoil(batch):
    """Writes over whatever can be written to."""
    for part in batch if isinstance(batch, list | tuple) else batch.values() if isinstance(batch, dict) else [batch]:
        if isinstance(part, torch.Tensor):
            part.zero_()
        elif isinstance(part, list):
            spoil(part)


def of(loader, chain):
    for batch in loader:
        chain.add_batch(batch)
    return chain.state()


WAYS = {
    "native": ("tokens", {"num_workers": 1}),
    "native, reused": ("tokens", {"num_workers": 2, "reuse": True}),
    "native, in this thread": ("tokens", {"num_workers": 0}),
    "native, of tensors": ("tensors", {"num_workers": 1}),
    "in this process": ("numbered", {"num_workers": 0}),
    "collated by the user": ("numbered", {"num_workers": 0, "collate_fn": collate_lists}),
    "by workers": ("numbered", {"num_workers": 2}),
    "by workers, collated by the user": ("numbered", {"num_workers": 1, "collate_fn": collate_lists}),
    "sample by sample": ("numbered", {"num_workers": 0, "batch_size": None}),
    "of a stream": ("stream", {"num_workers": 2}),
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_chain_is_that_of_torchs_batches(way, background, tokens):
    kind, arguments = WAYS[way]
    datasets = {
        "tokens": tokens,
        "tensors": TensorDataset(torch.arange(3000).view(1000, 3), torch.arange(1000.0)),
        "numbered": Numbered(12),
        "stream": NumberedStream(12),
    }
    dataset, arguments = datasets[kind], {"batch_size": 500 if kind in ("tokens", "tensors") else 5, **arguments}
    shuffle = kind != "stream"
    torch.manual_seed(3)
    theirs = {name: value for name, value in arguments.items() if name != "reuse"}
    want = of(DataLoader(dataset, shuffle=shuffle, **theirs), IntegrityChain())
    torch.manual_seed(3)
    chain = IntegrityChain(background=background)
    with FlatArenaDataLoader(dataset, shuffle=shuffle, chain=chain, **arguments) as loader:
        for batch in loader:
            spoil(batch)
        assert chain.state() == want
    chain.close()


def test_chain_takes_every_kind_of_sample(every_size_in_slots):
    kinds = list(SAMPLES)
    dataset = Samples(kinds)
    want = of(DataLoader(dataset, batch_size=4), IntegrityChain())
    chain = IntegrityChain()
    assert len(list(FlatArenaDataLoader(dataset, batch_size=4, chain=chain))) == len(kinds)
    assert chain.state() == want


def test_chain_sees_one_changed_token(tmp_path):
    values = []
    for changed in (False, True):
        data = np.arange(5000, dtype=np.uint16)
        data[2500] ^= changed
        data.tofile(tmp_path / "tokens.bin")
        dataset, chain = aegis.TokenDataset(tmp_path / "tokens.bin", 16, dtype="uint16"), IntegrityChain()
        values.append([])
        for _ in FlatArenaDataLoader(dataset, 16, chain=chain):
            values[-1].append(chain.value)
    window = 2500 // 16
    first = [a == b for a, b in zip(*values, strict=True)].index(False)
    assert first == window // 16


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_chain_ends_as_the_unbroken_one(tokens, num_workers, background):
    def loader(chain):
        return FlatArenaDataLoader(tokens, 300, shuffle=True, seed=4, num_workers=num_workers, chain=chain)

    whole = IntegrityChain()
    for _ in range(2):
        for _ in loader(whole):
            pass
    del _
    first = IntegrityChain(background=background)
    with loader(first) as broken:
        for at, _ in enumerate(broken):
            if at == 4:
                state = pickle.loads(pickle.dumps(broken.state_dict()))
                break
    second = IntegrityChain(background=background)
    second.add(99, 9.0)  # is forgotten
    with loader(second) as resumed:
        resumed.load_state_dict(state)
        assert second.state() == state["chain"]
        for _ in resumed:
            pass
        resumed.set_epoch(0)
        for _ in resumed:
            pass
    assert second.state() == whole.state()
    first.close()
    second.close()


def test_state_without_a_chain_and_chain_of_another_kind_change_nothing(tokens):
    plain = FlatArenaDataLoader(tokens, 300, seed=4)
    chained = FlatArenaDataLoader(tokens, 300, seed=4, chain=IntegrityChain())
    assert "chain" not in plain.state_dict()
    next(iter(chained))
    before = chained.state_dict()
    with pytest.raises(ValueError, match="state: expected the key 'chain'"):
        chained.load_state_dict(plain.state_dict())
    for bits, value, message in (
        (64, 1, "expected one of 32 bits"),
        (32, 2**32, "a value of 32 bits"),
        (32, -1, "value"),
    ):
        state = copy.deepcopy(before)
        state["chain"].update(bits=bits, value=value)
        state["position"] = 0
        with pytest.raises(ValueError, match=message):
            chained.load_state_dict(state)
    assert chained.state_dict() == before
    plain.load_state_dict(before)  # what it has no use for does not disturb it
    assert plain.state_dict() == {name: value for name, value in before.items() if name != "chain"}


def test_copy_of_a_loader_leaves_the_chain(tokens):
    loader = FlatArenaDataLoader(tokens, 300, seed=4, chain=IntegrityChain())
    assert pickle.loads(pickle.dumps(loader)).chain is None
    assert loader.chain is not None


def test_failed_chain_is_told_by_next(tokens):
    chain = IntegrityChain(background=True)
    iterator = iter(FlatArenaDataLoader(tokens, 300, seed=4, chain=chain))
    next(iterator)
    chain.close()
    with pytest.raises(RuntimeError, match="IntegrityChain: expected to be open"):
        next(iterator)


def test_bad_chain(tokens):
    with pytest.raises(TypeError, match=r"chain: expected an .*IntegrityChain or None, got int"):
        FlatArenaDataLoader(tokens, chain=7)
