"""What RecordDataset refuses, and in which words."""

import os

import aegis
import numpy as np
import pytest
import torch

RecordDataset = aegis.RecordDataset


@pytest.fixture
def raw(tmp_path):
    """Ten records of 3 x 2 float32."""
    path = tmp_path / "records.bin"
    np.arange(60, dtype=np.float32).tofile(path)
    return path


def test_a_size_that_does_not_divide_case46(raw):
    with open(raw, "ab") as file:
        file.write(b"12345")
    message = r"records.bin: expected .* records of 24 bytes, got a file of 245 bytes: 5 bytes are left over after 10"
    with pytest.raises(ValueError, match=message):
        RecordDataset(raw, dtype="f4", shape=(3, 2))
    with pytest.raises(ValueError, match=r"records of 24 bytes from byte 6, .*: 23 bytes are left over after 9"):
        RecordDataset(raw, dtype="f4", shape=(3, 2), offset=6)
    assert len(RecordDataset(raw, dtype="f4", shape=(3, 2), offset=5)) == 10


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"missing.bin"):
        RecordDataset(tmp_path / "missing.bin", dtype="f4")
    with pytest.raises(IsADirectoryError):
        RecordDataset(tmp_path, dtype="f4")
    with pytest.raises(ValueError, match=r"empty.bin: the file is empty"):
        RecordDataset(tmp_path / "empty.bin", dtype="f4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "records.bin: nothing in the file says what its records are: give dtype and shape"),
        ({"dtype": "f5"}, "dtype: expected a torch or NumPy dtype, got 'f5'"),
        ({"dtype": object}, "dtype: expected one of int8, .*, got object"),
        ({"dtype": "U3"}, "dtype: expected one of"),
        ({"dtype": "M8[s]"}, "dtype: expected one of"),
        ({"dtype": torch.float8_e4m3fn}, "dtype: expected one of .*, got torch.float8_e4m3fn"),
        ({"dtype": np.dtype([])}, "dtype: expected a dtype with fields that hold something"),
        ({"dtype": [("a", [("b", "u1")])]}, "dtype: expected one of"),
        ({"dtype": [("a", "u1")], "shape": 2}, "shape: expected none beside a dtype with fields"),
        ({"dtype": "f4", "shape": (3, 0)}, r"shape: expected extents of at least 1, got \(3, 0\)"),
        ({"dtype": "f4", "shape": -1}, "shape: expected extents of at least 1, got -1"),
        ({"dtype": "f4", "shape": 2.0}, None),
        ({"dtype": "f4", "offset": -4}, "offset: expected 0 to 239 .* got -4"),
        ({"dtype": "f4", "offset": 240}, "offset: expected 0 to 239 .* got 240"),
        ({"dtype": "f4", "fields": ["x"]}, "fields: expected none, as the fields of this source have no names"),
        ({"dtype": "u1", "shape": 4, "scale": [1, 2]}, r"scale: expected 1 or 4 finite numbers, got \[1, 2\]"),
        ({"dtype": "u1", "shape": 4, "bias": float("inf")}, "bias: expected 1 or 4 finite numbers, got inf"),
        ({"dtype": "u1", "scale": 1}, "scale: expected uint8 records with a dimension of channels"),
        ({"dtype": "f4", "shape": 4, "scale": 1}, r"scale: expected uint8 .*, got float32 \[4\]"),
        ({"dtype": "u1", "shape": 4, "scale": 1, "out_dtype": torch.half}, "out_dtype: expected torch.float32 or"),
    ],
    ids=str,
)
def test_arguments_for_a_file(raw, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        RecordDataset(raw, **arguments)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (torch.tensor(1), {}, r"source: expected a tensor of at least one record, got shape \(\)"),
        (torch.empty(0, 3), {}, r"source: expected a tensor of at least one record, got shape \(0, 3\)"),
        (np.empty((3, 0)), {}, r"source: expected an array of at least one record, got shape \(3, 0\)"),
        (torch.ones(3, requires_grad=True), {}, "source: expected a tensor that requires no gradient"),
        (torch.eye(3).to_sparse(), {}, "source: expected a dense CPU tensor, got torch.sparse_coo on cpu"),
        (torch.empty(3, device="meta"), {}, "source: expected a dense CPU tensor, got torch.strided on meta"),
        (np.array(["a"]), {}, "dtype: expected one of"),
        (torch.ones(3), {"dtype": "f4"}, "dtype: expected none beside a Tensor, got f4"),
        (torch.ones(3), {"offset": 1}, "offset: expected none beside a Tensor, got 1"),
        ((torch.ones(3), torch.ones(4)), {}, "source: expected fields of equal length, got {0: 3, 1: 4}"),
        ((torch.ones(3), torch.ones(3)), {"dtype": "f4"}, r"dtype: expected a dict by field out of \[0, 1\], got 'f4'"),
        ((torch.ones(3), torch.ones(3)), {"scale": {2: 1}}, r"scale: expected a dict by field out of \[0, 1\]"),
        ({"x": torch.ones(3)}, {"fields": ["y"]}, r"fields: expected names out of \['x'\], got 'y'"),
        ({"x": torch.ones(3)}, {"fields": "x"}, "fields: expected a sequence of names, got 'x'"),
        ((), {}, "source: expected at least one field, got none"),
        ({}, {}, "source: expected at least one field, got none"),
        ((np.zeros(3, [("a", "u1")]), torch.ones(3)), {}, "source: expected one field in each of several sources"),
        (5, {}, "source: expected a path, a NumPy array or a tensor, got a int"),
    ],
)
def test_sources_that_are_none(source, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        RecordDataset(source, **arguments)


def test_npy_files_that_are_none(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(12).reshape(4, 3))
    for arguments in ({"dtype": "i4"}, {"shape": 4}, {"dtype": "i8", "shape": ()}):
        with pytest.raises(ValueError, match=r"a.npy: expected records of int64 \(3,\), as the file says"):
            RecordDataset(path, **arguments)
    with pytest.raises(ValueError, match=r"offset: expected none beside a .npy file"):
        RecordDataset(path, offset=8)
    os.truncate(path, 200)
    with pytest.raises(ValueError, match=r"a.npy: expected 224 bytes .*, got 200"):
        RecordDataset(path)
    np.save(path, np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a.npy: expected values of a fixed size, got object, which is pickled"):
        RecordDataset(path)
    np.save(path, np.float32(1))
    with pytest.raises(ValueError, match=r"a.npy: expected an array of at least one record, got shape \(\)"):
        RecordDataset(path)
    np.save(path, np.empty((0, 3)))
    with pytest.raises(ValueError, match=r"a.npy: expected an array of at least one record, got shape \(0, 3\)"):
        RecordDataset(path)
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00" + b"not a header    ")
    with pytest.raises(ValueError, match=r"a.npy: not a readable .npy header"):
        RecordDataset(path)
