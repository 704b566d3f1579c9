"""torch.ops.aegis.sample where others went wrong: NaN, infinities, ties, masks, tiny shares, rows without limits."""

import math

import aegis  # noqa: F401  (loads the operators)
import pytest
import torch
from sampling import DTYPES, assert_follows, assert_logprobs_are, draws, law, random, sample, settings_of, states


def test_nan_row_is_flagged_and_others_are_not_touched_case14():
    logits = random(4, 3000)
    want = sample(logits, settings_of(top_k=20), states(4))[0]
    logits[2, 1700] = math.nan
    tokens, valid, _ = sample(logits, settings_of(top_k=20), states(4))
    assert valid.tolist() == [True, True, False, True]
    assert torch.equal(tokens[[0, 1, 3]], want[[0, 1, 3]])
    assert 0 <= tokens[2] < 3000


@pytest.mark.parametrize("width", [9, 64, 1000, 1024, 5001])
@pytest.mark.parametrize("place", [0, 0.5, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_nan_or_infinity_case15(width, place, dtype):
    at = int(place * (width - 1))
    for value in (math.nan, math.inf):
        logits = random(1, width, dtype=dtype)
        logits[0, at] = value
        best = torch.where(logits.isnan(), -math.inf, logits).argmax()
        for options in ({}, {"top_k": 5}, {"temperature": 0.0}, {"top_p": 0.5}):
            tokens, valid, logprobs = sample(logits, settings_of(**options), states(1))
            assert valid.item() == (value == math.inf)
            assert tokens.item() == best
            assert logprobs.isnan().item() == (value != math.inf)


def test_several_infinities_take_the_first():
    logits = random(1, 2000)
    logits[0, [700, 900, 1999]] = math.inf
    assert sample(logits, settings_of(top_k=50), states(1))[0].item() == 700


def test_rows_without_anything_finite():
    for row in (torch.full((1, 70), -math.inf), torch.full((1, 70), math.nan)):
        tokens, valid, _ = sample(row, settings_of(), states(1))
        assert (tokens.item(), valid.item()) == (0, False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("top_k", [1, 2, 50, 300])
def test_rows_that_are_mostly_masked_case17(dtype, top_k):
    logits = torch.full((1, 40_000), -math.inf, dtype=dtype)
    logits[0, [3, 20_000, 39_999]] = torch.tensor([1, 1, 1], dtype=dtype)
    tokens = draws(logits[0], 300, top_k=top_k)[0]
    assert set(tokens.tolist()) == {3, 20_000, 39_999} if top_k > 2 else {3, 20_000} if top_k == 2 else {3}


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 500, "top_p": 0.5}, {"min_p": 1e-30}], ids=str)
def test_subnormal_probabilities_end_case18(options):
    logits = torch.linspace(-200, 0, 4000)
    tokens, _, logprobs = draws(logits, 500, **options)
    assert_logprobs_are(law(logits, **options), tokens, logprobs)
    tiny = torch.full((1, 3000), 1e-45)
    tiny[0, ::2] = -1e-45
    for temperature in (1e-45, 1e-38, 1.0):
        tokens, valid, _ = sample(tiny, settings_of(temperature=temperature, **options), states(1))
        assert valid.item()


def test_rows_of_temperature_0_or_less_take_the_largest_case20():
    logits = random(6, 300)
    logits[:, ::2] = -math.inf
    options = torch.tensor([[t, 50, 0.9, 0] for t in (-1.0, 0.0, 1.0, -0.0, -math.inf, 0.7)])
    tokens, valid, logprobs = sample(logits, options, states(6))
    greedy = torch.tensor([0, 1, 3, 4])
    assert valid.all()
    assert torch.equal(tokens[greedy], logits.argmax(1)[greedy])
    assert (logprobs[greedy] == 0).all()
    assert (tokens % 2 == 1).all()


