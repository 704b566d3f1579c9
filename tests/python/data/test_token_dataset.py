import copy
import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from aegis import TokenDataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader


def save(path, tokens, dtype="uint16"):
    np.asarray(tokens).astype(dtype).tofile(path)
    return path


@pytest.fixture
def counting(tmp_path):
    """1000 uint16 tokens: 0, 1, 2, ..."""
    return save(tmp_path / "counting.bin", np.arange(1000))


def windows_of(files, block_size, stride):
    """Every window by the definition, from the tokens of each file."""
    for tokens in files:
        for at in range(0, len(tokens) - block_size, stride):
            yield tokens[at : at + block_size], tokens[at + 1 : at + block_size + 1]


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    block_size=st.integers(1, 20),
    stride=st.none() | st.integers(1, 25),
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "int32", "int64"]),
)
def test_windows_are_those_of_the_definition(tmp_path_factory, sizes, block_size, stride, dtype):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(sum(sizes))
    files = [rng.integers(0, 120, size) for size in sizes]
    paths = [save(folder / f"{at}.bin", tokens, dtype) for at, tokens in enumerate(files)]
    expected = list(windows_of(files, block_size, stride or block_size))
    if not expected:
        with pytest.raises(ValueError, match=f"block_size {block_size} needs"):
            TokenDataset(paths, block_size, dtype=dtype, stride=stride)
        return
    ds = TokenDataset(paths, block_size, dtype=dtype, stride=stride)
    assert ds.tokens == sum(sizes)
    assert len(ds) == len(expected)
    batch = ds.__getitems__(range(len(ds)))
    for (x, y), (one_x, one_y), (want_x, want_y) in zip(batch, ds, expected, strict=True):
        np.testing.assert_array_equal(x, want_x)
        np.testing.assert_array_equal(y, want_y)
        assert torch.equal(x, one_x)
        assert torch.equal(y, one_y)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_batches_are_int64_whatever_the_file_holds_case57(tmp_path, dtype):
    ds = TokenDataset(save(tmp_path / "a.bin", np.arange(100), dtype), 10, dtype=dtype)
    assert ds.dtype == getattr(torch, dtype)
    x, y = ds[3]
    assert (x.dtype, y.dtype, x.shape, y.shape) == (torch.int64, torch.int64, (10,), (10,))
    torch.nn.Embedding(100, 2)(x)


def test_counts_and_tail_case53(counting):
    assert len(TokenDataset(counting, 999, dtype="uint16")) == 1
    assert len(TokenDataset(counting, 64, dtype="uint16", stride=1)) == 1000 - 64
    ds = TokenDataset(counting, 64, dtype="uint16")
    assert (len(ds), ds.block_size, ds.stride, ds.tokens, ds.tail_tokens) == (15, 64, 64, 1000, 39)
    assert ds[len(ds) - 1][1][-1] == 960


def test_short_files_say_how_short_case54(tmp_path, counting):
    with pytest.raises(ValueError, match=r"counting\.bin: the file has 1000 tokens, but block_size 1000 needs"):
        TokenDataset(counting, 1000, dtype="uint16")
    short = save(tmp_path / "short.bin", np.arange(9))
    with pytest.raises(ValueError, match="and the other files: the longest has 9 tokens, but block_size 20"):
        TokenDataset([short, short], 20, dtype="uint16")


