"""The loader and the operators from Python, without worker processes: also run by `make sanitize`."""

from __future__ import annotations

import gc
from pathlib import Path

import aegis
import numpy as np
import pytest
import torch

BLOCK = 24
TOKENS = np.random.default_rng(0).integers(0, 60_000, 4000, dtype=np.uint16)


@pytest.fixture
def dataset(tmp_path: Path) -> aegis.TokenDataset:
    path = tmp_path / "tokens.bin"
    TOKENS.tofile(path)
    return aegis.TokenDataset(path, BLOCK, dtype="uint16", stride=1)


def windows(starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.stack([TOKENS[start : start + BLOCK + 1] for start in starts]).astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def check_batches(batches: list[list[torch.Tensor]]) -> None:
    """Every row is the window that its first tokens say it is, and no start comes twice."""
    known = {TOKENS[i : i + BLOCK].tobytes(): i for i in range(len(TOKENS) - BLOCK)}
    seen = []
    for inputs, targets in batches:
        starts = [known[row.numpy().astype(np.uint16).tobytes()] for row in inputs]
        expected = windows(starts)
        np.testing.assert_array_equal(inputs, expected[0])
        np.testing.assert_array_equal(targets, expected[1])
        seen += starts
    assert len(set(seen)) == len(seen) == sum(len(batch[0]) for batch in batches)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int64])
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_operator(dtype: torch.dtype, block_size: int) -> None:
    arena = torch.arange(200).to(dtype)
    offsets = torch.tensor([0, 199 - block_size, 50])
    inputs, targets = torch.ops.aegis.extract_batch(arena, offsets, block_size)
    expected = offsets.unsqueeze(1) + torch.arange(block_size)
    assert torch.equal(inputs, expected)
    assert torch.equal(targets, expected + 1)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_held_whole(dataset: aegis.TokenDataset, workers: int) -> None:
    with aegis.FlatArenaDataLoader(dataset, 50, shuffle=True, seed=1, num_workers=workers) as loader:
        batches = list(loader)
    assert len(batches) == -(-(4000 - BLOCK) // 50)
    check_batches(batches)


def test_slots_go_round(dataset: aegis.TokenDataset) -> None:
    with aegis.FlatArenaDataLoader(dataset, 16, shuffle=True, seed=2, num_workers=2) as loader:
        for _ in range(2):
            check_batches([[x.clone(), y.clone()] for x, y in loader])
        assert loader.stats()["fresh_slots"] == 0


def test_early_break_and_views_that_outlive_the_loader(dataset: aegis.TokenDataset) -> None:
    kept = []
    for seed in range(10):
        loader = aegis.FlatArenaDataLoader(dataset, 8, shuffle=True, seed=seed, num_workers=2)
        for inputs, _ in loader:
            kept.append((inputs.clone(), inputs[2:].numpy()))
            break
        loader.close()
        del loader, inputs
    gc.collect()
    assert len(kept) == 10
    for copy, view in kept:
        np.testing.assert_array_equal(copy[2:], view)


def test_a_resumed_loader_delivers_the_rest(dataset: aegis.TokenDataset) -> None:
    options = {"batch_size": 64, "shuffle": True, "seed": 3, "num_workers": 2}
    with aegis.FlatArenaDataLoader(dataset, **options) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(20)]
        state = loader.state_dict()
        rest = list(iterator)
    with aegis.FlatArenaDataLoader(dataset, **options) as again:
        again.load_state_dict(state)
        resumed = list(again)
    check_batches(first + resumed)
    assert [[x.tolist(), y.tolist()] for x, y in resumed] == [[x.tolist(), y.tolist()] for x, y in rest]


def test_errors_reach_the_consumer(dataset: aegis.TokenDataset) -> None:
    sampler = [0, 1, 4000, 2]
    loader = aegis.FlatArenaDataLoader(dataset, 2, sampler=sampler, num_workers=1)
    iterator = iter(loader)
    assert next(iterator)[0].shape == (2, BLOCK)
    with pytest.raises(IndexError, match="4000"):
        next(iterator)


@pytest.mark.parametrize("row", [(), (1,), (7,), (3, 5)])
def test_gather_operators(row: tuple[int, ...]) -> None:
    source, indices = (
        torch.arange(40 * 15, dtype=torch.int16)[: 40 * int(np.prod(row))].view(40, *row),
        torch.tensor([39, 0]),
    )
    assert torch.equal(torch.ops.aegis.gather_records(source, indices), source[indices])
    if row:
        scale, bias = torch.full((row[0],), 0.5), torch.ones(row[0])
        for dtype in (0, 1):
            got = torch.ops.aegis.gather_records_scaled(source.to(torch.uint8), indices, scale, bias, dtype)
            assert torch.equal(got.float(), (source.to(torch.uint8)[indices] * 0.5 + 1).to(got.dtype).float())


