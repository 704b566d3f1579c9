"""torch.ops.aegis.sample against exact probabilities in float64, and in every way a torch program can call it."""

import itertools
import math
import os
import subprocess
import sys

import aegis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import (
    DTYPES,
    LIMITS,
    assert_follows,
    assert_logprobs_are,
    draws,
    law,
    random,
    sample,
    settings_of,
    states,
)

FILTERS = list(itertools.product((0, 1, 7, 30), (1.0, 0.8), (0.0, 0.1), (False, True)))


@pytest.mark.parametrize("temperature", [0.6, 1.5])
@pytest.mark.parametrize(("top_k", "top_p", "min_p", "ties"), FILTERS)
def test_reference_every_combination_of_filters(temperature, top_k, top_p, min_p, ties):
    logits = random(50, seed=3)
    if ties:
        logits = (logits * 3).round() / 3
    for keep_ties in (False, True):
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        p = law(logits, **options, keep_ties=keep_ties)
        tokens, valid, logprobs = draws(logits, 100_000, keep_ties=keep_ties, **options)
        assert valid.all()
        assert_follows(tokens, p)
        assert_logprobs_are(p, tokens, logprobs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("keep_ties", [False, True], ids=["", "keep_ties"])
def test_reference_large_rows(dtype, options, keep_ties):
    """Rows of several blocks and groups; in 16 bits most logits are tied."""
    logits = random(9001, seed=5, dtype=dtype)
    p = law(logits, **options, keep_ties=keep_ties)
    tokens, _, logprobs = draws(logits, 4000, keep_ties=keep_ties, **options)
    assert (p[tokens] > 0).all()
    assert_logprobs_are(p, tokens, logprobs)
    parts = torch.arange(9001) % 40
    assert_follows(parts[tokens], torch.zeros(40, dtype=torch.float64).index_add(0, parts, p))


@settings(deadline=None, max_examples=200)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), keep_ties=st.booleans())
def test_reference_random_rows(data, dtype, keep_ties):
    """NaN, infinities, ties and subnormals, in rows that lie apart; each row as if it were alone."""
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-45, 6e4, -6e4, 1.0, 1.0]
    element = st.one_of(st.sampled_from(special), st.floats(-20, 20, width=16))
    width, rows, gap = (data.draw(st.integers(*limits)) for limits in ((1, 40), (1, 4), (0, 3)))
    values = data.draw(st.lists(element, min_size=rows * (width + gap), max_size=rows * (width + gap)))
    logits = torch.tensor(values, dtype=torch.float64).to(dtype).view(rows, width + gap)[:, gap:]
    options = [
        data.draw(st.sampled_from([0.0, -1.0, 1e-30, 0.5, 1.0, 3.0, math.inf])),
        data.draw(st.sampled_from([-5.0, 0.0, 1.0, 2.0, 5.0, 39.0, 1e9])),
        data.draw(st.sampled_from([-1.0, 0.0, 1e-8, 0.3, 0.9, 1.0, 2.0])),
        data.draw(st.sampled_from([0.0, 1e-3, 0.3, 1.0, 7.0])),
    ]
    before, state = logits.clone(), states(rows)
    tokens, valid, logprobs = sample(logits, torch.tensor([options]), state, keep_ties)
    assert torch.equal(state, states(rows))
    assert torch.equal(before.view(torch.int16), logits.contiguous().view(torch.int16))
    for row in range(rows):
        x, token = logits[row].double(), tokens[row].item()
        assert 0 <= token < width
        numbers = torch.where(x.isnan(), -math.inf, x)
        if x.isnan().any() or numbers.max() == -math.inf:
            assert not valid[row]
            assert logprobs[row].isnan()
            assert x.isnan().all() or numbers[token] == numbers.max()
            continue
        assert valid[row]
        if numbers.max() == math.inf:
            assert token == numbers.argmax()
            continue
        low = x[token] >= x.max() - 69 * max(options[0], 0) - 1e-6  # 2^-100
        assert low or options[0] == math.inf
        assert x[token] > -math.inf
        assert logprobs[row] <= 0
        if 1 <= options[1] < width and not keep_ties:
            assert ((x > x[token]).sum() + (x[:token] == x[token]).sum()) < options[1]
    alone = [
        sample(logits[row : row + 1], torch.tensor([options]), state[row : row + 1], keep_ties) for row in range(rows)
    ]
    assert torch.equal(torch.cat([one[0] for one in alone]), tokens)


