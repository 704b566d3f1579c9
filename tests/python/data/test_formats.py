import io
import os
import struct

import numpy as np
import pytest
import torch
from aegis.data.formats import DTYPES, describe, format_names, parse_dtype, register_format
from hypothesis import given
from hypothesis import strategies as st


def llmc(magic=20240520, version=1, count=None, tokens=None, order="<"):
    tokens = np.arange(1, 101) if tokens is None else tokens
    item = {20240520: "u2", 20240801: "u4"}.get(magic, "u2")
    header = struct.pack(f"{order}256i", magic, version, len(tokens) if count is None else count, *[0] * 253)
    return header + tokens.astype(order + item).tobytes()


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_takes_its_dtype_from_the_caller(tmp_path, dtype):
    path = write(tmp_path / "a.bin", np.arange(50).astype(dtype).tobytes())
    for spelling in (dtype, np.dtype(dtype), getattr(np, dtype), getattr(torch, dtype)):
        file = describe(path, dtype=spelling)
        assert (file.format, file.dtype, file.byte_offset, file.tokens) == ("raw", dtype, 0, 50)
        assert not file.swapped


def test_raw_is_never_guessed_case45(tmp_path):
    path = write(tmp_path / "tokens_uint16.npy", np.arange(50, dtype=np.uint16).tobytes())
    for format in ("auto", "raw"):
        with pytest.raises(ValueError, match=r"tokens_uint16\.npy: nothing in the file says .*give the dtype"):
            describe(path, format)


def test_raw_of_an_odd_size_is_refused_case46(tmp_path):
    path = write(tmp_path / "odd.bin", b"12345")
    with pytest.raises(ValueError, match=r"odd\.bin: 5 bytes .* uint16 tokens of 2 bytes \(1 left over\)"):
        describe(path, dtype="uint16")


def test_raw_of_the_other_byte_order_case51(tmp_path):
    path = write(tmp_path / "a.bin", np.arange(50, dtype=">u2").tobytes())
    assert describe(path, dtype=">u2").swapped
    assert not describe(path, dtype="<u2").swapped


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
@pytest.mark.parametrize("order", ["<", ">"])
def test_llmc_says_everything_itself(tmp_path, magic, version, dtype, order):
    file = describe(write(tmp_path / "a.bin", llmc(magic, version, order=order)))
    assert (file.format, file.dtype, file.byte_offset, file.tokens) == ("llm.c", dtype, 1024, 100)
    assert file.swapped == (order == ">")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (llmc(20240522), "evaluation set"),
        (llmc(version=3), "expected version 1, got 3"),
        (llmc(count=101), r"expected 1226 bytes .* got 1224 \(2 missing\)"),
        (llmc(count=99), r"got 1224 \(2 too many\)"),
        (llmc() + b"x", r"got 1225 \(1 too many\)"),
        (llmc()[:900], "the file ends after 900"),
        (llmc(count=-1), "the header says -1"),
    ],
)
def test_llmc_that_contradicts_itself_is_refused_case46(tmp_path, data, message):
    with pytest.raises(ValueError, match=r"a\.bin: .*" + message):
        describe(write(tmp_path / "a.bin", data))


def test_llmc_of_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.bin: expected an llm\.c header, the file begins 41 42 43 44"):
        describe(write(tmp_path / "a.bin", b"ABCDE"), "llm.c")


def test_named_format_wins_over_the_magic(tmp_path):
    path = write(tmp_path / "a.bin", llmc())
    assert describe(path, "raw", "uint16").tokens == 612


@pytest.mark.parametrize("dtype", [*DTYPES, ">u2", ">i8"])
def test_npy_says_everything_itself_case51(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.arange(60).astype(dtype))
    file = describe(tmp_path / "a.npy")
    assert (file.format, file.dtype, file.tokens) == ("npy", np.dtype(dtype).name, 60)
    assert file.swapped == (not np.dtype(dtype).isnative)
    assert file.byte_offset + 60 * np.dtype(dtype).itemsize == file.size


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version(tmp_path, version):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(60, dtype=np.uint16), version)
    assert describe(tmp_path / "a.npy").tokens == 60


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4), np.uint16), r"1-D array of tokens, got shape \(3, 4\); .* records"),
        (np.zeros((3, 4), np.uint16, order="F"), r"got shape \(3, 4\)"),
        (np.array(5), r"got shape \(\)"),
        (np.zeros(5, np.float32), "got float32"),
        (np.zeros(5, np.int16), "got int16"),
        (np.zeros(5, bool), "got bool"),
        (np.zeros(5, [("a", "i4")]), "got "),
        (np.zeros(0, np.uint16), "the array is empty"),
    ],
)
def test_npy_of_anything_but_tokens_is_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=r"a\.npy: .*" + message):
        describe(tmp_path / "a.npy")


