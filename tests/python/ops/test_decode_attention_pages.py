"""torch.ops.aegis.decode_attention over pages: the same bits as over one buffer."""

import aegis
import pytest
import torch
from attention_tensors import SPANS, operands
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES

decode_attention = torch.ops.aegis.decode_attention
QUERY, KEYS, VALUES = operands()


def on_pages(keys, values, slots, spare=3):
    """The same keys and values on pages in any order, and the block table; pages that it does not name are NaN."""
    rows, heads, total, size = keys.shape
    count = -(-total // slots)
    order = torch.randperm(rows * count + spare, generator=torch.Generator().manual_seed(rows * total))
    blocks = order[: rows * count].view(rows, count)
    pools = []
    for buffer in (keys, values):
        pool = torch.full((len(order), heads, slots, size), float("nan")).to(buffer.dtype)
        padded = torch.nn.functional.pad(buffer, (0, 0, 0, count * slots - total), value=float("nan"))
        pool[blocks] = padded.view(rows, heads, count, slots, size).transpose(1, 2)
        pools.append(pool)
    return *pools, blocks


@settings(deadline=None, max_examples=50)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), slots=st.sampled_from([1, 5, 16, 64]))
def test_reference_on_pages_the_same_bits(data, dtype, slots):
    query, keys, values = operands(batch=3, slots=150, size=data.draw(st.sampled_from([8, 33, 64])), dtype=dtype)
    ends = data.draw(st.lists(st.integers(0, 150), min_size=3, max_size=3))
    spans = torch.tensor([[data.draw(st.integers(0, end)), end] for end in ends])
    window, softcap = data.draw(st.sampled_from([0, 1, 40])), data.draw(st.sampled_from([0.0, 2.0]))
    rows = torch.tensor(data.draw(st.permutations(range(3))))
    pool_keys, pool_values, blocks = on_pages(keys, values, slots)
    wide = torch.nn.functional.pad(blocks, (2, 1), value=-7)  # amid other numbers, as a mask has it
    got = decode_attention.paged(query, pool_keys, pool_values, spans, 0.25, wide[:, 2:-1], window, softcap, rows)
    assert torch.equal(got, decode_attention(query, keys, values, spans, 0.25, window, softcap, rows))


def test_reference_rows_share_pages():
    query, keys, values = operands(batch=2, slots=40)
    keys[1, :, :32], values[1, :, :32] = keys[0, :, :32], values[0, :, :32]
    pool_keys, pool_values, blocks = on_pages(keys, values, 16)
    blocks[1, :2] = blocks[0, :2]
    spans = torch.tensor([[0, 40], [0, 37]])
    got = aegis.ops.decode_attention(query, pool_keys, pool_values, spans, 0.25, blocks=blocks)
    assert torch.equal(got, decode_attention(query, keys, values, spans, 0.25))


class PagedAttention(torch.nn.Module):
    def forward(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spans: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        return torch.ops.aegis.decode_attention(query, keys, values, spans, 0.25, blocks=blocks)


def test_opcheck_script_and_compile_on_pages(tmp_path):
    query, keys, values = operands()
    pool_keys, pool_values, blocks = on_pages(keys, values, 4)
    torch.library.opcheck(decode_attention.paged, (query, pool_keys, pool_values, SPANS, 0.25, blocks))
    module, tensors = PagedAttention(), (query, pool_keys, pool_values, SPANS, blocks)
    torch.jit.script(module).save(tmp_path / "attention.pt")
    want = decode_attention(query, keys, values, SPANS, 0.25)
    assert torch.equal(torch.jit.load(tmp_path / "attention.pt")(*tensors), want)
    assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(*tensors), want)


POOL_KEYS, POOL_VALUES, BLOCKS = on_pages(KEYS, VALUES, 8)


PAGES = len(POOL_KEYS)


def changed(row, block, page):
    blocks = BLOCKS.clone()
    blocks[row, block] = page
    return blocks


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"blocks": BLOCKS.int()}, ValueError, "blocks: expected dtype int64, got int32"),
        ({"blocks": BLOCKS.to("meta")}, ValueError, "blocks: expected to be on the device of query, cpu, got meta"),
        ({"blocks": BLOCKS[0]}, ValueError, r"blocks: expected shape \(rows, blocks\), got \[4\]"),
        ({"blocks": BLOCKS.t().contiguous().t()}, ValueError, "blocks: expected adjacent elements .*got stride 2"),
        ({"blocks": BLOCKS[:1]}, ValueError, r"query: expected at most 1 batch rows \(those of blocks\), got 2"),
        ({"blocks": changed(1, 3, PAGES)}, IndexError, rf"blocks\[1, 3\]: expected a page in \[0, {PAGES}\), got"),
        ({"blocks": changed(1, 0, -1)}, IndexError, rf"blocks\[1, 0\]: expected a page in \[0, {PAGES}\), got -1"),
        ({"blocks": BLOCKS[:, :3]}, ValueError, r"spans\[1\]: expected an end within 3 blocks of 8, got 30"),
        (
            {"spans": torch.tensor([[0, 1], [0, 2**62]])},
            ValueError,
            r"spans\[1\]: expected an end within 4 blocks of 8",
        ),
        (
            {
                "keys": POOL_KEYS[:, :, :1].expand(-1, -1, 2**40, -1),
                "values": POOL_VALUES[:, :, :1].expand(-1, -1, 2**40, -1),
                "spans": torch.tensor([[0, 1], [5, 2**41]]),
            },
            ValueError,
            rf"spans\[1\]: expected at most {2**35} positions, got {2**41 - 5}",
        ),
        ({"rows": torch.tensor([0, 2])}, IndexError, r"rows\[1\]: expected an index in \[0, 2\), got 2"),
        (
            {"keys": POOL_KEYS[:, :, :0], "values": POOL_VALUES[:, :, :0]},
            ValueError,
            "keys: expected at least 1 slot, got none",
        ),
    ],
)
def test_bad_input_on_pages(replaced, error, message):
    arguments = {"query": QUERY, "keys": POOL_KEYS, "values": POOL_VALUES, "spans": SPANS, "scale": 0.25}
    with pytest.raises(error, match=message):
        aegis.ops.decode_attention(**arguments | {"blocks": BLOCKS} | replaced)


def test_reference_pages_outside_of_the_range_are_not_looked_at():
    blocks = changed(0, 3, -5)
    got = decode_attention(QUERY, POOL_KEYS, POOL_VALUES, SPANS, 0.25, blocks=blocks)
    assert torch.equal(got, decode_attention(QUERY, KEYS, VALUES, SPANS, 0.25))
