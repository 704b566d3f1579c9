"""torch.ops.aegis.decode_attention against float64, and in every way a torch program can call it."""

import aegis
import pytest
import torch
from attention_tensors import SPANS, operands
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import DTYPES, random
from torch.nn import functional

decode_attention = torch.ops.aegis.decode_attention


def exact(query, keys, values, spans, scale, window=0, softcap=0.0, rows=None):
    """The definition in float64, and how far float32 arithmetic may be from it.

    A score is a sum of ``size`` products, off by at most size·2⁻²³ times the sum of their sizes; a weight is off by
    that and by two units for each of its functions; a sum of n weights times values adds n·2⁻²³, twice: above and below
    the division.
    """
    batch, heads, _, size = query.shape
    groups = heads // keys.shape[1]
    out = torch.zeros(batch, 1, heads, size, dtype=torch.float64)
    error = torch.zeros(batch, 1, heads, 1, dtype=torch.float64)
    for b, (start, end) in enumerate(spans.reshape(-1, 2).tolist()):
        begin = max(start, end - window) if window else start
        slots = torch.arange(begin, end) % keys.shape[2]
        if begin == end:
            continue
        row = b if rows is None else int(rows[b])
        for h in range(heads):
            q, k, v = query[b, h, 0].double(), keys[row, h // groups, slots].double(), values[row, h // groups, slots]
            scores, sizes = k @ q * scale, k.abs() @ q.abs() * abs(scale)
            score_error = (size + 4) * 2.0**-23 * sizes.max()
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
                score_error += softcap * 2.0**-21
            weights = torch.softmax(scores, 0)
            out[b, 0, h] = weights @ v.double()
            error[b, 0, h] = (2 * score_error + (2 * len(slots) + 16) * 2.0**-23) * v.double().abs().max()
    return out, error


def assert_within_bound(got, *arguments, **keywords):
    want, error = exact(*arguments, **keywords)
    info = torch.finfo(got.dtype)
    rounding = 0 if got.dtype == torch.float32 else info.eps / 2 * (want.abs() + error) + info.smallest_normal
    assert got.dtype == arguments[0].dtype
    assert got.shape == want.shape
    assert got.is_contiguous()
    assert ((got.double() - want).abs() <= error + rounding).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 16, 40, 64, 80, 96, 128, 129, 257])
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (6, 6), (3, 1), (8, 2), (14, 2)])
def test_reference(dtype, size, heads, key_heads):
    tensors = operands(3, heads, key_heads, 70, size, dtype)
    spans = torch.tensor([[0, 70], [60, 110], [3, 4]])
    for window, softcap in ((0, 0.0), (20, 0.0), (0, 3.0)):
        arguments = (*tensors, spans, size**-0.5, window, softcap)
        assert_within_bound(decode_attention(*arguments), *arguments)


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_reference_any_shape(data, dtype):
    """Any spans, wrapped or not, windows, row numbers and strides; and nothing outside of the spans is read."""
    batch, groups, key_heads = (data.draw(st.integers(low, 4)) for low in (0, 1, 1))
    rows, slots, size = (data.draw(st.integers(1, high)) for high in (5, 600, 40))
    start = data.draw(st.integers(0, 2000))
    spans = torch.zeros(batch, 2, dtype=torch.int64)
    for b in range(batch):
        spans[b, 0] = data.draw(st.integers(0, start))
        spans[b, 1] = spans[b, 0] + data.draw(st.integers(0, slots))
    window = data.draw(st.sampled_from([0, 1, 7, 300, 5000]))
    softcap = data.draw(st.sampled_from([0.0, 0.5, 30.0]))
    row_numbers = torch.tensor([data.draw(st.integers(0, rows - 1)) for _ in range(batch)], dtype=torch.int64)
    query = random(batch, 1, groups * key_heads, size + 1, dtype=dtype)[..., 1:].transpose(1, 2)
    keys, values = (
        random(rows, slots, key_heads, size + 2, dtype=dtype, seed=i)[..., 1:-1].transpose(1, 2) for i in (1, 2)
    )
    seen = torch.zeros(rows, slots, dtype=torch.bool)
    for row, (first, end) in zip(row_numbers.tolist(), spans.tolist(), strict=True):
        seen[row, torch.arange(max(first, end - window) if window else first, end) % slots] = True
    for buffer in (keys, values):
        buffer.masked_fill_(~seen[:, None, :, None], torch.nan)
    copies = [t.clone() for t in (query, keys, values, spans, row_numbers)]
    arguments = (query, keys, values, spans, 0.3, window, softcap, row_numbers)
    assert_within_bound(decode_attention(*arguments), *arguments)
    for before, after in zip(copies, (query, keys, values, spans, row_numbers), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [2, 8])