def test_npy_holding_objects_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy: .*got object"):
        describe(tmp_path / "a.npy")


@pytest.mark.parametrize(("change", "message"), [(-3, r"got 245 \(3 missing\)"), (5, r"got 253 \(5 too many\)")])
def test_npy_of_the_wrong_size_is_refused_case49(tmp_path, change, message):
    np.save(tmp_path / "a.npy", np.arange(60, dtype=np.uint16))
    os.truncate(tmp_path / "a.npy", 248 + change)
    with pytest.raises(ValueError, match=r"expected 248 bytes \(header 128 \+ 60 uint16 tokens\), " + message):
        describe(tmp_path / "a.npy")


@pytest.mark.parametrize("data", [b"\x93NUMPY", b"\x93NUMPY\x07\x00\x05\x00{", b"\x93NUMPY\x01\x00\xff\xff{'de"])
def test_npy_with_a_broken_header_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"a\.npy: not a readable \.npy header"):
        describe(write(tmp_path / "a.npy", data))


@given(
    prefix=st.sampled_from([llmc()[:1024], llmc()[:12], b"\x93NUMPY\x01\x00\x10\x00", b"\x93NUMPY\x03\x00"]),
    rest=st.binary(max_size=300),
    literal=st.text("{}()[]'\":,\n \t#\\<>iudescrfotan_hp0123456789TrueFals", max_size=60),
)
def test_any_bytes_give_a_file_that_adds_up_or_a_refusal(tmp_path_factory, prefix, rest, literal):
    path = write(tmp_path_factory.mktemp("fuzz") / "x", prefix + literal.encode() + rest)
    try:
        file = describe(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert file.tokens > 0
        assert file.byte_offset + file.tokens * np.dtype(file.dtype).itemsize == file.size


def test_dtype_that_disagrees_with_the_file_is_refused_case45(tmp_path):
    path = write(tmp_path / "a.bin", llmc())
    assert describe(path, dtype="uint16").tokens == 100
    with pytest.raises(ValueError, match=r"a\.bin: expected dtype uint16, as the file says, got uint32"):
        describe(path, dtype="uint32")


@pytest.mark.parametrize("dtype", ["float32", "int16", "u3", "", object, 7, torch.bfloat16])
def test_unknown_dtype_is_refused(dtype):
    with pytest.raises(ValueError, match="dtype: expected one of uint8, uint16, uint32, int32, int64, got"):
        parse_dtype(dtype)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        describe(tmp_path / "none.bin")
    with pytest.raises(IsADirectoryError, match=r"got a directory .*\*\.bin"):
        describe(tmp_path)
    with pytest.raises(ValueError, match=r"empty\.bin: the file is empty"):
        describe(write(tmp_path / "empty.bin", b""), dtype="uint16")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: expected a file"):
        describe(tmp_path / "pipe", dtype="uint16")


def test_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"format: expected one of auto, llm\.c, npy, .*raw, got 'parquet'"):
        describe("a.bin", "parquet")


def test_formats_can_be_added(tmp_path):
    from aegis.data import TokenFile, formats

    def describe_twelve(source, dtype):
        return TokenFile(source.path, "twelve", "uint8", 2, source.size - 2, source.size, documents=3)

    path = write(tmp_path / "a.twelve", b"12abc")
    register_format("twelve", lambda source: source.head.startswith(b"12"), describe_twelve)
    try:
        assert "twelve" in format_names()
        file = describe(path)
        assert (file.format, file.tokens, file.documents) == ("twelve", 3, 3)
    finally:
        del formats._formats["twelve"]
    with pytest.raises(ValueError, match="name: 'raw' is taken"):
        register_format("raw", lambda source: True, describe_twelve)


def test_npy_header_longer_than_a_page(tmp_path):
    buffer = io.BytesIO()
    header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }"
    buffer.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + header.ljust(8999) + b"\n" + bytes(8))
    assert describe(write(tmp_path / "a.npy", buffer.getvalue())).byte_offset == 9010
