"""RecordDataset one sample at a time: what it reads."""

import os
import pickle
import warnings
from pathlib import Path

import aegis
import numpy as np
import pytest
import torch
from aegis.data.dtypes import CODES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

RecordDataset = aegis.RecordDataset


def values(*shape, dtype=torch.float32):
    return torch.arange(np.prod(shape)).view(shape).to(dtype)


@pytest.fixture
def raw(tmp_path):
    """Ten records of 3 x 2 float32."""
    path = tmp_path / "records.bin"
    values(10, 3, 2).numpy().tofile(path)
    return path


# --- sources ---------------------------------------------------------------------------------------------------------


def test_a_tensor_gives_tensors():
    data = values(10, 3, 2)
    dataset = RecordDataset(data)
    assert len(dataset) == 10
    assert torch.equal(dataset[3], data[3])
    assert torch.equal(dataset[-1], data[9])
    assert dataset[3].data_ptr() != data[3].data_ptr()
    labels = RecordDataset(torch.arange(4))
    assert labels[2].shape == ()
    assert int(labels[2]) == 2


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_every_numpy_dtype_in_either_byte_order_case51(tmp_path, kind, order):
    native = np.arange(1, 13).reshape(4, 3).astype(kind)
    stored = native.astype(np.dtype(kind).newbyteorder(order))
    np.save(tmp_path / "records.npy", stored)
    stored.tofile(tmp_path / "records.bin")
    for dataset in (
        RecordDataset(stored),
        RecordDataset(tmp_path / "records.npy"),
        RecordDataset(tmp_path / "records.bin", dtype=stored.dtype, shape=3),
    ):
        assert [dataset[i].tolist() for i in range(4)] == native.tolist()
        assert dataset[0].dtype is torch.from_numpy(native).dtype


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_torch_dtype_at_any_offset(tmp_path, dtype):
    data = torch.randint(0, 2, (5, 2, 3)).to(dtype)
    path = tmp_path / "records.bin"
    path.write_bytes(b"odd" + data.view(torch.uint8).numpy().tobytes())
    dataset = RecordDataset(path, dtype=dtype, shape=(2, 3), offset=3)
    assert len(dataset) == 5
    assert dataset[4].dtype is dtype
    assert torch.equal(dataset[4], data[4])
    assert torch.equal(RecordDataset(path, dtype=str(dtype).removeprefix("torch."), shape=(2, 3), offset=3)[1], data[1])


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 20),
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    kind=st.sampled_from(["u1", "<i2", ">i4", "<f8"]),
    offset=st.integers(0, 5),
    data=st.data(),
)
def test_any_raw_file(tmp_path_factory, count, shape, kind, offset, data):
    path = tmp_path_factory.mktemp("raw") / "records.bin"
    array = np.resize(np.arange(1, 101), (count, *shape)).astype(kind)
    path.write_bytes(b"\0" * offset + array.tobytes())
    dataset = RecordDataset(path, dtype=kind, shape=shape, offset=offset)
    assert len(dataset) == count
    indices = data.draw(st.lists(st.integers(-count, count - 1), max_size=10))
    for sample, index in zip(dataset.__getitems__(indices), indices, strict=True):
        assert np.array_equal(sample.numpy(), array[index])


def test_npy_files(tmp_path):
    array = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    np.save(tmp_path / "a.npy", array)
    dataset = RecordDataset(str(tmp_path / "a.npy"))
    assert np.array_equal(dataset[2].numpy(), array[2])
    assert len(RecordDataset(tmp_path / "a.npy", dtype="int16", shape=(3, 2))) == 4
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    assert np.array_equal(RecordDataset(tmp_path / "f.npy")[2].numpy(), array[2])
    np.save(tmp_path / "one.npy", array.ravel())
    assert int(RecordDataset(tmp_path / "one.npy")[23]) == 23


RECORD = np.dtype([("label", "u1"), ("image", "u1", (3, 2, 2)), ("when", ">f8")])


@pytest.fixture
def table():
    table = np.zeros(6, RECORD)
    table["label"] = range(6)
    table["image"] = np.arange(72).reshape(6, 3, 2, 2)
    table["when"] = np.arange(6) / 8
    return table