def test_empty_file_is_named_case64(tmp_path):
    with pytest.raises(ValueError, match=r"empty\.bin: the file is empty"):
        TokenDataset(save(tmp_path / "empty.bin", []), 8, dtype="uint16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 0}, "block_size: expected at least 1, got 0"),
        ({"block_size": -3}, "block_size: expected at least 1, got -3"),
        ({"block_size": 8, "stride": 0}, "stride: expected at least 1, got 0"),
        ({"block_size": 8, "vocab_size": 0}, "vocab_size: expected at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(counting, arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenDataset(counting, dtype="uint16", **arguments)
    with pytest.raises(TypeError):
        TokenDataset(counting, 8.5, dtype="uint16")


def test_indices_count_from_the_end_and_stop(counting):
    ds = TokenDataset(counting, 64, dtype="uint16")
    assert torch.equal(ds[-1][0], ds[14][0])
    assert torch.equal(ds[torch.tensor(2)][0], ds[2][0])
    for index in (15, -16, 1 << 40, 1 << 70):
        with pytest.raises(IndexError, match="index: expected -15 to 14, got"):
            ds[index]
    with pytest.raises(IndexError, match="got 15"):
        ds.__getitems__([0, 15])
    with pytest.raises(TypeError):
        ds[0:3]
    assert len([x for x, _ in ds]) == 15


def test_a_batch_is_views_of_two_matrices_case16(counting):
    batch = TokenDataset(counting, 64, dtype="uint16").__getitems__([5, 0, -1])
    storages = {tensor.untyped_storage().data_ptr() for sample in batch for tensor in sample}
    assert len(storages) == 2
    assert [x[0].item() for x, _ in batch] == [320, 0, 896]


def test_offsets_point_into_the_arena(tmp_path, counting):
    other = save(tmp_path / "other.bin", np.arange(5000, 5100))
    ds = TokenDataset([counting, other], 64, dtype="uint16")
    offsets = ds.offsets([0, 14, 15, -1])
    assert ds.arena.dtype == torch.uint16
    assert ds.arena[offsets.tolist()[3]].item() == 5000
    assert [ds.arena[at].item() for at in offsets.tolist()] == [0, 896, 5000, 5000]
    x, _ = torch.ops.aegis.extract_batch(ds.arena, offsets, 64)
    assert torch.equal(x[2], ds[15][0])


def test_order_is_that_of_the_file_case41(counting):
    x = torch.cat([x for x, _ in TokenDataset(counting, 37, dtype="uint16")])
    assert torch.equal(x, torch.arange(len(x)))


def test_patterns_sort_naturally_and_lists_do_not_case38(tmp_path):
    for at in (10, 9, 1, 2, 100):
        save(tmp_path / f"shard_{at}.bin", np.full(100, at))
    ds = TokenDataset(tmp_path / "shard_*.bin", 99, dtype="uint16")
    assert [x[0].item() for x, _ in ds] == [1, 2, 9, 10, 100]
    assert ds.paths == [str(tmp_path / f"shard_{at}.bin") for at in (1, 2, 9, 10, 100)]
    given_order = [tmp_path / "shard_9.bin", str(tmp_path / "shard_1*.bin"), tmp_path / "shard_2.bin"]
    ds = TokenDataset(given_order, 99, dtype="uint16")
    assert [x[0].item() for x, _ in ds] == [9, 1, 10, 100, 2]


def test_paths_that_exist_are_no_patterns(tmp_path):
    path = save(tmp_path / "a[1].bin", np.arange(100))
    assert TokenDataset(path, 10, dtype="uint16").paths == [str(path)]
    with pytest.raises(FileNotFoundError, match=r"no file matches the pattern.*b\*\.bin"):
        TokenDataset(tmp_path / "b*.bin", 10, dtype="uint16")
    with pytest.raises(FileNotFoundError, match="expected at least one token file"):
        TokenDataset([], 10, dtype="uint16")
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        TokenDataset(tmp_path / "none.bin", 10, dtype="uint16")


def test_files_of_different_dtypes_are_refused(tmp_path, counting):
    np.save(tmp_path / "other.npy", np.arange(100, dtype=np.int32))
    np.save(tmp_path / "first.npy", np.arange(100, dtype=np.uint16))
    with pytest.raises(ValueError, match=r"other\.npy: expected dtype uint16, as in .*first\.npy, got int32"):
        TokenDataset([tmp_path / "first.npy", tmp_path / "other.npy"], 10)


@pytest.mark.parametrize("dtype", [">u2", ">u4", ">i4", ">i8"])
def test_other_byte_order_is_swapped_case51(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.arange(300, dtype=dtype))
    np.save(tmp_path / "b.npy", np.arange(300, dtype=np.dtype(dtype).newbyteorder("=")))
    ds = TokenDataset([tmp_path / "a.npy", tmp_path / "b.npy"], 299)
    assert torch.equal(ds[0][0], torch.arange(299))
    assert torch.equal(ds[1][0], torch.arange(299))
    raw = save(tmp_path / "raw.bin", np.arange(300), dtype)
    assert torch.equal(TokenDataset(raw, 299, dtype=dtype)[0][1], torch.arange(1, 300))


def test_more_than_four_gigabytes_and_samples_case47_case48(tmp_path):
    path = tmp_path / "big.bin"
    size = (5 << 30) + 7
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size - 4)
        file.write(bytes([11, 12, 13, 14]))
    ds = TokenDataset(path, 3, dtype="uint8", stride=1)
    assert len(ds) == size - 3 > 1 << 32
    assert ds.offsets([-1]).item() == size - 4
    assert [tensor.tolist() for tensor in ds[-1]] == [[11, 12, 13], [12, 13, 14]]
    assert [tensor.tolist() for tensor in ds[size - 5]] == [[0, 11, 12], [11, 12, 13]]


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_ids_above_65535_do_not_wrap_case44(tmp_path, dtype):
    path = save(tmp_path / "a.bin", [65535, 65536, 70000, 128255], dtype)
    x, y = TokenDataset(path, 3, dtype=dtype, vocab_size=128256)[0]
    assert (x.tolist(), y.tolist()) == ([65535, 65536, 70000], [65536, 70000, 128255])


def test_ids_outside_the_vocabulary_are_found_case44(tmp_path):
    good = save(tmp_path / "good.bin", np.arange(100), "int32")
    tokens = np.arange(5_000_000) % 100
    tokens[4_500_000] = 100
    bad = save(tmp_path / "bad.bin", tokens, "int32")
    assert TokenDataset([good, bad], 10, dtype="int32", vocab_size=101).tokens == 5_000_100
    with pytest.raises(
        ValueError, match=r"bad\.bin: expected ids 0 to 99 \(vocab_size 100\), got 100 at token 4500000"
    ):
        TokenDataset([good, bad], 10, dtype="int32", vocab_size=100)
    negative = save(tmp_path / "negative.bin", [1, 2, -1, 3], "int32")
    with pytest.raises(ValueError, match=r"negative\.bin: .* got -1 at token 2"):
        TokenDataset(negative, 2, dtype="int32", vocab_size=100)


@pytest.mark.parametrize("vocab_size", [65_499, 65_500, 65_525, 65_536, 65_537])
def test_dtype_comes_from_the_file_not_the_vocabulary_case45(tmp_path, vocab_size):
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.int32))
    assert TokenDataset(tmp_path / "a.npy", 10, vocab_size=vocab_size).dtype == torch.int32