def test_conversion_to_bfloat16() -> None:
    for x in (torch.randn(61), torch.randn(7, 19).t(), torch.randn(9, 33)[::2, 3:30]):
        out = torch.empty(*x.shape, 2, dtype=torch.bfloat16)[..., 1]
        torch.ops.aegis.to_bfloat16_rne(x, out=out)
        assert torch.equal(out, x.to(torch.bfloat16))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_records_of_tensors_and_files(tmp_path: Path, workers: int) -> None:
    layout = np.dtype([("row", "u1"), ("image", "u1", (3, 3))])
    table = np.zeros(200, layout)
    table["row"] = range(200)
    table["image"] = np.arange(200)[:, None, None]
    table.tofile(tmp_path / "table.bin")
    file = aegis.RecordDataset(tmp_path / "table.bin", dtype=layout, scale={"image": 2})
    memory = torch.utils.data.TensorDataset(torch.arange(200), torch.arange(1000.0).view(200, 5))
    for _ in range(2):
        held = list(aegis.FlatArenaDataLoader(file, 30, shuffle=True, seed=1, num_workers=workers))
        assert sorted(torch.cat([batch["row"] for batch in held]).tolist()) == list(range(200))
        assert all(torch.equal(batch["image"][:, 1, 2], 2.0 * batch["row"]) for batch in held)
        held = list(aegis.FlatArenaDataLoader(memory, 30, shuffle=True, num_workers=workers))
        assert sorted(torch.cat([rows for rows, _ in held]).tolist()) == list(range(200))
        assert all(torch.equal(values[:, 4], 5.0 * rows + 4) for rows, values in held)
    gc.collect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_skinny_linear(dtype: torch.dtype, rows: int) -> None:
    for k, n in ((1, 1), (33, 70), (300, 1200)):
        x = torch.randint(-4, 5, (rows, k)).to(dtype)
        weight = torch.randint(-4, 5, (n, k + 1)).to(dtype)[:, :k]
        got = torch.ops.aegis.skinny_linear(x, weight)
        assert torch.equal(got, (x.long() @ weight.long().t()).to(dtype))


