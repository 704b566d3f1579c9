"""Megatron pairs, datatrove and litData: what is read, and every check on files that are not as they should be."""

import json
import os
import struct

import aegis
import numpy as np
import pytest
import torch
from aegis.data import document_offsets
from aegis.data.formats import describe
from written import litdata_chunk, write_datatrove, write_litdata, write_megatron


def tokens_of(file):
    dataset = aegis.TokenDataset(file.path, file.tokens - 1)
    x, y = dataset[0]
    return [*x.tolist(), y[-1].item()]


# --- Megatron --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("modes", [False, True])
def test_megatron_pair_is_read(tmp_path, dtype, modes):
    path = write_megatron(tmp_path / "a", [3, 0, 4, 2], [0, 1, 1, 3, 4], dtype, modes)
    for named in (path, tmp_path / "a.idx"):
        file = describe(named)
        assert (file.path, file.format, file.dtype) == (str(path), "megatron", dtype)
        assert (file.byte_offset, file.tokens, file.documents) == (0, 9, 4)
    assert document_offsets(file).tolist() == [0, 3, 3, 7, 9]
    assert tokens_of(file) == list(range(9))
    assert aegis.TokenDataset(tmp_path / "a", 4).paths == [str(path)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, r"a\.idx: expected Megatron index version 1, got 2"),
        ({"code": 0}, r"expected a dtype code from 1 to 8, got 0"),
        ({"code": 9}, r"got 9"),
        ({"code": 2}, r"got dtype code 2 \(int8\)"),
        ({"code": 3}, r"got dtype code 3 \(int16\)"),
        ({"code": 6}, r"got dtype code 6 \(float64\)"),
        ({"code": 7}, r"expected tokens of uint8, uint16, int32 or int64, got dtype code 7 \(float32\)"),
        ({"code": 4}, r"sequence 1 at byte 12, .*got byte 6"),
        ({"sequences": 2**61}, "which .* bytes cannot hold"),
        ({"count": 2**62}, "which .* bytes cannot hold"),
        ({"tail": b"x"}, r"expected 102 bytes .* or, with modes, 105, got 103 \(1 too many\)"),
        ({"lengths": [3, -1, 2]}, "expected sequence 1 to have a length, got -1"),
        ({"lengths": [3, 4, 3]}, r"sequence 2 ends at byte 20, but .*a\.bin has 18"),
        ({"lengths": [3, 4, 1]}, r"a\.bin: expected 16 bytes, as .*a\.idx says, got 18 \(2 too many\)"),
        ({"pointers": [0, 7, 14]}, "expected sequence 1 at byte 6, .* got byte 7"),
        ({"pointers": [0, 6, 2**40]}, "expected sequence 2 at byte 14, .* got byte 1099511627776"),
        ({"pointers": [-2, 6, 14]}, "expected sequence 0 at byte 0, .* got byte -2"),
        ({"documents": [0]}, "expected at least 2 document boundaries, got 1"),
        ({"documents": [1, 2, 3]}, "expected document boundary 0 to be 0, got 1"),
        ({"documents": [0, 2, 1, 3]}, "expected document boundary 2 from 2 to 3, got 1"),
        ({"documents": [0, 4]}, "expected document boundary 1 from 0 to 3, got 4"),
        ({"documents": [0, -1, 3]}, "expected document boundary 1 from 0 to 3, got -1"),
        ({"documents": [0, 2]}, "expected the last document boundary to be 3, got 2"),
    ],
)
def test_megatron_that_contradicts_itself_is_refused_case46(tmp_path, changes, message):
    path = write_megatron(tmp_path / "a", [3, 4, 2], **changes)
    with pytest.raises(ValueError, match=message):
        describe(path)


@pytest.mark.parametrize(("change", "message"), [(-1, r"ends at byte 18, but .* has 17"), (1, r"\(1 too many\)")])
def test_megatron_of_the_wrong_size_is_refused_case49(tmp_path, change, message):
    path = write_megatron(tmp_path / "a", [3, 4, 2])
    os.truncate(path, 18 + change)
    with pytest.raises(ValueError, match=message):
        describe(path)


def test_megatron_index_cut_short_is_refused_case49(tmp_path):
    path = write_megatron(tmp_path / "a", [3, 4, 2])
    whole = (tmp_path / "a.idx").read_bytes()
    for size in range(9, len(whole)):  # shorter than the magic, it is no pair
        (tmp_path / "a.idx").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.idx: .*(expected|cannot hold)"):
            describe(path)


def test_megatron_pointers_are_64_bits_case47(tmp_path):
    lengths = [2**31 - 1, 2**31 - 1, 7]  # 8 GiB of uint16, which takes no room on disk
    write_megatron(tmp_path / "b", lengths[2:])  # the layout's shape, with few tokens
    ends = np.cumsum(lengths, dtype=np.int64)
    (tmp_path / "a.idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, 8, 3, 3)
        + np.asarray(lengths, np.int32).tobytes()
        + ((ends - lengths) * 2).tobytes()
        + np.asarray([0, 2, 3], np.int64).tobytes()
    )
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(ends[-1] * 2)
    found = describe(tmp_path / "a.bin")
    assert found.tokens == 2**32 + 5
    assert document_offsets(found).tolist() == [0, 2**32 - 2, 2**32 + 5]