def test_memory_lives_as_long_as_the_last_tensor_case49(counting):
    arena = TokenDataset(counting, 64, dtype="uint16").arena[10:20]
    os.unlink(counting)
    gc.collect()
    assert arena.tolist() == list(range(10, 20))


def test_writing_to_the_arena_leaves_the_file_alone(counting):
    ds = TokenDataset(counting, 64, dtype="uint16")
    ds.arena[0] = 77
    assert ds[0][0][0] == 77
    assert np.fromfile(counting, np.uint16)[0] == 0


def test_arena_is_the_file_not_a_copy(counting):
    ds = TokenDataset(counting, 64, dtype="uint16")
    with open(counting, "r+b") as file:
        file.write(bytes([9, 0]))
    assert ds.arena[0].item() == 9


READS = {
    "one": lambda ds: ds[100],
    "batch": lambda ds: ds.__getitems__([0, 100, 5]),
    "iteration": lambda ds: [x for x, _ in ds],
    "verify": lambda ds: ds.verify(),
    "fingerprint": lambda ds: ds.fingerprint(),
    "pickle": lambda ds: copy.deepcopy(ds),
}


@pytest.mark.parametrize("read", READS)
def test_file_cut_short_in_use_raises_case49_case50(tmp_path, read):
    whole = save(tmp_path / "whole.bin", np.arange(2000))
    cut = save(tmp_path / "cut.bin", np.arange(20_000))
    ds = TokenDataset([whole, cut], 64, dtype="uint16")
    os.truncate(cut, 5000)
    with pytest.raises((RuntimeError, ValueError), match=r"cut\.bin: expected 40000 bytes.* 5000"):
        READS[read](ds)
    assert ds[3][0][0] == 192  # the other file is as good as before


