"""What the tests of sample share: settings and states, draws, and exact probabilities."""

import math

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Each takes another way through the kernels, in rows of several blocks.
LIMITS = [
    {},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.95, "temperature": 0.8},
    {"top_k": 700},
    {"top_k": 700, "min_p": 0.02},
    {"top_p": 0.9},  # of which 256 tokens have not the mass
    {"top_p": 0.9, "temperature": 0.25},  # have it
    {"top_k": 700, "top_p": 0.8},
    {"top_k": 1500, "top_p": 0.95, "min_p": 0.01, "temperature": 1.3},
    {"top_k": 256, "top_p": 0.7},
    {"top_k": 257, "top_p": 0.7},
    {"temperature": 1e30},
]
sample = torch.ops.aegis.sample


def settings_of(temperature=1.0, top_k=0.0, top_p=1.0, min_p=0.0) -> torch.Tensor:
    return torch.tensor([[temperature, top_k, top_p, min_p]], dtype=torch.float32)


def states(rows: int, seed: int = 7) -> torch.Tensor:
    state = torch.zeros(rows, 4, dtype=torch.int64)
    state[:, 0], state[:, 1] = seed, torch.arange(rows)
    return state


def law(logits: torch.Tensor, temperature=1.0, top_k=0.0, top_p=1.0, min_p=0.0, keep_ties=False) -> torch.Tensor:
    """The probability of each token of one row, in float64, with a full sort."""
    x = logits.double()
    if not temperature > 0 or not top_p > 0 or (top_k == 1 and not keep_ties):
        return torch.nn.functional.one_hot(x.argmax(), len(x)).double()
    order = torch.argsort(-x, stable=True)
    p = torch.softmax(x[order] / temperature, 0)
    if 1 <= top_k < len(x):
        kept = x[order] >= x[order][int(top_k) - 1] if keep_ties else torch.arange(len(x)) < top_k
        p = torch.where(kept, p, 0) / p[kept].sum()
    if top_p < 1:
        before = p.cumsum(0) - p
        p = torch.where(before < settings_of(top_p=top_p)[0, 2].double(), p, 0)
    p = torch.where(p >= min_p * p[0], p, 0)
    return torch.zeros_like(x).index_put((order,), p / p.sum())


def draws(logits: torch.Tensor, count: int, seed=7, keep_ties=False, **options):
    """(tokens, valid, logprobs) of `count` draws from one row."""
    rows = logits.reshape(1, -1).expand(count, -1)
    return sample(rows, settings_of(**options), states(count, seed), keep_ties)


def assert_follows(tokens: torch.Tensor, p: torch.Tensor) -> None:
    """Pearson's chi-square, by the normal approximation of Wilson and Hilferty: within 4.5 standard deviations."""
    count = torch.bincount(tokens, minlength=len(p)).double()
    assert (count[p == 0] == 0).all(), "a token of probability 0"
    expected = p * len(tokens)
    rare = expected < 10
    count = torch.cat([count[~rare], count[rare].sum(0, keepdim=True)])
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    count, expected = count[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    if freedom == 0:
        return
    statistic = ((count - expected) ** 2 / expected).sum().item()
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.5


def assert_logprobs_are(p: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
    torch.testing.assert_close(logprobs.double(), p[tokens].log(), rtol=1e-5, atol=1e-5)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