# --- datatrove -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "item"), [("uint16", 2), ("uint32", 4)])
@pytest.mark.parametrize("metadata", [None, "gpt2|{item}\n9\n9 T", "gpt2\n9"])
def test_datatrove_is_read_case45(tmp_path, dtype, item, metadata):
    metadata = metadata and metadata.format(item=item)
    file = describe(write_datatrove(tmp_path / "a.ds", [3, 3, 9], dtype, metadata=metadata))
    assert (file.format, file.dtype, file.tokens, file.documents) == ("datatrove", dtype, 9, 3)
    assert document_offsets(file).tolist() == [0, 3, 3, 9]
    assert tokens_of(file) == list(range(9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ends": [3, 9], "tokens": 10}, r"a\.ds: expected 9 tokens of 2 or 4 bytes, .* got 20 bytes"),
        ({"ends": [3, 9], "dtype": "uint8"}, "got 9 bytes"),
        ({"ends": [3, 2**63 + 9], "tokens": 9}, "got 18 bytes"),
        ({"ends": [0], "tokens": 9}, "expected 0 tokens"),
        ({"ends": (5, 3, 9)}, r"a\.ds\.index: expected document end 1 from 5 to 9, got 3"),
        ({"ends": [10, 9]}, r"a\.ds\.index: expected document end 0 from 0 to 9, got 10"),
        ({"ends": [9], "metadata": "gpt2|4\n9"}, r"metadata: expected tokens of 2 bytes, .* got '4'"),
        ({"ends": [9], "metadata": "gpt2|2\n8"}, r"metadata: expected 9 tokens, .* got '8'"),
        ({"ends": [9], "metadata": "gpt2|2\n\udc80"}, r"a\.ds\.metadata: expected UTF-8, got 0x80"),
    ],
)
def test_datatrove_that_contradicts_itself_is_refused_case46(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        describe(write_datatrove(tmp_path / "a.ds", **arguments))


def test_datatrove_index_of_an_odd_size_is_refused(tmp_path):
    path = write_datatrove(tmp_path / "a.ds", [9])
    (tmp_path / "a.ds.index").write_bytes(bytes(15))
    with pytest.raises(ValueError, match=r"a\.ds\.index: expected document ends of 8 bytes, .* \(7 left over\)"):
        describe(path)
    (tmp_path / "a.ds.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.ds\.index: the file is empty"):
        describe(path)


# --- litData ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "dtype"),
    [("no_header_tensor:16", "int32"), ("no_header_tensor:18", "int64"), ("no_header_numpy:5", "uint16")],
)
def test_litdata_chunks_are_read(tmp_path, format, dtype):
    paths = write_litdata(tmp_path, [[3, 2], [4], [0, 6, 1]], format, dtype)
    for named in (tmp_path, tmp_path / "index.json"):
        dataset = aegis.TokenDataset(named, 3)
        assert dataset.paths == list(map(str, paths))
    assert [(file.format, file.dtype, file.tokens, file.documents) for file in dataset.files] == [
        ("litdata", dtype, 5, 2),
        ("litdata", dtype, 4, 1),
        ("litdata", dtype, 7, 3),
    ]
    assert [document_offsets(file).tolist() for file in dataset.files] == [[0, 3, 5], [0, 4], [0, 0, 6, 7]]
    # An int64 chunk of one item has its tokens at byte 12, where they cannot be used in place.
    assert [tokens_of(file) for file in dataset.files] == [list(range(5)), list(range(4)), list(range(7))]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"item_loader": "PyTreeLoader"}, "expected chunks written for litData's TokensLoader, got PyTreeLoader"),
        ({"item_loader": None}, "got None"),
        ({"compression": "zstd"}, "expected chunks without compression, got zstd"),
        ({"encryption": {"algorithm": "fernet"}}, "expected chunks without encryption"),
        ({"data_format": ["no_header_tensor:0"]}, r"expected one field of uint8, .*got data format \['no_header_te"),
        ({"data_format": ["jpeg"]}, "got data format"),
        ({"data_format": ["no_header_tensor:16", "int"]}, "expected one field"),
        ({"data_format": None}, "got data format None"),
    ],
)
def test_litdata_of_anything_but_tokens_is_refused(tmp_path, config, message):
    write_litdata(tmp_path, [[3, 2]], **config)
    with pytest.raises(ValueError, match=r"index\.json: .*" + message):
        aegis.TokenDataset(tmp_path, 3)