CUT_IN_USE = """
import faulthandler, os, sys
import numpy as np
from aegis import TokenDataset
order, path = sys.argv[1:]
np.arange(20_000).astype(np.uint16).tofile(path)
if order == "before":
    faulthandler.enable()
ds = TokenDataset(path, 64, dtype="uint16")
if order == "after":
    faulthandler.enable()
os.truncate(path, 1)
for _ in range(3):
    try:
        ds[-1]
    except RuntimeError as error:
        print(error)
"""


def test_verify_tells_files_that_were_cut_from_files_that_were_replaced_case50(tmp_path):
    def made():
        np.arange(100_000, dtype=np.uint16).tofile(path)
        return TokenDataset(path, 16, dtype="uint16")

    path = tmp_path / "tokens.bin"
    dataset = made()
    dataset.verify()
    os.truncate(path, 10)
    with pytest.raises(RuntimeError, match=r"tokens.bin: expected 200000 bytes, found 10: the file was cut short"):
        dataset.verify()
    with pytest.raises(RuntimeError, match=r"tokens.bin: expected 200000 bytes, found 10"):
        dataset[-1]
    made()
    with pytest.raises(RuntimeError, match=r"tokens.bin: .* a page could not be read"):  # by dataset[-1]
        dataset.verify()
    dataset = made()
    path.unlink()
    path.write_bytes(b"another file")
    dataset.verify()
    assert int(dataset[-1][1][-1]) == int(dataset.arena[-1 - dataset.tail_tokens])


@pytest.mark.parametrize("order", ["before", "after", "never"])
def test_no_crash_with_faulthandler_enabled_case50(tmp_path, order):
    command = [sys.executable, "-c", CUT_IN_USE, order, str(tmp_path / "a.bin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("expected 40000 bytes, found 1: the file was cut short") == 3


def test_pickles_by_path_case13(tmp_path, counting):
    ds = TokenDataset([counting, counting], 64, dtype="uint16", stride=3)
    data = pickle.dumps(ds)
    assert len(data) < 1000
    loaded = pickle.loads(data)
    assert len(loaded) == len(ds)
    assert torch.equal(loaded[-1][1], ds[-1][1])
    assert loaded.fingerprint() == ds.fingerprint()
    save(counting, np.arange(1200))
    with pytest.raises(ValueError, match=r"counting\.bin: expected 2000 bytes, as when pickled, got 2400"):
        pickle.loads(data)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_torch_loader_with_workers_case13_case14(counting, method):
    ds = TokenDataset(counting, 64, dtype="uint16")
    expected = list(DataLoader(ds, batch_size=4))
    loaded = list(DataLoader(ds, batch_size=4, num_workers=1, multiprocessing_context=method))
    assert len(loaded) == len(expected) == 4
    for got, want in zip(loaded, expected, strict=True):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_fingerprint_is_of_the_data_not_of_its_place(tmp_path, counting):
    tokens = np.arange(1000)

    def fingerprint(paths, block_size=64, dtype="uint16", **arguments):
        return TokenDataset(paths, block_size, dtype=dtype, **arguments).fingerprint()

    first = fingerprint(counting)
    moved = save(tmp_path / "moved.bin", tokens)
    np.save(tmp_path / "array.npy", tokens.astype(">u2"))
    assert fingerprint(moved) == first == fingerprint(tmp_path / "array.npy")
    int(first, 16)
    last = save(tmp_path / "last.bin", np.append(tokens[:-1], 7))
    different = [
        first,
        fingerprint(counting, 65),
        fingerprint(counting, stride=63),
        fingerprint(save(tmp_path / "wide.bin", tokens, "int32"), dtype="int32"),
        fingerprint(save(tmp_path / "longer.bin", np.append(tokens, 1))),
        fingerprint(last),
        fingerprint([counting, last]),
        fingerprint([last, counting]),
    ]
    assert len(set(different)) == len(different)


def test_repr_says_what_it_is(counting):
    assert repr(TokenDataset(counting, 64, dtype="uint16")) == (
        "TokenDataset(15 windows: block_size=64, stride=64; 1000 uint16 tokens in 1 file)"
    )