def test_reference_every_isa_gives_the_same_tokens():
    code = """
import aegis, torch
generator = torch.Generator().manual_seed(1)
result = []
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for width in (1, 15, 17, 300, 1025, 9000):
        logits = torch.randn(3, width, generator=generator).to(dtype)
        for k in (0, 3, 40, 256, 400):
            for p in (1, 0.9, 0.5):
                for m in (0, 0.1):
                    for ties in (False, True):
                        state = torch.arange(12).view(3, 4)
                        settings = torch.tensor([[1.2, k, p, m]])
                        tokens, valid, logprobs = torch.ops.aegis.sample(logits, settings, state, ties)
                        result += [*tokens.tolist(), *logprobs.view(torch.int32).tolist()]
print(aegis.cpu_isa(), hash(tuple(result)), len(result))
"""
    lines = {}
    for isa in ("scalar", "avx2", "avx512"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"AEGIS_FORCE_ISA": isa}, capture_output=True, text=True
        )
        if "cannot run here" in done.stderr or "this build" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        name, *rest = done.stdout.split()
        assert name == isa
        lines[isa] = rest
    assert len({tuple(rest) for rest in lines.values()}) == 1, lines
    assert "scalar" in lines


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_reference_rows_do_not_depend_on_each_other_case28(threads):
    """Nor on threads: rows are shared out among them."""
    logits, state = random(64, 5000), states(64)
    options = torch.rand(64, 4, generator=torch.Generator().manual_seed(2)) * torch.tensor([2, 400, 1.2, 0.1])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = sample(logits, options, state)[0]
    finally:
        torch.set_num_threads(before)
    for row in (0, 31, 63):
        alone = sample(logits[row : row + 1], options[row : row + 1], state[row : row + 1])[0]
        assert alone == together[row]


def test_reference_state_advances_and_names_the_draw_case12():
    logits, state = random(3, 500), states(3)
    tokens = torch.empty(3, dtype=torch.int64)
    drawn = []
    for _ in range(20):
        assert sample.out(logits, settings_of(), state, tokens=tokens) is None
        drawn.append(tokens.clone())
    assert state[:, 2].tolist() == [20] * 3
    assert len({tuple(t.tolist()) for t in drawn}) > 15
    again = states(3)
    for step, want in enumerate(drawn):
        again[:, 2] = step
        assert torch.equal(sample(logits, settings_of(), again)[0], want)
    assert again[:, 2].tolist() == [19] * 3  # without out, the state is only read


def test_reference_seed_row_position_and_domain_all_count():
    logits = torch.zeros(1, 100_000)
    base = torch.tensor([[5, 6, 7, 8]])
    seen = {sample(logits, settings_of(), base)[0].item()}
    for column in range(4):
        for step in (1, 2**33) if column != 3 else (1, 255):
            other = base.clone()
            other[0, column] += step
            seen.add(sample(logits, settings_of(), other)[0].item())
    assert len(seen) == 9


def test_reference_no_rows():
    tokens, valid, logprobs = sample(torch.empty(0, 5), settings_of(), states(0))
    assert tokens.shape == valid.shape == logprobs.shape == (0,)


def test_reference_python_signature():
    logits, state = random(2, 50), states(2)
    got = aegis.ops.sample(logits, settings_of(), state)
    tokens, valid, logprobs = torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.bool), torch.empty(2)
    again = aegis.ops.sample(logits, settings_of(), state, tokens=tokens, valid=valid, logprobs=logprobs)
    assert again[0] is tokens
    assert again[1] is valid
    assert again[2] is logprobs
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    assert aegis.ops.sample(logits, settings_of(), state, tokens=tokens)[1:] == (None, None)
    with pytest.raises(TypeError, match="valid and logprobs: expected only together with tokens"):
        aegis.ops.sample(logits, settings_of(), state, valid=valid)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype):
    logits, state = random(3, 40, dtype=dtype), states(3)
    out = {"tokens": torch.empty(3, dtype=torch.int64)}
    more = out | {"valid": torch.empty(3, dtype=torch.bool), "logprobs": torch.empty(3)}
    torch.library.opcheck(sample.default, (logits, settings_of(top_k=5), state))
    torch.library.opcheck(sample.default, (logits[:, 3:], settings_of().repeat(3, 1), state, True))
    torch.library.opcheck(sample.out, (logits, settings_of(top_k=5), state), out)
    torch.library.opcheck(sample.out, (logits, settings_of(top_k=5), state, True), more)