@pytest.mark.parametrize("way", ["array", "npy", "raw"])
@pytest.mark.parametrize("swapped", [False, True])
def test_records_of_several_fields(tmp_path, table, way, swapped):
    if not swapped:
        table = table.astype(RECORD.newbyteorder("="))
    np.save(tmp_path / "table.npy", table)
    table.tofile(tmp_path / "table.bin")
    make = {
        "array": lambda **more: RecordDataset(table, **more),
        "npy": lambda **more: RecordDataset(tmp_path / "table.npy", **more),
        "raw": lambda **more: RecordDataset(tmp_path / "table.bin", dtype=table.dtype, **more),
    }[way]
    sample = make()[4]
    assert list(sample) == ["label", "image", "when"]
    assert (int(sample["label"]), float(sample["when"])) == (4, 0.5)
    assert sample["image"].tolist() == table["image"][4].tolist()
    image, label = make(fields=["image", "label"])[5]
    assert int(label) == 5
    assert image.tolist() == table["image"][5].tolist()
    scaled = make(scale={"image": [1, 2, 3]}, bias={"image": 0.5})[1]
    assert scaled["image"].tolist() == (table["image"][1] * [[[1]], [[2]], [[3]]] + 0.5).tolist()


def test_field_names_beyond_latin1(tmp_path):
    array = np.zeros(3, [("étiquette", "i4"), ("标签", "i4")])
    array["标签"] = [5, 6, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy says that it writes version 3
        np.save(tmp_path / "names.npy", array)
    assert int(RecordDataset(tmp_path / "names.npy")[2]["标签"]) == 7


def test_several_sources(tmp_path, raw):
    images, labels = values(10, 3, 2), torch.arange(10)
    pair = RecordDataset((raw, labels), dtype={0: "float32"}, shape={0: (3, 2)})
    assert isinstance(pair[2], tuple)
    assert torch.equal(pair[2][0], images[2])
    assert int(pair[2][1]) == 2
    named = RecordDataset({"y": labels.numpy(), "x": images})
    assert list(named[7]) == ["y", "x"]
    assert torch.equal(named[7]["x"], images[7])
    assert [int(label) for _, label in RecordDataset([images, labels]).__getitems__([3, -1])] == [3, 9]
    chosen = RecordDataset({"y": labels, "x": images}, fields=("x",))
    assert isinstance(chosen[0], tuple)
    assert len(chosen[0]) == 1


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_scaled_records(out_dtype):
    images = values(5, 3, 4, 4, dtype=torch.uint8)
    scale, bias = torch.tensor([0.5, 0.25, 1 / 3]), torch.tensor([-1.0, 0, 1])
    expected = (images.float() * scale.view(3, 1, 1) + bias.view(3, 1, 1)).to(out_dtype)
    dataset = RecordDataset(images, scale=scale, bias=bias.tolist(), out_dtype=out_dtype)
    assert dataset[4].dtype is out_dtype
    assert torch.equal(dataset[4], expected[4])
    assert torch.equal(RecordDataset(images, scale=1 / 255)[3], images[3].float() * torch.tensor(1 / 255))
    assert torch.equal(RecordDataset(images, bias=-128)[3], images[3].float() - 128)
    _, scaled = RecordDataset((torch.arange(5), images), scale={1: scale}, bias={1: bias}, out_dtype=out_dtype)[2]
    assert torch.equal(scaled, expected[2])


def test_memory_is_shared_and_changes_are_seen():
    tensor, array = torch.zeros(4, 2), np.zeros((4, 3), np.int32)
    dataset = RecordDataset((tensor, array, tensor[::2].repeat(2, 1)))
    tensor[1], array[1] = 5, 6
    assert dataset[1][0].tolist() == [5, 5]
    assert dataset[1][1].tolist() == [6, 6, 6]
    assert dataset[1][2].tolist() == [0, 0]


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[::-1],
        lambda array: array[:, ::2],
        lambda array: array.T,
        lambda array: array[::3],
        lambda array: np.broadcast_to(array[:1], array.shape),
    ],
)
def test_arrays_in_any_order(view):
    array = view(np.arange(48, dtype=np.float32).reshape(6, 8))
    dataset = RecordDataset(array)
    assert [dataset[i].tolist() for i in range(len(array))] == array.tolist()


def test_tensors_in_any_order():
    base = values(6, 8)
    for tensor in (base.t(), base[:, ::2], base[::2], base[:1].expand(6, 8), torch.randn(4, 2).to(torch.cfloat).conj()):
        assert torch.equal(RecordDataset(tensor)[-1], tensor[-1])
    assert torch.equal(RecordDataset(torch.nn.Parameter(base, requires_grad=False))[1], base[1])


