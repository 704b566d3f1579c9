"""The distribution that a token is drawn from, in full, against torch's operations: what speculative sampling asks for
at every guess and every verified position."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from harness import Table, interleave, main, median
from torch import Tensor

VOCABULARIES = (32_000, 151_936)
TOP_K, TOP_P, TEMPERATURE = 50, 0.95, 0.8
token_probabilities = torch.ops.aegis.token_probabilities


def logits(vocabulary: int, count: int = 1) -> Tensor:
    return 2 * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(0))


def settings(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    return torch.tensor([[temperature, top_k, top_p, 0.0]])


def topk_first(scores: Tensor) -> Tensor:
    """What is written by hand where top_k is on: the filters on the k largest, and a scatter."""
    values, indices = (scores / TEMPERATURE).topk(TOP_K)
    p = values.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p >= TOP_P, 0)
    return torch.zeros_like(scores).scatter_(1, indices, p / p.sum(1, keepdim=True))


def sorted_first(scores: Tensor) -> Tensor:
    """And where top_p is on alone: a sort of everything."""
    values, order = scores.sort(descending=True)
    p = values.softmax(-1)
    p = p.masked_fill(p.double().cumsum(-1) - p >= TOP_P, 0)
    return torch.zeros_like(scores).scatter_(1, order, p / p.sum(1, keepdim=True))


def hugging_face() -> Callable[[Tensor], Tensor]:
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = LogitsProcessorList(
        [TemperatureLogitsWarper(TEMPERATURE), TopKLogitsWarper(TOP_K), TopPLogitsWarper(TOP_P)]
    )
    nothing = torch.empty(1, 0, dtype=torch.int64)
    return lambda scores: warpers(nothing, scores).softmax(-1)


def one_vocabulary(table: Table, vocabulary: int, rounds: int) -> None:
    scores = logits(vocabulary)
    chain, nucleus, plain = settings(TEMPERATURE, TOP_K, TOP_P), settings(top_p=TOP_P), settings()
    peaked = settings(0.3, 0, TOP_P)
    ours = {
        "chain": lambda: token_probabilities(scores, chain),
        "nucleus": lambda: token_probabilities(scores, nucleus),
        "plain": lambda: token_probabilities(scores, plain),
    }
    theirs: dict[str, Callable[[], Tensor]] = {
        "chain": lambda: topk_first(scores),
        "nucleus": lambda: sorted_first(scores),
        "plain": lambda: scores.softmax(-1),
    }
    for name, call in ours.items():
        torch.testing.assert_close(call(), theirs[name](), rtol=2e-5, atol=1e-9)
    quick = {f"torch {name}": theirs[name] for name in ("chain", "plain")}
    quick |= {name: ours[name] for name in ("chain", "plain")}
    quick |= {"peaked": lambda: token_probabilities(scores, peaked)}
    slow = {"torch nucleus": theirs["nucleus"], "nucleus": ours["nucleus"]}
    if importlib.util.find_spec("transformers"):
        processors = hugging_face()
        torch.testing.assert_close(ours["chain"](), processors(scores), rtol=2e-5, atol=1e-9)
        slow |= {"hugging face": lambda: processors(scores), "chain beside": ours["chain"]}
    seconds = interleave(quick, rounds, 5) | interleave(slow, max(rounds // 4, 5), 1)
    took = {name: median(times) * 1e6 for name, times in seconds.items()}
    name = f"V = {vocabulary:,}"
    limits = f"top-k {TOP_K}, top-p {TOP_P}, temperature"
    for what, anchor, mine, other, at_least in (
        (limits, "torch: topk, softmax, scatter", "chain", "torch chain", 10),
        (f"top-p {TOP_P} alone, flat", "torch: sort, softmax, scatter", "nucleus", "torch nucleus", 10),
    ):
        if vocabulary == VOCABULARIES[-1]:
            table.ratio(f"{name}: {what}", anchor, took[other], took[mine], "µs", at_least)
        else:
            table.compared(f"{name}: {what}", anchor, took[other], took[mine], "µs")
    table.compared(f"{name}: no limits", "torch.softmax", took["torch plain"], took["plain"], "µs")
    if "hugging face" in took:
        table.compared(
            f"{name}: {limits}", "Hugging Face's processors", took["hugging face"], took["chain beside"], "µs"
        )
    table.figure(f"{name}: top-p {TOP_P} alone, temperature 0.3, 256 tokens have the mass", took["peaked"], "µs")


def build(quick: bool) -> Table:
    """Distributions of one row, one thread, float32."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = Table("The distribution that a token is drawn from (float32, 1 thread, one row, called from Python)")
    for vocabulary in VOCABULARIES:
        one_vocabulary(table, vocabulary, rounds=4 if quick else 40)
    return table


if __name__ == "__main__":
    main(build)
