"""torch.ops.aegis.token_probabilities against torch's operations, sample, and in every way a program can call it."""

import math

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities_by_torch import probabilities_by_torch
from sampling import DTYPES, LIMITS, law, random, sample, settings_of, states

token_probabilities = torch.ops.aegis.token_probabilities


def assert_same_law(got, want):
    torch.testing.assert_close(got, want, rtol=3e-6, atol=1e-30)
    torch.testing.assert_close(got.sum(1), torch.ones(len(got)), rtol=2e-6, atol=0)


@settings(deadline=None, max_examples=120)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), keep_ties=st.booleans())
def test_reference_random_rows(data, dtype, keep_ties):
    """NaN, infinities, ties and subnormals, in rows that lie apart, with settings of their own. Numbers are so few and
    so far apart that no sum of them comes near to top_p but where it is meant to."""
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 6e4, -6e4, 1.0, 1.0, 2.5, -3.0]
    element = st.sampled_from(special if data.draw(st.booleans()) else [-math.inf, -3.0, 0.0, -0.0, 1.0, 2.5])
    width, rows, gap = (data.draw(st.integers(*limits)) for limits in ((1, 30), (1, 4), (0, 3)))
    values = data.draw(st.lists(element, min_size=rows * (width + gap), max_size=rows * (width + gap)))
    scores = torch.tensor(values, dtype=torch.float64).to(dtype).view(rows, width + gap)[:, gap:]
    row = st.tuples(
        st.sampled_from([0.0, -1.0, 0.5, 1.0, 3.0]),
        st.sampled_from([-5.0, 0.0, 1.0, 2.0, 5.0, 29.0, 1e9]),
        st.sampled_from([-1.0, 0.0, 1e-8, 0.3017, 0.9013, 1.0, 2.0]),
        st.sampled_from([0.0, 1e-3, 0.3, 1.0]),
    )
    table = torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    before = scores.clone()
    got = token_probabilities(scores, table, keep_ties)
    assert torch.equal(before.view(torch.int16), scores.contiguous().view(torch.int16))
    assert_same_law(got, probabilities_by_torch(scores, table, keep_ties))
    for row in range(rows):
        alone = token_probabilities(scores[row : row + 1], table[row : row + 1], keep_ties)
        assert torch.equal(alone, got[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("keep_ties", [False, True], ids=["", "keep_ties"])
def test_reference_large_rows(dtype, options, keep_ties):
    """Rows of several blocks and groups; in 16 bits most scores are tied."""
    scores = random(2, 9001, seed=5, dtype=dtype)
    got = token_probabilities(scores, settings_of(**options), keep_ties)
    assert_same_law(got, torch.stack([law(row, **options, keep_ties=keep_ties) for row in scores]).float())


@pytest.mark.parametrize("options", LIMITS, ids=str)
def test_reference_is_what_sample_draws_from(options):
    """Each drawn token has the probability that sample tells, of rows of equals too."""
    scores = torch.cat([random(40, 3000, seed=1), random(40, 3000, seed=2).mul(2).round(), torch.zeros(4, 3000)])
    for keep_ties in (False, True):
        got = token_probabilities(scores, settings_of(**options), keep_ties)
        tokens, valid, logprobs = sample(scores, settings_of(**options), states(84), keep_ties)
        assert valid.all()
        torch.testing.assert_close(got.gather(1, tokens[:, None])[:, 0].log(), logprobs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_out_of_rows_that_lie_apart(dtype):
    """As of the steps of a draft: what lies between is left alone."""
    scores = random(3, 700, dtype=dtype)
    steps = torch.full((3, 4, 700), 7.0)
    assert token_probabilities.out(scores, settings_of(top_k=300), out=steps[:, 1]) is None
    assert torch.equal(steps[:, 1], token_probabilities(scores, settings_of(top_k=300)))
    assert (steps[:, [0, 2, 3]] == 7).all()
    out = torch.empty(3, 700)
    assert aegis.ops.token_probabilities(scores, settings_of(), out=out) is out
    assert torch.equal(aegis.ops.token_probabilities(scores, settings_of()), out)


def test_reference_token_of_rows_that_are_not_valid():
    """The largest that is a number, the first of equals; 0 where none is."""
    nan, inf = math.nan, math.inf
    scores = torch.tensor([[nan, -inf, -inf], [-inf, nan, -inf], [nan, nan, nan], [nan, -1.0, 2.0], [nan, inf, inf]])
    assert token_probabilities(scores, settings_of()).argmax(1).tolist() == [1, 0, 0, 2, 1]
    assert torch.equal(token_probabilities(scores, settings_of()), probabilities_by_torch(scores, settings_of(), False))


def test_reference_no_rows_and_one_token():
    assert token_probabilities(torch.empty(0, 5), settings_of()).shape == (0, 5)
    for value in (0.0, -math.inf, math.inf, math.nan):
        assert token_probabilities(torch.full((2, 1), value), settings_of(top_p=0.5)).tolist() == [[1], [1]]
    column = torch.arange(6.0).view(2, 3)[:, :1]
    assert token_probabilities(column, settings_of()).tolist() == [[1], [1]]


def test_opcheck():
    for dtype in DTYPES:
        scores = random(3, 40, dtype=dtype)
        torch.library.opcheck(token_probabilities.default, (scores, settings_of(top_k=5)))
    torch.library.opcheck(token_probabilities.default, (scores[:, 3:], settings_of().repeat(3, 1), True))
    torch.library.opcheck(token_probabilities.out, (scores, settings_of(top_p=0.5)), {"out": torch.empty(3, 40)})


class Law(torch.nn.Module):
    def forward(self, scores: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
        return torch.ops.aegis.token_probabilities(scores, settings, True) * 2


class LawInto(torch.nn.Module):
    def forward(self, scores: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(scores)
        torch.ops.aegis.token_probabilities(scores, settings, out=out)
        return out * 2


MODULES = [Law, LawInto]


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    arguments = random(3, 20), settings_of(top_k=5, top_p=0.9)
    torch.jit.script(module()).save(tmp_path / "law.pt")
    assert torch.equal(torch.jit.load(tmp_path / "law.pt")(*arguments), module()(*arguments))


@pytest.mark.parametrize(("module", "backend"), [(Law, "aot_eager"), (LawInto, "inductor")])
def test_compile_fullgraph(module, backend):
    """And exported."""
    arguments = random(3, 20), settings_of(top_k=5, top_p=0.9)
    assert torch.equal(torch.compile(module(), fullgraph=True, backend=backend)(*arguments), module()(*arguments))
    assert torch.equal(torch.export.export(module(), arguments).module()(*arguments), module()(*arguments))


def test_compile_dynamic_batch():
    compiled = torch.compile(Law(), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 7):
        assert torch.equal(compiled(random(rows, 20), settings_of()), Law()(random(rows, 20), settings_of()))


X, SETTINGS = random(2, 6), settings_of()
TABLE = settings_of().repeat(3, 1)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (X.double(), SETTINGS, "scores: expected dtype float32, bfloat16 or float16, got float64"),
        (X[0], SETTINGS, r"scores: expected a 2-D tensor \(rows, tokens\), got shape \[6\]"),
        (X[:, :0], SETTINGS, r"scores: expected 1 to 2147483647 tokens in a row, got shape \[2, 0\]"),
        (X[:, ::2], SETTINGS, r"scores: expected rows of adjacent elements \(stride 1\), got stride 2"),
        (X, SETTINGS.double(), "settings: expected dtype float32, got float64"),
        (X, SETTINGS[0], r"settings: expected a contiguous tensor of shape \[1, 4\] or \[2, 4\]"),
        (X, SETTINGS.repeat(3, 1), r"settings: .*got shape \[3, 4\]"),
        (X, SETTINGS.repeat(2, 2)[:, :4], r"settings: .*not contiguous"),
    ],
)
def test_bad_input_arguments(scores, options, message):
    with pytest.raises(ValueError, match=message):
        token_probabilities(scores, options)
    out = torch.full((2, 6), 77.0)
    with pytest.raises(ValueError, match=message):
        token_probabilities.out(scores, options, out=out)
    assert (out == 77).all()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(2, 6, dtype=torch.float64), "out: expected dtype float32, got float64"),
        (torch.zeros(12), r"out: expected shape \[2, 6\], got shape \[12\]"),
        (torch.zeros(2, 5), r"out: expected shape \[2, 6\], got shape \[2, 5\]"),
        (torch.zeros(6, 2).t(), r"out: expected rows of adjacent elements that do not overlap, got strides \[1, 2\]"),
        (torch.zeros(1, 6).expand(2, 6), r"out: .*do not overlap, got strides \[0, 1\]"),
        (torch.zeros(8).as_strided((2, 6), (2, 1)), r"out: .*do not overlap, got strides \[2, 1\]"),
        (X, "out: expected memory of its own, got a tensor that overlaps scores"),
        (TABLE.view(2, 6), "out: .*overlaps settings"),
    ],
)
def test_bad_input_out(out, message):
    before = out.clone()
    with pytest.raises(ValueError, match=message):
        token_probabilities.out(X, TABLE[-1:], out=out)
    assert torch.equal(out, before)
