"""Milliseconds a token of whole models: model.generate, aegis.generate and llama.cpp, on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import aegis
import llama_cpp_peer
import torch
from aegis.decode import model_setup
from aegis.decode.bench import StepClock
from harness import Table, main, median
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 32


def six_layers() -> LlamaForCausalLM:
    """22.9 million parameters beside the embedding: 92 MB that each token reads."""
    return _llama(hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6)


def eight_layers() -> LlamaForCausalLM:
    """200 million parameters."""
    return _llama(hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=16)


def _llama(**sizes: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes
    )
    return LlamaForCausalLM(config).eval()


Decode = Callable[[StepClock], torch.Tensor]


class Contest:
    """Ways to decode with one model from one prompt, in turns; all must give the same tokens unless they sample."""

    def __init__(self, model: LlamaForCausalLM, new: int, **options: object) -> None:
        self.model, self.new = model, new
        self.ids = torch.randint(0, 32_000, (1, PROMPT), generator=torch.Generator().manual_seed(1))
        self.options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, **options}
        self.ways: dict[str, Decode] = {
            "model.generate": lambda clock: model.generate(self.ids, streamer=clock, **self.options)
        }

    def add(self, name: str, mode: str, *, torch_linears: bool = False) -> None:
        runner = aegis.CUDAGraphFastRunner(self.model, max_cache_len=PROMPT + self.new, mode=mode)

        def decode(clock: StepClock) -> torch.Tensor:
            patch = mock.patch.object(model_setup, "skinny_linears", return_value=nullcontext())
            with patch if torch_linears else nullcontext():
                return aegis.generate(self.model, self.ids, streamer=clock, runner=runner, **self.options)

        self.ways[name] = decode

    def run(self, turns: int) -> dict[str, float]:
        """Milliseconds of the median step, by name."""
        steps: dict[str, list[float]] = {name: [] for name in self.ways}
        for turn in range(-1, turns):
            tokens = []
            for name, decode in list(self.ways.items())[:: -1 if turn % 2 else 1]:
                clock = StepClock()
                tokens.append(decode(clock))
                if turn >= 0:
                    steps[name] += clock.steps
            if not self.options["do_sample"]:
                assert all(torch.equal(tokens[0], other) for other in tokens), "the tokens differ"
        return {name: 1e3 * median(times) for name, times in steps.items()}


def small_model(table: Table, turns: int, new: int) -> None:
    contest = Contest(six_layers(), new)
    contest.add("torch", "eager", torch_linears=True)
    contest.add("eager", "eager")
    contest.add("compiled", "compiled")
    ms = contest.run(turns)
    theirs = ms["model.generate"]
    what = "6-layer Llama, float32, greedy"
    table.ratio(f"{what}: torch's own linears", "model.generate", theirs, ms["torch"], "ms/token", 1.05)
    table.ratio(f"{what}: skinny linears", "model.generate", theirs, ms["eager"], "ms/token", 2)
    table.ratio(f"{what}: compiled step", "model.generate", theirs, ms["compiled"], "ms/token", 3)
    _beside_llama_cpp(table, f"{what}: compiled step", contest, "float32", ms["compiled"], 1 / 1.5)

    contest = Contest(six_layers(), new, do_sample=True, top_k=50, top_p=0.9, temperature=0.8)
    contest.add("eager", "eager")
    contest.add("compiled", "compiled")
    ms = contest.run(turns)
    for mode, target in (("eager", 2), ("compiled", 3)):
        what = f"the same, sampled with top-k 50 and top-p 0.9: {mode}"
        table.ratio(what, "model.generate", ms["model.generate"], ms[mode], "ms/token", target)

    contest = Contest(six_layers().to(torch.bfloat16), new)
    contest.options["do_sample"] = True  # near ties of rounded logits fall this way or that: tokens are not compared
    contest.add("eager", "eager")
    contest.add("compiled", "compiled")
    ms = contest.run(turns)
    what = "6-layer Llama, bfloat16"
    table.ratio(f"{what}: skinny linears", "model.generate in float32", theirs, ms["eager"], "ms/token", 3)
    table.ratio(
        f"{what}: compiled step", "model.generate in bfloat16", ms["model.generate"], ms["compiled"], "ms/token", 3
    )
    _beside_llama_cpp(table, f"{what}: compiled step", contest, "bfloat16", ms["compiled"], 1 / 1.5)


def ternary(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same with the weights of all layers rounded to -1, 0 and +1 times a scale for each row, still dense."""
    with torch.no_grad():
        for module in model.model.modules():
            if isinstance(module, torch.nn.Linear):
                packed, scale = aegis.ops.pack_ternary(module.weight)
                module.weight.copy_(aegis.ops.unpack_ternary(packed, scale, module.in_features))
    return model