@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_float8_linear(block: int, rows: int) -> None:
    for k, n in ((1, 1), (130, 37), (1100, 9)):
        x = torch.randint(-3, 4, (rows, k)).float()
        values, scales = torch.ops.aegis.float8_quantize(torch.randn(n, k), block)
        got = torch.ops.aegis.float8_linear(x, values, scales)
        wide = scales.repeat_interleave(block or k, 1)[:, :k]
        inputs, input_scales = torch.ops.aegis.float8_quantize(x, block)
        exact = (inputs.double() * input_scales.repeat_interleave(block or k, 1)[:, :k]) @ (values.double() * wide).t()
        assert torch.allclose(got.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_ternary_linear(exact: bool, rows: int) -> None:
    for k, n in ((1, 1), (33, 70), (300, 1200)):
        trits = torch.randint(-1, 2, (n, k)).float()
        packed, scale = torch.ops.aegis.pack_ternary(trits)
        assert torch.equal(torch.ops.aegis.unpack_ternary(packed, scale, k), trits)
        x = torch.randint(-4, 5, (rows, k)).float()
        x[:, 0] = 127  # activations are whole numbers, and stay what they are
        got = torch.ops.aegis.ternary_linear(x, packed, scale, None, exact)
        assert torch.equal(got, x @ trits.t())


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_kv_append_(tokens: int) -> None:
    for size in (1, 33, 128):
        keys, values = torch.zeros(3, 2, 5, size), torch.zeros(3, 2, 5, size, dtype=torch.bfloat16)
        new = torch.randint(-9, 9, (2, tokens, 2, size)).float().transpose(1, 2)
        torch.ops.aegis.kv_append_(keys, values, new, new.bfloat16(), torch.tensor([3, 11]), torch.tensor([2, 0]))
        for row, batch, first in ((2, 0, 3), (0, 1, 11)):
            for token in range(max(tokens - 5, 0), tokens):
                for buffer in (keys, values):
                    assert torch.equal(buffer[row, :, (first + token) % 5].float(), new[batch, :, token])
        pages = torch.zeros(8, 2, 5, size), torch.zeros(8, 2, 5, size)
        blocks = torch.tensor([[7, 1, 3], [0, 5, 2]])
        torch.ops.aegis.kv_append_.paged(*pages, new, new, torch.tensor([6, 0]), blocks)
        for batch, first in ((0, 6), (1, 0)):
            for token in range(tokens):
                page, slot = blocks[batch, (first + token) // 5], (first + token) % 5
                assert torch.equal(pages[1][page, :, slot], new[batch, :, token])


def test_kv_move_() -> None:
    for size in (1, 33, 128):
        keys, values = torch.randn(3, 2, 5, size), torch.randn(3, 2, 5, size).bfloat16()
        want = keys[2, :, 4].clone(), values[0, :, 0].clone()
        torch.ops.aegis.kv_move_(keys, values, torch.tensor([[4], [5]]), torch.tensor([1, 3]), torch.tensor([2, 0]))
        assert torch.equal(keys[2, :, 1], want[0])
        assert torch.equal(values[0, :, 3], want[1])


def test_token_tree() -> None:
    trees = [aegis._C.TokenTree([*range(-1, 63)]), aegis._C.TokenTree([-1, -1, 1])]
    tokens, state = torch.full((2, 64), 1), torch.tensor([[1, 2, 2**63 - 1, 0]] * 2)
    kept, nodes, following = aegis._C.follow_picks(trees, tokens.numpy(), torch.ones(2, 65).long().numpy())
    assert (kept.tolist(), following.tolist(), nodes[1, :2].tolist()) == ([64, 1], [1, 1], [0, -1])
    p, q = torch.ones(2, 65, 3) / 3, torch.tensor([[[0.0, 1, 0]] * 64] * 2)
    kept, nodes, following = aegis._C.follow_draws(trees, tokens.numpy(), p.numpy(), q.numpy(), state.numpy())
    assert ((nodes >= 0).sum(1) == kept).all()
    assert ((following >= 0) & (following < 3)).all()
    assert trees[0].mask().sum() == 65 * 66 // 2
    assert trees[1].paths().tolist() == [[-1, -1], [0, -1], [1, -1], [1, 2]]


def test_kv_slots() -> None:
    slots = aegis._C.KvSlots(3, 10, [(4, 2)])
    assert slots.begin([2, 0], 6)
    slots.commit()
    slots.crop([2, 0], [1, 6])
    slots.gather([2])
    assert (slots.lengths, slots.rows_in_use, slots.croppable(0)) == ([5, 0, 0], [0], 2)
    with pytest.raises(ValueError, match="expected at most 10 tokens"):
        slots.begin([0, 1], 6)
    assert slots.copy().lengths == [5, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sample(dtype: torch.dtype) -> None:
    """Rows in threads of their own, with limits that take every way through a row."""
    for width in (1, 33, 3000):
        logits = torch.arange(40 * (width + 1)).remainder(97).view(40, width + 1).to(dtype)[:, :width]
        for settings in ([0.0, 0, 1, 0], [1, 9, 0.9, 0], [50, 300, 0.9, 0], [50, 0, 0.9, 0.01], [9, 0, 1, 0]):
            for keep_ties in (False, True):
                state = torch.arange(160).view(40, 4)
                tokens, valid, logprobs = torch.ops.aegis.sample(
                    logits, torch.tensor([settings], dtype=torch.float32), state, keep_ties
                )
                assert valid.all()
                assert (logprobs <= 0).all()
                assert ((tokens >= 0) & (tokens < width)).all()
                law = torch.ops.aegis.token_probabilities(logits, torch.tensor([settings]).float(), keep_ties)
                assert (law.gather(1, tokens[:, None]) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [2, 6, 14])
def test_decode_attention(dtype: torch.dtype, heads: int) -> None:
    """Equal scores: the mean of the values, here whole numbers around it, of positions that go round the buffer."""
    for size, slots in ((1, 300), (33, 600), (80, 299)):
        query, keys = torch.ones(2, heads, 1, size, dtype=dtype), torch.ones(2, 2, slots, size, dtype=dtype)
        values = (torch.arange(slots) % 2 * 2).to(dtype).view(1, 1, slots, 1).expand(2, 2, slots, size).contiguous()
        spans = torch.tensor([[0, 298], [slots, 2 * slots - slots % 2]])
        got = torch.ops.aegis.decode_attention(query, keys, values, spans, 1.0)
        torch.testing.assert_close(got, torch.ones_like(got), rtol=1e-3, atol=0)
        # The buffer's rows as pages: one after the other, and one of them twice.
        blocks, spans = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, slots - slots % 2], [slots, 2 * slots - 2]])
        got = torch.ops.aegis.decode_attention.paged(query, keys, values, spans, 1.0, blocks)
        torch.testing.assert_close(got[0], torch.ones_like(got[0]), rtol=1e-3, atol=0)
        assert torch.isfinite(got).all()
