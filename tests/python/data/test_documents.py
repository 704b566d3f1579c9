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
    dataset = aegis.TokenDataset(paths, block, **arguments)
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


LENGTHS = [[5, 0, 40, 3, 3, 30, 1, 22], [7, 0, 25]]


@pytest.fixture
def files(tmp_path):
    return write(tmp_path, LENGTHS)


def make(files, block=16, **arguments):
    paths, offsets = files
    return aegis.TokenDataset(paths, block, **{"dtype": "int32", "documents": offsets, **arguments})


def test_without_fields_a_batch_stays_a_pair_case61(files):
    for layout in ("stream", "packed"):
        dataset = make(files, layout=layout)
        x, y = next(iter(aegis.FlatArenaDataLoader(dataset, len(dataset))))
        wanted = [expected(row, documents_of(files[1]))["targets"] for row in x.numpy()]
        assert np.array_equal(y, np.stack(wanted))
        pairs = [dataset[i] for i in range(len(dataset))]
        assert torch.equal(torch.stack([pair[1] for pair in pairs]), y)


def test_targets_across_documents_are_kept_on_request_case61(files):
    plain = make(files, documents=None)
    kept = make(files, ignore_index=None)
    assert kept.documents == 9
    for batch, other in zip(aegis.FlatArenaDataLoader(kept, 3), aegis.FlatArenaDataLoader(plain, 3), strict=True):
        assert all(map(torch.equal, batch, other))
    other = make(files, ignore_index=-1)
    assert -1 in other[0][1]
    assert -100 not in other[0][1]


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64"])
@settings(deadline=None, max_examples=25)
@given(tokens=st.lists(st.integers(0, 3), min_size=2, max_size=1200))
def test_documents_are_found_by_the_token_that_begins_or_ends_them(tmp_path_factory, begins, dtype, tokens):
    path = tmp_path_factory.mktemp("scan") / "tokens.bin"
    np.array(tokens, dtype).tofile(path)
    marked = np.flatnonzero(np.array(tokens) == 2)
    bounds = np.unique([0, *(marked if begins else marked + 1), len(tokens)])
    dataset = aegis.TokenDataset(path, 1, dtype=dtype, **{"bos_id" if begins else "eos_id": 2})
    assert np.array_equal(dataset._documents.offsets(0), bounds)


def test_documents_that_the_files_record(files, monkeypatch):
    from aegis.data import documents

    paths, offsets = files
    with pytest.raises(ValueError, match=r"0\.bin: a file of format 'raw' does not say where its documents begin"):
        make(files, documents=True)
    with pytest.raises(ValueError, match="does not say where its documents begin"):
        aegis.TokenDataset(paths, 16, dtype="int32", layout="packed")
    known = dict(zip(map(str, paths), offsets, strict=True))
    monkeypatch.setattr(documents, "document_offsets", lambda file: known[file.path])
    recorded = aegis.TokenDataset(paths, 16, dtype="int32", layout="packed")
    given = make(files, layout="packed")
    assert recorded.fingerprint() == given.fingerprint()
    assert torch.equal(recorded[3][0], given[3][0])
    assert aegis.TokenDataset(paths, 16, dtype="int32").documents is None


def test_cu_seqlens_of_fixed_length_for_graph_capture(files):
    dataset = make(files, layout="packed", fields=("cu_seqlens",), max_documents=5)
    free = make(files, layout="packed", fields=("cu_seqlens",))
    for loader in (aegis.FlatArenaDataLoader, torch.utils.data.DataLoader):
        for batch, own in zip(loader(dataset, 2), aegis.FlatArenaDataLoader(free, 2), strict=True):
            assert batch.cu_seqlens.shape == (len(batch.inputs) * 5 + 1,)
            n = len(own.cu_seqlens)
            assert torch.equal(batch.cu_seqlens[:n], own.cu_seqlens)
            assert (batch.cu_seqlens[n:] == batch.inputs.numel()).all()
    tight = make(files, block=32, layout="stream", fields=("cu_seqlens",), max_documents=2)
    with pytest.raises(ValueError, match="max_documents: expected rows of at most 2 documents, got 4 in row 1"):
        list(aegis.FlatArenaDataLoader(tight, 2))


def test_batches_go_where_dicts_go_case60(files):
    dataset = make(files, layout="packed", fields=EVERY)
    batch = next(iter(aegis.FlatArenaDataLoader(dataset, 2)))
    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is aegis.TokenBatch
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}
    assert batch.inputs is batch["inputs"]
    with pytest.raises(AttributeError, match="expected one of inputs, targets, document_ids"):
        _ = batch.labels
    copy = pickle.loads(pickle.dumps(batch))
    assert type(copy) is aegis.TokenBatch
    assert torch.equal(copy.cu_seqlens, batch.cu_seqlens)
    with aegis.patch_torch():
        patched = next(iter(torch.utils.data.DataLoader(dataset, 2)))
    assert type(patched) is aegis.TokenBatch
    assert torch.equal(patched.cu_seqlens, batch.cu_seqlens)


def test_numbers_that_are_none_are_named(files):
    for name in ("ignore_index", "max_documents"):
        with pytest.raises(TypeError, match=f"{name}: expected an int or None, got 1.5"):
            make(files, fields="cu_seqlens", **{name: 1.5})