def test_an_array_that_cannot_be_written_is_no_matter(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RecordDataset(np.load(tmp_path / "a.npy", mmap_mode="r"))[1].tolist() == [2, 3]


# --- as a data set ---------------------------------------------------------------------------------------------------


def test_indices(raw):
    dataset = RecordDataset(raw, dtype="f4", shape=(3, 2))
    assert torch.equal(dataset[np.int64(2)], dataset[2])
    assert torch.equal(dataset[torch.tensor(2)], dataset[-8])
    assert dataset.__getitems__([]) == []
    for index in (10, -11, 2**63):
        with pytest.raises(IndexError, match=f"index: expected -10 to 9, got {index}"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.0]
    assert len(list(dataset)) == 10  # IndexError ends it


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["bare", "tuple", "dict"])
def test_torchs_loader_batches_it(raw, kind, workers):
    data, labels = values(10, 3, 2), torch.arange(10)
    dataset, expected = {
        "bare": lambda: (RecordDataset(raw, dtype="f4", shape=(3, 2)), data[4:8]),
        "tuple": lambda: (RecordDataset((data, labels)), [data[4:8], labels[4:8]]),
        "dict": lambda: (RecordDataset({"x": data, "y": labels}), {"x": data[4:8], "y": labels[4:8]}),
    }[kind]()
    context = "spawn" if workers else None
    batch = list(DataLoader(dataset, 4, num_workers=workers, multiprocessing_context=context))[1]
    assert type(batch) is type(expected)
    torch.testing.assert_close(batch, expected, rtol=0, atol=0)


def test_pickled_by_path(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(raw.parent)
    dataset = RecordDataset({"x": raw.name, "y": torch.arange(10)}, dtype={"x": "f4"}, shape={"x": (3, 2)})
    state = pickle.dumps(dataset)
    assert len(state) < 3000
    monkeypatch.chdir("/")
    copy = pickle.loads(state)
    assert torch.equal(copy[3]["x"], dataset[3]["x"])
    assert copy.fingerprint() == dataset.fingerprint()
    os.truncate(raw, 48)
    with pytest.raises(ValueError, match=r"records.bin: expected 240 bytes, as when pickled, got 48"):
        pickle.loads(state)


def test_fingerprint_changes_with_the_data_case32(raw, tmp_path):
    def fingerprint(path=raw, **more):
        return RecordDataset(path, **{"dtype": "f4", "shape": (3, 2), **more}).fingerprint()

    first = fingerprint()
    assert len(first) == 16
    moved = Path(raw).rename(tmp_path / "elsewhere.bin")
    assert fingerprint(moved) == first
    assert fingerprint(moved, shape=6) != first
    assert fingerprint(moved, dtype="i4") != first
    assert fingerprint(moved, offset=24) != first
    swapped = tmp_path / "swapped.bin"
    values(10, 3, 2).numpy().astype(">f4").tofile(swapped)
    assert fingerprint(swapped, dtype=">f4") == first  # the same values
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    assert fingerprint(moved) != first
    images = values(5, 3, dtype=torch.uint8)
    plain = RecordDataset(images).fingerprint()
    images[0] = 9
    assert RecordDataset(images).fingerprint() == plain
    assert RecordDataset(images, scale=2).fingerprint() != plain
    assert RecordDataset({"x": images}).fingerprint() != RecordDataset((images,)).fingerprint() != plain


def test_repr_says_what_it_holds(table):
    text = repr(RecordDataset(table, scale={"image": 0.5}))
    assert text.startswith("RecordDataset(6 records: label: uint8 [], image: uint8 [3, 2, 2] to float32, scale [0.5")


def test_a_file_cut_short_is_an_error_case50(tmp_path):
    path = tmp_path / "records.bin"
    np.zeros((4096, 64), np.float32).tofile(path)
    dataset = RecordDataset(path, dtype="f4", shape=64)
    assert not dataset[4095].any()
    dataset.verify()
    os.truncate(path, 4096)
    for read in (lambda: dataset[4095], lambda: dataset.__getitems__([4000, 4095]), dataset.verify):
        with pytest.raises(RuntimeError, match=r"records.bin: expected 1048576 bytes, found 4096"):
            read()