class Draw(torch.nn.Module):
    def forward(self, logits: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        settings = torch.tensor([[0.8, 5.0, 0.9, 0.0]])
        return torch.ops.aegis.sample(logits, settings, state)[0] + 1


class DrawInto(torch.nn.Module):
    def forward(self, logits: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        settings = torch.tensor([[0.8, 5.0, 0.9, 0.0]])
        tokens = torch.empty((logits.size(0),), dtype=torch.int64)
        torch.ops.aegis.sample(logits, settings, state, tokens=tokens)
        return tokens + 1


MODULES = [Draw, DrawInto]


@pytest.mark.parametrize("module", MODULES)
def test_script_saved_and_loaded(module, tmp_path):
    torch.jit.script(module()).save(tmp_path / "draw.pt")
    loaded, ours, theirs = torch.jit.load(tmp_path / "draw.pt"), states(3), states(3)
    for _ in range(3):
        assert torch.equal(loaded(random(3, 20), ours), module()(random(3, 20), theirs))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("module", MODULES)
def test_compile_fullgraph(module):
    compiled, ours, theirs = torch.compile(module(), fullgraph=True, backend="inductor"), states(3), states(3)
    for _ in range(3):
        assert torch.equal(compiled(random(3, 20), ours), module()(random(3, 20), theirs))
    assert torch.equal(ours, theirs)


def test_compile_dynamic_batch():
    compiled = torch.compile(Draw(), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 7):
        assert torch.equal(compiled(random(rows, 20), states(rows)), Draw()(random(rows, 20), states(rows)))


@pytest.mark.parametrize("module", MODULES)
def test_export(module):
    arguments = (random(3, 20), states(3))
    program = torch.export.export(module(), arguments)
    assert torch.equal(program.module()(random(3, 20), states(3)), module()(random(3, 20), states(3)))


X, SETTINGS, STATE = random(2, 6), settings_of(), states(2)


@pytest.mark.parametrize(
    ("logits", "options", "state", "message"),
    [
        (X.double(), SETTINGS, STATE, "logits: expected dtype float32, bfloat16 or float16, got float64"),
        (X[0], SETTINGS, STATE, r"logits: expected a 2-D tensor \(rows, tokens\), got shape \[6\]"),
        (X[None], SETTINGS, STATE, r"logits: expected a 2-D tensor .*got shape \[1, 2, 6\]"),
        (X[:, :0], SETTINGS, STATE, r"logits: expected 1 to 2147483647 tokens in a row, got shape \[2, 0\]"),
        (X.t(), SETTINGS, states(6), "logits: expected rows of adjacent elements"),
        (X[:, ::2], SETTINGS, STATE, r"logits: expected rows of adjacent elements \(stride 1\), got stride 2"),
        (X, SETTINGS.double(), STATE, "settings: expected dtype float32, got float64"),
        (X, SETTINGS[0], STATE, r"settings: expected a contiguous tensor of shape \[1, 4\] or \[2, 4\]"),
        (X, SETTINGS[:, :3], STATE, r"settings: .*got shape \[1, 3\]"),
        (X, SETTINGS.repeat(3, 1), STATE, r"settings: .*got shape \[3, 4\]"),
        (X, SETTINGS.repeat(2, 2)[:, :4], STATE, r"settings: .*not contiguous"),
        (X, SETTINGS, STATE.int(), "state: expected dtype int64, got int32"),
        (X, SETTINGS, STATE[:1], r"state: expected a contiguous tensor of shape \[2, 4\], got shape \[1, 4\]"),
        (X, SETTINGS, STATE[:, :3], r"state: .*got shape \[2, 3\]"),
        (X, SETTINGS, states(4)[::2], "state: .*not contiguous"),
    ],
)
def test_bad_input_arguments(logits, options, state, message):
    with pytest.raises(ValueError, match=message):
        sample(logits, options, state)
    tokens, before = torch.full((2,), 77), state.clone()
    with pytest.raises(ValueError, match=message):
        sample.out(logits, options, state, tokens=tokens)
    assert (tokens == 77).all()
    assert torch.equal(state, before)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("tokens", torch.empty(2, dtype=torch.int32), "tokens: expected dtype int64, got int32"),
        ("tokens", torch.empty(3, dtype=torch.int64), r"tokens: expected a contiguous tensor of shape \[2\]"),
        ("tokens", torch.empty(2, 1, dtype=torch.int64), r"tokens: .*got shape \[2, 1\]"),
        ("tokens", torch.empty(4, dtype=torch.int64)[::2], "tokens: .*not contiguous"),
        ("tokens", STATE.view(-1)[1:3], "tokens: expected memory of its own, got a tensor that overlaps state"),
        ("valid", torch.empty(2, dtype=torch.uint8), "valid: expected dtype bool, got uint8"),
        ("valid", torch.empty(1, dtype=torch.bool), r"valid: expected a contiguous tensor of shape \[2\]"),
        ("logprobs", torch.empty(2, dtype=torch.float64), "logprobs: expected dtype float32, got float64"),
        ("logprobs", X[0, 2:4], "logprobs: expected memory of its own, got a tensor that overlaps logits"),
        ("logprobs", SETTINGS[0, 1:3], "logprobs: .*overlaps settings"),
    ],
)
def test_bad_input_out(name, tensor, message):
    arguments = {"tokens": torch.full((2,), 77)} | {name: tensor}
    before = [X.clone(), SETTINGS.clone(), STATE.clone()]
    with pytest.raises(ValueError, match=message):
        sample.out(X, SETTINGS, STATE, **arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, (X, SETTINGS, STATE), strict=True))
    assert name == "tokens" or (arguments["tokens"] == 77).all()
