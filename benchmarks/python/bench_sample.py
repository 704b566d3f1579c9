"""FusedLogitsSampler and the operator behind it against what torch and Hugging Face do to draw a token."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor

VOCABULARIES = (32_000, 128_256, 262_144)
TOP_K, TOP_P, TEMPERATURE = 50, 0.9, 0.8
sample = torch.ops.aegis.sample.out


def rows(vocabulary: int, count: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [2 * torch.randn(1, vocabulary, generator=generator) for _ in range(count)]


def in_turn(logits: list[Tensor], draw: Callable[[Tensor], object]) -> Callable[[], object]:
    state = [0]

    def call() -> object:
        state[0] = (state[0] + 1) % len(logits)
        return draw(logits[state[0]])

    return call


def operator(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Callable:
    """The operator with everything it writes given."""
    settings = torch.tensor([[temperature, top_k, top_p, min_p]])
    state, tokens = torch.zeros(1, 4, dtype=torch.int64), torch.empty(1, dtype=torch.int64)

    def draw(logits: Tensor) -> Tensor:
        sample(logits, settings, state, tokens=tokens)
        return tokens

    return draw


def topk_first(logits: Tensor) -> Tensor:
    """What is usually written by hand: filters and draw on the k largest."""
    values, indices = (logits / TEMPERATURE).topk(TOP_K)
    p = values.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p >= TOP_P, 0)
    return indices.gather(1, torch.multinomial(p, 1))


def multinomial(logits: Tensor) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 1)


def hugging_face() -> Callable[[Tensor], Tensor]:
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = LogitsProcessorList(
        [TemperatureLogitsWarper(TEMPERATURE), TopKLogitsWarper(TOP_K), TopPLogitsWarper(TOP_P)]
    )
    nothing = torch.empty(1, 0, dtype=torch.int64)
    return lambda logits: torch.multinomial(warpers(nothing, logits).softmax(-1), 1)


def check(vocabulary: int) -> None:
    """Draws lie in the sets that the definitions give, and greedy is torch's argmax."""
    for logits in rows(vocabulary, 3):
        assert operator(temperature=0.0)(logits).equal(logits.argmax(1))
        order = (logits / TEMPERATURE).softmax(1).sort(descending=True)
        kept = order.values[0, :TOP_K] / order.values[0, :TOP_K].sum()
        size = int((kept.cumsum(0) - kept < TOP_P).sum())
        draw = operator(TEMPERATURE, TOP_K, TOP_P)
        assert {draw(logits).item() for _ in range(200)} <= set(order.indices[0, :size].tolist())
    p = rows(vocabulary)[0].double().softmax(1)[0]
    many = torch.zeros(500, 4, dtype=torch.int64)
    many[:, 1] = torch.arange(500)
    tokens, _, logprobs = torch.ops.aegis.sample(
        rows(vocabulary)[0].expand(500, vocabulary), torch.tensor([[1.0, 0, 1, 0]]), many
    )
    assert (logprobs.double() - p[tokens].log()).abs().max() < 1e-4


def microseconds(contenders: dict[str, Callable[[], object]], rounds: int, burst: int) -> dict[str, float]:
    seconds = interleave(contenders, rounds, burst)
    return {name: median(times) * 1e6 for name, times in seconds.items()}


def one_vocabulary(table: Table, vocabulary: int, rounds: int) -> None:
    check(vocabulary)
    logits, several = rows(vocabulary), rows(vocabulary, 8)
    sampler = aegis.FusedLogitsSampler(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, seed=1)
    quick = microseconds(
        {
            "torch.argmax": in_turn(logits, lambda x: torch.argmax(x, -1)),
            "argmax": in_turn(logits, operator(temperature=0.0)),
            "topk first": in_turn(logits, topk_first),
            "top-k, top-p": in_turn(logits, operator(TEMPERATURE, TOP_K, TOP_P)),
            "in turn": in_turn(several, operator(TEMPERATURE, TOP_K, TOP_P)),
            "sampler": in_turn(logits, sampler),
            "full": in_turn(logits, operator()),
            "min-p": in_turn(logits, operator(min_p=0.05)),
            "top-p": in_turn(logits, operator(top_p=TOP_P)),
            "top-p, peaked": in_turn(logits, operator(temperature=0.3, top_p=TOP_P)),
        },
        rounds,
        10,
    )
    slow = {"multinomial": in_turn(logits, multinomial), "full": in_turn(logits, operator())}
    if importlib.util.find_spec("transformers"):
        slow |= {"hugging face": in_turn(logits, hugging_face())}
        slow |= {"top-k, top-p": in_turn(logits, operator(TEMPERATURE, TOP_K, TOP_P))}
    beside = microseconds(slow, max(rounds // 4, 2), 3)
    name = f"V = {vocabulary:,}"
    target = vocabulary == 128_256
    chain = f"top-k {TOP_K}, top-p {TOP_P}, temperature"
    if target:
        table.limit(f"{name}: {chain}, operator", quick["top-k, top-p"], "µs", 10)
    for what, anchor, theirs, ours, at_least in (
        ("argmax, operator", "torch.argmax", quick["torch.argmax"], quick["argmax"], 10),
        (f"{chain}, operator", "torch: topk first", quick["topk first"], quick["top-k, top-p"], 12),
        ("full draw, operator", "softmax, multinomial", beside["multinomial"], beside["full"], 80),
    ):
        if target:
            table.ratio(f"{name}: {what}", anchor, theirs, ours, "µs", at_least)
        else:
            table.compared(f"{name}: {what}", anchor, theirs, ours, "µs")
    if "hugging face" in beside:
        pair = ("Hugging Face's processors, multinomial", beside["hugging face"], beside["top-k, top-p"], "µs")
        if target:
            table.ratio(f"{name}: {chain}, operator", *pair, 400)
        else:
            table.compared(f"{name}: {chain}, operator", *pair)
    table.figure(f"{name}: {chain}, operator, 8 rows in turn", quick["in turn"], "µs")
    table.figure(f"{name}: {chain}, FusedLogitsSampler", quick["sampler"], "µs")
    table.figure(f"{name}: min-p 0.05", quick["min-p"], "µs")
    table.figure(
        f"{name}: top-p {TOP_P} alone, temperature 0.3, {TOP_K * 5} tokens have the mass", quick["top-p, peaked"], "µs"
    )
    table.figure(f"{name}: top-p {TOP_P} alone, flat", quick["top-p"], "µs")


def build(quick: bool) -> Table:
    """Draws of one row, one thread, float32, against torch and Hugging Face."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = Table("Drawing a token from one row of logits (float32, 1 thread, called from Python)")
    for vocabulary in VOCABULARIES:
        one_vocabulary(table, vocabulary, rounds=4 if quick else 40)
    table.notes.append(
        "One row again and again, which the second-level cache holds up to V = 128,256, as it holds logits that have "
        "just been computed; 8 rows in turn come from further away, and no branch predictor knows them."
    )
    return table


if __name__ == "__main__":
    main(build)
