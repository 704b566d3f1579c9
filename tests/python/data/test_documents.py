"""Documents in token rows: where they begin, what batches say of them, and how they are packed."""

import pickle

import aegis
import numpy as np
import pytest
import torch
from aegis import _C
from hypothesis import given, settings
from hypothesis import strategies as st

EVERY = ("document_ids", "position_ids", "cu_seqlens")


def write(folder, lengths_by_file):
    """Files of int32 tokens, each its own number in the whole data set, and the offsets of their documents."""
    paths, offsets, begin = [], [], 0
    for at, lengths in enumerate(lengths_by_file):
        bounds = np.cumsum([0, *lengths])
        paths.append(folder / f"{at}.bin")
        np.arange(begin, begin + bounds[-1], dtype=np.int32).tofile(paths[-1])
        offsets.append(bounds)
        begin += bounds[-1]
    return paths, offsets


def documents_of(offsets):
    """(tokens,) the number of the document of each token of the whole data set."""
    lengths = np.concatenate([np.diff(bounds) for bounds in offsets])
    return np.repeat(np.arange(len(lengths)), lengths)


def expected(inputs, documents):
    """What a row must say of its documents, from its tokens, which are their places."""
    new = np.ones(len(inputs), bool)
    new[1:] = (np.diff(inputs) != 1) | (np.diff(documents[inputs]) != 0)
    starts = np.flatnonzero(new)
    following = np.minimum(inputs + 1, len(documents) - 1)
    same = (inputs + 1 < len(documents)) & (documents[following] == documents[inputs])
    return {
        "targets": np.where(same, inputs + 1, -100),
        "document_ids": np.cumsum(new) - 1,
        "position_ids": np.arange(len(inputs)) - starts[np.cumsum(new) - 1],
        "cu_seqlens": np.append(starts, len(inputs)),
    }


def check_batch(batch, documents):
    rows = batch["inputs"].numpy()
    wanted = [expected(row, documents) for row in rows]
    for name in ("targets", "document_ids", "position_ids"):
        assert np.array_equal(batch[name].numpy(), np.stack([row[name] for row in wanted])), name
    ends = [at * rows.shape[1] + row["cu_seqlens"][1:] for at, row in enumerate(wanted)]
    bounds = batch["cu_seqlens"].numpy()
    assert np.array_equal(bounds, np.concatenate([[0], *ends]))
    assert (np.diff(bounds) > 0).all()
    dtypes = {name: tensor.dtype for name, tensor in batch.items()}
    int32 = dict.fromkeys(EVERY, torch.int32)
    assert dtypes == {"inputs": torch.int64, "targets": torch.int64, **int32}


lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), min_size=1, max_size=40)


@pytest.mark.parametrize("layout", ["stream", "aligned", "packed"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_batches_say_what_their_tokens_are_case61(tmp_path_factory, layout, data):
    block = data.draw(st.integers(1, 24), "block")
    files = data.draw(st.lists(lengths.filter(lambda own: sum(own) > 24), min_size=1, max_size=3))
    paths, offsets = write(tmp_path_factory.mktemp("documents"), files)
    arguments = {"documents": offsets, "layout": layout, "fields": EVERY, "dtype": "int32"}
    try:
        dataset = aegis.TokenDataset(paths, block, **arguments)
    except ValueError as error:
        assert layout == "aligned" and "no file, from the begin of a document on" in str(error)
        return
    documents = documents_of(offsets)
    assert dataset.documents == sum(map(np.count_nonzero, files))
    batch_size = data.draw(st.integers(1, 9))
    for threads in (0, 1):
        with aegis.FlatArenaDataLoader(dataset, batch_size, num_workers=threads) as loader:
            assert loader.path.startswith("native")
            batches = list(loader)
        assert sum(len(batch.inputs) for batch in batches) == len(dataset)
        for batch in batches:
            check_batch(batch, documents)
    for plain, ours in zip(torch.utils.data.DataLoader(dataset, batch_size), batches, strict=True):
        assert type(plain) is type(ours) is aegis.TokenBatch
        assert plain.keys() == ours.keys()
        assert all(map(torch.equal, plain.values(), ours.values()))
    delivered = torch.cat([batch.inputs.flatten() for batch in batches]).numpy()
    assert len(np.unique(delivered)) == len(delivered)
    assert dataset.tail_tokens == dataset.tokens - len(delivered) - (layout == "stream") * len(files)
    if layout == "packed":
        whole = [begin + np.arange(sum(own) // block * block) for own, begin in zip(files, begins(files), strict=True)]
        assert np.array_equal(np.sort(delivered), np.concatenate(whole))
    if layout == "aligned":
        starts = torch.cat([batch.inputs[:, 0] for batch in batches]).numpy()
        assert np.isin(starts, np.flatnonzero(np.diff(documents, prepend=-1))).all()


def begins(files):
    return np.cumsum([0, *map(sum, files)])[:-1]
