"""Draws from distributions given in full: those of aegis.ops.sample on their logarithms."""

import pytest
import torch
from aegis.decode.accept import accept_by_ratio
from aegis.decode.law import Domain, coins, draw
from hypothesis import given, settings
from hypothesis import strategies as st

PLAIN = torch.tensor([[1.0, 0.0, 1.0, 0.0]])


def named(rows, domain=Domain.PICK, seed=3):
    state = torch.zeros(rows, 4, dtype=torch.int64)
    state[:, 0], state[:, 1], state[:, 3] = seed, torch.arange(rows), domain
    return state


def by_logarithm(distribution, state):
    return torch.ops.aegis.sample(distribution.log(), PLAIN, state)[0]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-30, 1e-44])
def test_draws_are_those_of_the_logarithms_and_never_of_chance_0(scale):
    """Of rows that need not sum to 1, whose chances may be as small as float32 has them."""
    rows = torch.rand(300, 40, generator=torch.Generator().manual_seed(1))
    rows = torch.where(rows > 0.8, rows**20 * scale, 0)
    rows[:, 7] = scale
    before = rows.clone()
    tokens = draw(rows, named(300))
    assert torch.equal(tokens, by_logarithm(rows, named(300)))
    assert torch.equal(rows, before)
    assert (rows.gather(1, tokens[:, None]) > 0).all()
    assert len(tokens.unique()) > 10


def test_a_compiled_draw_is_the_same():
    rows = torch.rand(3, 50, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rows, named(3)), draw(rows, named(3)))


def test_coins_never_fall_for_0_and_always_for_1():
    chances = torch.tensor([0.0, 1.0, 0.5]).repeat(1000)
    heads = coins(chances, named(3000)).view(1000, 3).sum(0)
    assert heads[:2].tolist() == [0, 1000]
    assert 400 < heads[2] < 600


def textbook(target, draft, guesses, state):
    """Leviathan et al., row by row."""
    kept, following = [], []
    for row, mine in enumerate(guesses.tolist()):
        place, number = 0, state[row : row + 1].clone()
        number[0, 3] = Domain.ACCEPT
        while place < len(mine):
            p, q = target[row, place, mine[place]], draft[row, place, mine[place]]
            if not coins(torch.where(q > 0, (p / q).clamp(max=1), (p > 0).float())[None], number).item():
                break
            place, number[0, 2] = place + 1, number[0, 2] + 1
        rest, number[0, 3] = target[row, place], Domain.BONUS
        if place < len(mine):
            left, number[0, 3] = (rest - draft[row, place]).clamp(min=0), Domain.RESIDUAL
            rest = left if left.sum() > 0 else rest
        kept.append(place)
        following.append(by_logarithm(rest[None], number).item())
    return kept, following


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**31), st.sampled_from([0.0, 0.5, 3]))
def test_guesses_are_kept_and_followed_as_the_textbook_does(batch, count, vocabulary, seed, apart):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(batch, count + 1, vocabulary, generator=generator)
    noise = apart * torch.randn(batch, count, vocabulary, generator=generator)
    laws = [torch.where(x > 0.02, x, 0) for x in (scores.softmax(2), (scores[:, :count] + noise).softmax(2))]
    guesses = draw(laws[1].flatten(0, 1), named(batch * count, Domain.DRAFT, seed)).view(batch, count)
    before = [law.clone() for law in laws]
    kept, following = accept_by_ratio(*laws, guesses, named(batch, seed=seed))
    assert (kept.tolist(), following.tolist()) == textbook(*laws, guesses, named(batch, seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(before, laws, strict=True))