def ternary_layers(table: Table, turns: int, new: int, large: bool) -> None:
    """Ternary layers, the rest in bfloat16."""
    dense = Contest(ternary(eight_layers() if large else six_layers()), new)
    theirs = dense.run(turns)["model.generate"]
    peer = None
    if large and llama_cpp_peer.interpreter() is not None:
        peer = llama_cpp_peer.greedy(
            dense.model, dense.ids[0].tolist(), new, dtype=llama_cpp_peer.TERNARY, threads=torch.get_num_threads()
        )
    aegis.quant.convert(dense.model, "ternary")
    contest = Contest(dense.model.to(torch.bfloat16), new, do_sample=True)  # tokens are not compared: near ties
    contest.add("eager", "eager")
    contest.add("compiled", "compiled")
    ms = contest.run(turns)
    what = "8-layer Llama, 1,024 wide" if large else "6-layer Llama"
    what += ", ternary layers, the rest bfloat16"
    for mode in ("eager", "compiled"):
        arguments = (f"{what}: {mode}", "model.generate in float32, dense", theirs, ms[mode], "ms/token")
        if large or mode == "eager":
            table.compared(*arguments)
        else:
            table.ratio(*arguments, 4)
    if large and peer is None:
        _without_llama_cpp(table, what)
    if peer is not None:
        anchor = f"llama.cpp ({peer.version}), TQ2_0, the rest float16"
        table.ratio(
            f"{what}: compiled", anchor, 1e3 * peer.seconds_per_token, ms["compiled"], "ms/token", round(1 / 1.2, 3)
        )


def large_model(table: Table, turns: int, new: int) -> None:
    contest = Contest(eight_layers(), new)
    contest.add("eager", "eager")
    contest.add("compiled", "compiled")
    ms = contest.run(turns)
    what = "8-layer Llama, 1,024 wide, float32, greedy"
    for mode, name in (("eager", "skinny linears"), ("compiled", "compiled step")):
        table.ratio(f"{what}: {name}", "model.generate", ms["model.generate"], ms[mode], "ms/token", 2.2)
    _beside_llama_cpp(table, f"{what}: compiled step", contest, "float32", ms["compiled"], None)


# Milliseconds a token of llama.cpp on these models, for readers who have none: of another day, and set against nothing.
ELSEWHERE = "1.91 (6 layers, float32), 14.7 (8 layers, float32) and 4.15 (8 layers, TQ2_0)"


def _without_llama_cpp(table: Table, what: str) -> None:
    table.notes.append(
        f"{what}: llama.cpp was not here; {llama_cpp_peer.VARIABLE} names a Python that has it. Figures of "
        f"another day, not of this run: {ELSEWHERE} ms a token, llama-cpp-python 0.3.36 on 2 threads of an AMD EPYC."
    )


def _beside_llama_cpp(
    table: Table, what: str, contest: Contest, dtype: str, ours: float, at_least: float | None
) -> None:
    if llama_cpp_peer.interpreter() is None:
        _without_llama_cpp(table, what)
        return
    theirs = llama_cpp_peer.greedy(
        contest.model, contest.ids[0].tolist(), contest.new, dtype=dtype, threads=torch.get_num_threads()
    )
    if dtype == "float32":
        want = contest.model.generate(contest.ids, **contest.options)[0, PROMPT:].tolist()
        assert theirs.tokens == want, "llama.cpp gives other tokens"
    anchor, ms = f"llama.cpp ({theirs.version})", 1e3 * theirs.seconds_per_token
    if at_least is None:
        table.compared(what, anchor, ms, ours, "ms/token")
    else:
        table.ratio(what, anchor, ms, ours, "ms/token", round(at_least, 3))


def build(quick: bool) -> Table:
    """Decoding end to end: the median step after the prefill, on all cores."""
    table = Table("Decoding, end to end")
    small_model(table, 1 if quick else 5, 16 if quick else 96)
    large_model(table, 1 if quick else 3, 8 if quick else 48)
    for large in (False, True):
        ternary_layers(table, 1 if quick else 3, 8 if quick else 48, large)
    table.notes.append(
        "All ways decode the same prompt with the same weights in turns, in one process but for llama.cpp, which is a "
        "process of its own that runs right after. Greedy tokens were equal."
    )
    return table


if __name__ == "__main__":
    main(build)