def test_a_compiled_model_takes_the_batch(files):
    batch = next(iter(aegis.FlatArenaDataLoader(make(files, layout="packed", fields=EVERY), 2)))

    def model(batch):
        return (batch.inputs + batch["position_ids"]).sum() + batch.document_ids.max()

    assert torch.compile(model, backend="eager", fullgraph=True)(batch) == model(batch)


def test_worker_processes_read_the_same_documents(files):
    dataset = make(files, layout="packed", fields=EVERY)
    workers = torch.utils.data.DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    for batch, ours in zip(workers, aegis.FlatArenaDataLoader(dataset, 2), strict=True):
        assert type(batch) is aegis.TokenBatch
        assert all(torch.equal(batch[name], ours[name]) for name in ours)


def test_packing_cuts_few_documents_and_needs_no_memory(tmp_path):
    random = np.random.default_rng(3)
    own = random.integers(1, 300, 3000)
    paths, offsets = write(tmp_path, [own])
    dataset = make((paths, offsets), 128, layout="packed")
    rows = [dataset.rows.pieces(i) for i in range(len(dataset))]
    windows = make((paths, offsets), 128).rows
    of = documents_of(offsets)

    def cut(rows):
        """Documents no longer than a row of which a row has a part."""
        pieces = [piece for row in rows for piece in row]
        return {of[begin] for begin, count, _ in pieces if count < own[of[begin]] <= 128}

    whole = cut(map(windows.pieces, range(len(windows))))
    print(len(cut(rows)), len(whole))
    assert 10 * len(cut(rows)) < len(whole)
    again = _C.PackedRows(dataset._documents, 128, kept_bytes=0)
    assert [again.pieces(i) for i in range(len(again))] == rows


def test_the_fingerprint_knows_layout_and_documents(files):
    paths, offsets = files
    other = [offsets[0].copy(), offsets[1]]
    other[0][2] += 1
    prints = [
        make(files).fingerprint(),
        make(files, documents=None).fingerprint(),
        make(files, layout="packed").fingerprint(),
        make(files, layout="aligned").fingerprint(),
        make((paths, other)).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    assert make(files, fields=EVERY).fingerprint() == prints[0]
    assert pickle.loads(pickle.dumps(make(files, layout="packed"))).fingerprint() == prints[2]


def test_a_file_cut_short_is_an_error_and_no_zeroes_case50(files):
    dataset = make(files, layout="packed", fields=EVERY)
    loader = aegis.FlatArenaDataLoader(dataset, 4, num_workers=1)
    next(iter(loader))
    with open(files[0][0], "rb+") as file:
        file.truncate(8)
    with pytest.raises(RuntimeError, match=r"0\.bin: "):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "tight"}, "layout: expected one of stream, aligned, packed, got 'tight'"),
        ({"fields": ("documents",)}, "fields: expected some of document_ids, position_ids, valid, cu_seqlens, each"),
        ({"fields": ("valid", "valid")}, "each once"),
        ({"layout": "packed", "stride": 3}, "stride: expected None with layout='packed'"),
        ({"max_documents": 3}, "max_documents: expected 'cu_seqlens' among the fields"),
        ({"max_documents": 0, "fields": "cu_seqlens"}, "max_documents: expected at least 1, got 0"),
        ({"layout": "packed", "ignore_index": None}, "ignore_index: expected a number"),
        ({"bos_id": 1}, "documents, bos_id, eos_id: expected at most one of them"),
        ({"documents": None, "bos_id": 1, "eos_id": 2}, "expected at most one of them"),
        (
            {"documents": None, "bos_id": 2**40},
            r"bos_id: expected an id from 0 to \d+, as \w+ holds, got 1099511627776",
        ),
        ({"documents": None, "eos_id": -1}, "eos_id: expected an id from 0 to"),
        ({"documents": np.array([0, 104])}, "documents: expected one array of offsets for each of 2 files, got 1"),
        ({"documents": [[0, 104], [0, 1.5]]}, "documents: expected 1-D arrays of ints, got float64"),
        ({"documents": [[0, 104], [[0, 32]]]}, r"expected 1-D arrays of ints, got int64 \(1, 2\) for file 1"),
        ({"documents": [[0, 104], [0, 31]]}, r"1\.bin: documents: expected offsets from 0 to the file's 32 tokens"),
        ({"documents": [[0, 104], [1, 32]]}, r"1\.bin: documents: expected offsets from 0 to"),
        ({"documents": [[0, 104], []]}, "expected 1-D arrays of ints, got float64"),
        ({"documents": [[0, 50, 40, 104], [0, 32]]}, r"0\.bin: documents: offset 2 is 40, less than .* before, 50"),
        ({"documents": [[0, 104], np.array([0, 2**63], np.uint64)]}, r"offsets below 2\*\*63"),
        ({"block": 0, "layout": "packed"}, "block_size: expected at least 1, got 0"),
        ({"block": 500, "layout": "packed"}, r"and the other files: no file has block_size \(500\) tokens"),
        ({"block": 500, "layout": "aligned"}, "no file, from the begin of a document on, has block_size"),
    ],
)
def test_bad_arguments_are_named(files, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(files, **{"block": 16, **arguments})