def test_reference_sdpa_over_the_whole_buffer(dtype, heads):
    """Rows of different lengths in one buffer, as a mask and as spans."""
    query, keys, values = operands(4, heads, 2, 300, 64, dtype)
    spans = torch.tensor([[0, 300], [17, 120], [290, 300], [0, 1]])
    position = torch.arange(300)
    mask = (spans[:, :1] <= position) & (position < spans[:, 1:])
    want = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask[:, None, None], enable_gqa=heads != 2
    )
    got = decode_attention(query, keys, values, spans, 64**-0.5)
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(got, want.transpose(1, 2), rtol=tolerance, atol=tolerance)


def test_reference_empty_ranges():
    query, keys, values = operands()
    values.fill_(torch.nan)
    got = decode_attention(query, keys, values, torch.tensor([[5, 5], [0, 0]]), 1.0)
    assert torch.equal(got, torch.zeros(2, 1, 4, 16))
    assert decode_attention(query[:0], keys, values, torch.empty(0, 2, dtype=torch.int64), 1.0).shape == (0, 1, 4, 16)
    assert (
        decode_attention(query[..., :0], keys[..., :0], values[..., :0], torch.tensor([[0, 9]] * 2), 1.0).numel() == 0
    )


def test_reference_spans_as_a_four_dimensional_mask():
    query, keys, values = operands()
    spans = torch.tensor([[0, 20], [5, 30]])
    want = decode_attention(query, keys, values, spans, 0.25)
    assert torch.equal(decode_attention(query, keys, values, spans.view(2, 1, 1, 2), 0.25), want)
    strided = torch.zeros(2, 4, dtype=torch.int64)[:, ::2].copy_(spans)
    assert torch.equal(decode_attention(query, keys, values, strided, 0.25), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_what_lies_beyond_the_range_does_not_matter_case7(dtype):
    """A row alone and among rows of other lengths: the same bits."""
    query, keys, values = operands(4, 8, 2, 400, 64, dtype)
    spans = torch.tensor([[3, 40], [0, 390], [0, 400], [100, 101]])
    together = decode_attention(query, keys, values, spans, 0.125)
    for row in range(4):
        alone = decode_attention(query[row, None], keys[row, None], values[row, None], spans[row, None], 0.125)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_reference_threads(dtype, softcap):
    """Pieces of a range are the same whoever works on them."""
    before = torch.get_num_threads()
    query, keys, values = operands(2, 8, 2, 3000, 64, dtype)
    spans = torch.tensor([[0, 3000], [2500, 5100]])
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(decode_attention(query, keys, values, spans, 0.125, 0, softcap))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert_within_bound(results[0], query, keys, values, spans, 0.125, 0, softcap)


def test_reference_nan_and_infinity_go_through():
    query, keys, values = operands(1, 1, 1, 9, 5)
    spans = torch.tensor([[0, 9]])
    values[0, 0, 4, 2] = torch.inf
    got = decode_attention(query, keys, values, spans, 1.0)
    assert got[0, 0, 0, 2] == torch.inf
    assert got.isfinite().sum() == 4
    keys[0, 0, 7] = torch.nan
    assert decode_attention(query, keys, values, spans, 1.0).isnan().all()


def test_reference_scores_far_apart():
    """One score far above the rest, first, last and in the middle: weights of 1 and 0, without overflow."""
    for place in (0, 5, 600, 999):
        query, keys, values = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1000, 1), -1e4), random(1, 1, 1000, 1)
        keys[0, 0, place] = 1e4
        got = decode_attention(query, keys, values, torch.tensor([[0, 1000]]), 1.0)
        assert got.item() == values[0, 0, place].item()


def test_reference_python_signature():
    query, keys, values = operands()
    spans, rows = torch.tensor([[0, 20], [5, 30]]), torch.tensor([1, 1])
    want = decode_attention(query, keys, values, spans, 0.25, 10, 5.0, rows)
    got = aegis.ops.decode_attention(query, keys, values, spans, 0.25, window=10, softcap=5.0, rows=rows)
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    query, keys, values = operands(dtype=dtype)
    spans = torch.tensor([[0, 20], [25, 40]])
    torch.library.opcheck(decode_attention.default, (query, keys, values, spans, 0.25))
    torch.library.opcheck(
        decode_attention.default,
        (query.transpose(1, 2).contiguous().transpose(1, 2), keys, values, spans.view(2, 1, 1, 2), 0.25, 7, 30.0),
        {"rows": torch.tensor([1, 0])},
    )


class Attention(torch.nn.Module):
    def forward(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spans: torch.Tensor
    ) -> torch.Tensor:
        return torch.ops.aegis.decode_attention(query, keys, values, spans, 0.25, 12).relu()


def test_script_saved_and_loaded(tmp_path):
    module, tensors = Attention(), operands()
    torch.jit.script(module).save(tmp_path / "attention.pt")
    assert torch.equal(torch.jit.load(tmp_path / "attention.pt")(*tensors, SPANS), module(*tensors, SPANS))


def test_compile_fullgraph():
    module, tensors = Attention(), operands()
    compiled = torch.compile(module, fullgraph=True, backend="inductor")
    assert torch.equal(compiled(*tensors, SPANS), module(*tensors, SPANS))