def test_top_p_of_0_takes_the_largest_case21():
    logits = random(5, 900)
    for top_p in (0.0, -0.0, -1.0):
        assert torch.equal(sample(logits, settings_of(top_p=top_p), states(5))[0], logits.argmax(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("top_p", [1e-8, 1e-3])
def test_tiny_top_p_keeps_one_case22(dtype, top_p):
    logits = random(1, 3000, dtype=dtype)
    for top_k in (0, 40, 400):
        tokens, _, logprobs = draws(logits[0], 50, top_p=top_p, top_k=top_k)
        assert (tokens == logits.argmax()).all()
        assert (logprobs == 0).all()
    flat = torch.zeros(3000, dtype=dtype)
    for top_k in (0, 40, 400):
        tokens = draws(flat, 50, top_p=top_p, top_k=top_k)[0]
        assert tokens.max() < math.ceil(settings_of(top_p=top_p)[0, 2].item() * (top_k or 3000))


@pytest.mark.parametrize("width", [3, 70, 2000])
def test_ties_at_the_kth_place_case24(width):
    logits = torch.full((width,), -5.0)
    logits[[0, width // 2, width - 1]] = 2.0
    first, every = [0, width // 2], [0, width // 2, width - 1]
    assert sorted(set(draws(logits, 400, top_k=2)[0].tolist())) == first
    assert sorted(set(draws(logits, 400, top_k=2, keep_ties=True)[0].tolist())) == every


@pytest.mark.parametrize("top_k", [2, 100, 256, 300])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_equal_logits_case24(top_k, dtype):
    for value in (0.0, -0.0, -3.0, 7.5):
        logits = torch.full((10_000,), value, dtype=dtype)
        tokens = draws(logits, 2000, top_k=top_k)[0]
        assert tokens.max() < top_k
        every = draws(logits, 2000, top_k=top_k, keep_ties=True)[0]
        assert_follows(every // 100, torch.full((100,), 0.01, dtype=torch.float64))
        half = draws(logits, 2000, top_k=top_k, top_p=0.5)[0]
        assert half.max() < math.ceil(top_k / 2)


def test_zeros_of_both_signs_are_equal():
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1.0])
    assert set(draws(logits, 200, top_k=2)[0].tolist()) == {0, 1}
    assert set(draws(logits, 400, top_k=3)[0].tolist()) == {0, 1, 2}
    assert sample(logits[None], settings_of(0.0), states(1))[0].item() == 0


@pytest.mark.parametrize("width", [50_257, 256_000])
def test_widths_of_real_vocabularies_case25_case26(width):
    logits = random(2, width, seed=9) * 3
    for options in ({}, {"top_k": 50}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}, {"min_p": 0.1}):
        tokens, _, logprobs = sample(logits, settings_of(**options), states(2))
        for row in range(2):
            assert_logprobs_are(law(logits[row], **options), tokens[row : row + 1], logprobs[row : row + 1])


def test_one_uniform_a_row_case27():
    """The token is the inverse of the distribution function at one number: of two tokens, the more probable the first,
    the more of the same numbers fall on it."""
    state = states(2000)
    before = torch.ones(2000, dtype=torch.bool)
    for share in (0.9, 0.6, 0.3):
        logits = torch.tensor([share, 1 - share]).log().expand(2000, 2)
        first = sample(logits.flip(1).flip(1), settings_of(top_k=0, temperature=1), state)[0] == 0
        assert abs(first.double().mean() - share) < 0.05
        if share > 0.5:
            assert (first <= before).all()
            before = first


def test_numbers_never_reach_the_ends_case30():
    """Two tokens, one of them with a share that only a number of 0 or 1 would fall on."""
    for low in (0, 1):
        logits = torch.zeros(2)
        logits[low] = -60.0
        assert (draws(logits, 200_000)[0] == 1 - low).all()


def test_min_p_with_seeds_case31():
    logits = random(40, seed=4)
    p = law(logits, min_p=0.5)
    for seed in (1, 2**62, -5):
        one, other = (draws(logits, 20_000, seed=seed, min_p=0.5)[0] for _ in range(2))
        assert torch.equal(one, other)
        assert_follows(one, p)


@pytest.mark.parametrize("top_k", [0, 3])
def test_tokens_without_weight_are_never_drawn_case34(top_k):
    logits = torch.tensor([0.33, 0.34, 0, 0.33]).log()
    tokens = draws(logits, 10_000_000 // 4, top_k=top_k)[0]
    assert (tokens != 2).all()
    assert_follows(tokens, torch.tensor([0.33, 0.34, 0, 0.33], dtype=torch.float64))


def test_more_than_2_to_the_24_tokens_case35():
    width = 2**24 + 1
    logits = torch.zeros(width)
    logits[: width // 2] = math.log(2)
    tokens = draws(logits, 300)[0]
    share = (tokens < width // 2).double().mean().item()
    assert abs(share - 2 / 3) < 0.11  # four standard deviations
    assert tokens.unique().numel() == 300
    last = torch.full((width,), -math.inf)
    last[-1] = -1e30
    assert (draws(last, 3)[0] == width - 1).all()


def test_small_tails_keep_their_share_case35():
    """A million tokens of 1e-8 each behind one of nearly everything; and a tail within the block of its largest."""
    logits = torch.full((1_000_000,), math.log(1e-8))
    logits[100] = 0
    tokens, _, logprobs = draws(logits, 1000)
    tail = tokens != 100
    assert 1 <= tail.sum() <= 30  # 10 are expected
    torch.testing.assert_close(logprobs[tail].double().exp(), torch.full((tail.sum(),), 1e-8 / 1.01).double())
    tokens = draws(logits[:200], 500_000, temperature=1.5)[0]  # 4.6e-6 each, 9.2e-4 together
    assert_follows(tokens // 20, law(logits[:200], temperature=1.5).view(10, 20).sum(1))