@pytest.mark.parametrize(
    ("at", "number", "message"),
    [
        (0, 0, "the header says 0 items"),
        (0, 1, "expected the first item at byte 12, got byte 16"),
        (0, 2**32 - 1, "the header says 4294967295 items, which 36 bytes cannot hold"),
        (4, 20, "expected the first item at byte 16, got byte 20"),
        (8, 8, "expected item offset 1 from 16 to 36, got 8"),
        (8, 40, "expected item offset 1 from 16 to 36, got 40"),
        (8, 27, "expected items of whole int32 tokens, but item 0 ends 3 bytes behind"),
        (12, 32, "expected the last item offset to be 36, got 32"),
    ],
)
def test_litdata_chunk_that_contradicts_itself_is_refused_case46(tmp_path, at, number, message):
    (path,) = write_litdata(tmp_path, [[3, 2]])
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, at, number)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"chunk-0-0\.bin: " + message):
        describe(path)


def test_litdata_chunk_of_another_size_than_the_index_says_is_refused_case49(tmp_path):
    (path,) = write_litdata(tmp_path, [[3, 2]])
    for data, message in (
        (litdata_chunk([3, 3]), "expected 5 tokens, as .*index.json says, got 6"),
        (litdata_chunk([5]), "expected 2 items, .*, got 1"),
        (litdata_chunk([3, 2])[:-1], "expected item offset 2 from 28 to 35, got 36"),
        (b"abc", "expected a litData chunk, got 3 bytes"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"chunk-0-0\.bin: " + message):
            describe(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a readable index"),
        ("[]", "not a readable index"),
        ('{"config": {}, "chunks": []}', "expected at least one chunk"),
        ('{"config": {}, "chunks": [{"filename": "../a.bin"}]}', "expected chunks in its own folder"),
        (
            '{"config": {}, "chunks": [{"filename": "a"}, {"filename": "a"}]}',
            "expected .* each named once, got 2",
        ),
        ("[" * 100_000, "not a readable index"),
    ],
)
def test_litdata_index_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json: " + message):
        aegis.TokenDataset(tmp_path, 3)


def test_raw_files_beside_a_foreign_index_are_raw(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": {}}))
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    assert describe(tmp_path / "a.bin", dtype="uint16").format == "raw"


# --- all -------------------------------------------------------------------------------------------------------------


def test_formats_without_documents_say_so(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint16))
    file = describe(tmp_path / "a.npy")
    assert file.documents is None
    assert document_offsets(file) is None


def test_documents_that_changed_meanwhile_are_refused(tmp_path):
    path = write_megatron(tmp_path / "a", [3, 4, 2])
    file = describe(path)
    write_megatron(tmp_path / "a", [3, 6], [0, 1, 2])
    with pytest.raises(ValueError, match=r"a\.bin: its documents have changed"):
        document_offsets(file)
    os.remove(tmp_path / "a.idx")
    with pytest.raises(RuntimeError, match=r"a\.idx: could not open"):
        document_offsets(file)


@pytest.mark.parametrize("write", [lambda p: write_megatron(p / "a", [9]), lambda p: write_datatrove(p / "a.ds", [9])])
def test_dtype_that_disagrees_is_refused_case45(tmp_path, write):
    with pytest.raises(ValueError, match="expected dtype uint16, as the file says, got int64"):
        describe(write(tmp_path), dtype="int64")


# --- against the projects themselves ---------------------------------------------------------------------------------


def test_litdata_reads_what_its_writer_wrote(tmp_path):
    litdata = pytest.importorskip("litdata", exc_type=ImportError, reason="litdata cannot be imported")

    writer = litdata.streaming.writer.BinaryWriter(
        str(tmp_path), chunk_size=8, item_loader=litdata.TokensLoader(block_size=4)
    )
    items = [torch.arange(n, dtype=torch.int64) + 10 * n for n in (5, 3, 9)]
    for at, item in enumerate(items):
        writer[at] = item
    writer.done()
    writer.merge()
    dataset = aegis.TokenDataset(tmp_path, 2)
    assert [document_offsets(file).tolist() for file in dataset.files] == [[0, 5, 8], [0, 9]]
    found = [token for file in dataset.files for token in tokens_of(file)]
    assert found == torch.cat(items).tolist()


def test_datatrove_reads_what_its_writer_wrote(tmp_path):
    pytest.importorskip("datatrove", exc_type=ImportError, reason="datatrove cannot be imported")
    tokenizer = pytest.importorskip(
        "datatrove.pipeline.tokens.tokenizer", exc_type=ImportError, reason="datatrove's tokenizer is not complete"
    )
    for size in (2, 4):
        writer = tokenizer.TokenizedFile(
            str(tmp_path), f"{size}.ds", token_size=size, save_final_metadata=True, tokenizer_name_or_path="gpt2|x"
        )
        for document in ([1, 2, 3], [4], [5, 6]):
            writer.write(document, None)
        writer.close()
        file = describe(tmp_path / f"{size}.ds")
        assert document_offsets(file).tolist() == [0, 3, 4, 6]
        assert tokens_of(file) == [1, 2, 3, 4, 5, 6]