def test_compile_spans_of_another_length():
    """Lengths are data: another one needs no new graph."""
    module, tensors = Attention(), operands()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    spans = SPANS.clone()
    compiled(*tensors, spans)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            spans[:, 1] += 1
            spans[1, 0] += 1
            assert torch.equal(compiled(*tensors, spans), module(*tensors, spans))


def test_export():
    module, tensors = Attention(), operands()
    program = torch.export.export(module, (*tensors, SPANS))
    assert torch.equal(program.module()(*tensors, SPANS), module(*tensors, SPANS))


QUERY, KEYS, VALUES = operands()


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"query": QUERY.double()}, ValueError, "query: expected dtype float32, bfloat16 or float16, got float64"),
        ({"query": QUERY.half()}, ValueError, "keys: expected dtype float16, got float32"),
        ({"values": VALUES.bfloat16()}, ValueError, "values: expected dtype float32, got bfloat16"),
        (
            {"query": QUERY[:, :, 0]},
            ValueError,
            r"query: expected shape \(batch, heads, 1, head size\), got \[2, 4, 16\]",
        ),
        ({"query": QUERY.expand(-1, -1, 3, -1)}, ValueError, r"query: expected shape .*got \[2, 4, 3, 16\]"),
        ({"query": QUERY[:, :3]}, ValueError, r"query: expected a multiple of 2 heads \(those of keys\), got 3"),
        (
            {"query": QUERY[..., :15]},
            ValueError,
            r"keys: expected shape \(rows, heads, slots, 15\), got \[2, 2, 30, 16\]",
        ),
        ({"query": random(2, 4, 1, 32)[..., ::2]}, ValueError, "query: expected adjacent elements .*got stride 2"),
        (
            {"query": QUERY.repeat(2, 1, 1, 1), "spans": SPANS.repeat(2, 1)},
            ValueError,
            r"query: expected at most 2 batch rows .*got 4",
        ),
        ({"keys": KEYS[0]}, ValueError, r"keys: expected shape \(rows, heads, slots, 16\), got \[2, 30, 16\]"),
        ({"keys": random(2, 2, 16, 30).transpose(2, 3)}, ValueError, "keys: expected adjacent .*got stride 30"),
        (
            {"values": VALUES[:, :, :29]},
            ValueError,
            r"values: expected the shape of keys \[2, 2, 30, 16\], got \[2, 2, 29, 16\]",
        ),
        ({"values": VALUES[:, :1]}, ValueError, "values: expected the shape of keys"),
        ({"spans": SPANS.int()}, ValueError, "spans: expected dtype int64, got int32"),
        ({"spans": SPANS[:1]}, ValueError, r"spans: expected shape \(2, 2\), .*got \[1, 2\]"),
        ({"spans": SPANS.view(4)}, ValueError, r"spans: expected shape \(2, 2\), .*got \[4\]"),
        (
            {"spans": torch.tensor([[0, 20], [-1, 9]])},
            ValueError,
            r"spans\[1\]: expected 0 <= start <= end, got -1 and 9",
        ),
        (
            {"spans": torch.tensor([[0, 20], [9, 8]])},
            ValueError,
            r"spans\[1\]: expected 0 <= start <= end, got 9 and 8",
        ),
        ({"spans": torch.tensor([[0, 31], [0, 9]])}, ValueError, r"spans\[0\]: expected at most 30 positions .*got 31"),
        (
            {"spans": torch.tensor([[0, 99], [0, 9]]), "window": 31},
            ValueError,
            "at most 30 positions .*got 31 .from 68 to 99",
        ),
        (
            {
                "keys": torch.zeros(16).expand(2, 2, 2**56, 16),
                "values": torch.zeros(16).expand(2, 2, 2**56, 16),
                "spans": torch.tensor([[0, 20], [5, 2**56]]),
            },
            ValueError,
            r"spans\[1\]: expected at most 34359738368 positions, got 72057594037927931",
        ),
        ({"window": -1}, ValueError, r"window: expected 0 \(none\) or more, got -1"),
        ({"softcap": -1.0}, ValueError, r"softcap: expected 0 \(none\) or more, got -1"),
        ({"softcap": float("nan")}, ValueError, "softcap: expected 0"),
        ({"rows": torch.tensor([0, 2])}, IndexError, r"rows\[1\]: expected an index in \[0, 2\), got 2"),
        ({"rows": torch.tensor([-1, 0])}, IndexError, r"rows\[0\]: expected an index in \[0, 2\), got -1"),
        ({"rows": torch.tensor([0])}, ValueError, r"rows: expected shape \[2\], one for each batch row, got \[1\]"),
        ({"rows": torch.tensor([0, 1], dtype=torch.int32)}, ValueError, "rows: expected dtype int64, got int32"),
    ],
)
def test_bad_input(replaced, error, message):
    arguments = {"query": QUERY, "keys": KEYS, "values": VALUES, "spans": SPANS, "scale": 0.25} | replaced
    with pytest.raises(error, match=message):
        aegis.ops.decode_attention(**arguments)
