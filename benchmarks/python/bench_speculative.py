"""Milliseconds a token where a draft guesses: aegis.generate with and without one, on the same target."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import aegis
import torch
from aegis.decode import EarlyExit, PromptLookup, TokenTree
from aegis.decode.drafts import ModelDraft, Proposal
from aegis.decode.tree_drafts import ModelBranches, TreeProposal
from aegis.train.huggingface import to_transformers
from aegis.train.pair import STEPS, Pair, load_pair, pair_settings, train_pair
from aegis.train.settings import Settings
from harness import Table, main, median
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 32
VOCABULARY = 8_000
GUESSES = 4
# Four guesses behind one another, and a second guess beside each of the first three: 8 rows, which read weights once.
NARROW = TokenTree([-1, -1, 0, 0, 2, 2, 4])
WIDE = TokenTree.from_branching((4, 2, 2))
AHEAD = ", in a thread, ahead"
PAIR = Path(__file__).parents[2] / "demo" / "pair" / "checkpoint.pt"
"""Of examples/speculative.py."""


def llama(layers: int) -> LlamaForCausalLM:
    """6.3 million parameters a layer, and 4.6 million in the head."""
    torch.manual_seed(layers)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


class Practised(ModelDraft):
    """A draft that costs what its model costs, and whose guesses are right as often as a trained one's would be: at
    each position with a given chance it knows the target's own token, and guesses another otherwise."""

    def __init__(self, draft: ModelDraft, text: Tensor, chance: float) -> None:
        super().__init__(draft.decoder, draft.law, draft.compiled)
        wrong = torch.rand(text.shape, generator=torch.Generator().manual_seed(8)) >= chance
        self.guesses = (text + wrong) % VOCABULARY

    def propose(self, count: int, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Proposal:
        proposal = super().propose(count, first, text, lengths, state)
        return proposal._replace(tokens=self.guesses[:, lengths[0] : lengths[0] + count])

    def follow(self, first: int, text: Tensor, lengths: list[int], state: Tensor) -> Tensor:
        super().follow(first, text, lengths, state)
        return self.guesses[:, lengths[0]]


class PractisedBranches(ModelBranches):
    """The same for trees: of the children of a node, the first is right with the given chance, and each of the others
    with half of the chance that none before it was."""

    def __init__(self, draft: ModelDraft, text: Tensor, chance: float) -> None:
        super().__init__(draft)
        self.text, self.chance = text, chance
        self.generator = torch.Generator().manual_seed(8)

    def propose(
        self, tree: TokenTree, first: int, text: Tensor, lengths: list[int], state: Tensor
    ) -> TreeProposal | None:
        proposal = super().propose(tree, first, text, lengths, state)
        assert proposal is not None
        draws = torch.rand(len(tree) + 1, generator=self.generator).tolist()
        for parent in tree.inner:
            # Where the draw falls into [0, chance), [chance, ...), each half of what is left, that child is right.
            end, share = 0.0, self.chance
            for node in tree.children(parent):
                begin, end = end, end + (1 - end) * share
                share = 0.5
                right = int(self.text[0, lengths[0] + tree.depths[node] - 1])
                wrong = not begin <= draws[parent + 1] < end
                proposal.tokens[0, node] = (right + wrong * (1 + node)) % VOCABULARY
        return proposal


def milliseconds(ways: dict[str, Any], new: int, turns: int) -> dict[str, float]:
    """Of a token after the prompt's, the median of turns in which every way decodes once."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, turns):
        for name, decode in list(ways.items())[:: -1 if turn % 2 else 1]:
            start = time.perf_counter()
            decode()
            if turn >= 0:
                times[name].append((time.perf_counter() - start) / new)
    return {name: 1e3 * median(values) for name, values in times.items()}


def trained(quick: bool) -> tuple[Pair, Settings, bytes]:
    """The example's pair, trained here where it is missing: minutes, once. Quick: one that has learnt nothing. And
    text that it was not trained on."""
    if PAIR.exists():
        return *load_pair(PAIR), PAIR.with_name("val.bin").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PAIR.name) if quick else PAIR
        settings = pair_settings(path.parent, steps=1 if quick else STEPS)
        return train_pair(path, settings), settings, Path(settings.val_data).read_bytes()


def prompts(text: bytes, count: int) -> list[Tensor]:
    """What comes before the beginnings of lines, here and there."""
    starts = [text.index(b"\n", (i + 1) * len(text) // (count + 1)) for i in range(count)]
    return [torch.tensor([list(text[start - PROMPT + 1 : start + 1])]) for start in starts]


def of_a_trained_pair(table: Table, quick: bool) -> None:
    """Target and draft as examples/speculative.py trains them, the same way of running with and without the draft."""
    pair, settings, text = trained(quick)
    target, draft = to_transformers(pair.target), to_transformers(pair.draft)
    size, whole = (sum(p.numel() for p in model.parameters()) for model in (pair.draft, pair.target))
    texts = prompts(text, 2 if quick else 6)
    new = settings.block_size - PROMPT - GUESSES  # with room for guesses behind the last token
    for mode in ("eager",) if quick else ("eager", "compiled"):
        runners = {
            "plain": aegis.CUDAGraphFastRunner(target, max_cache_len=settings.block_size, mode=mode),
            "draft": aegis.SpeculativeFastRunner(target, draft, GUESSES, max_cache_len=settings.block_size, mode=mode),
        }
        for name, law in (
            ("greedy", {"do_sample": False}),
            ("sampled at temperature 0.7", {"do_sample": True, "temperature": 0.7, "top_k": 50, "seed": 0}),
        ):
            options = {"max_new_tokens": new, "pad_token_id": 0, **law}

            def decode(runner: Any, options: Any = options) -> list[Tensor]:
                return [aegis.generate(target, ids, runner=runner, **options) for ids in texts]

            if name == "greedy":
                written = decode(runners["plain"])
                assert all(map(torch.equal, written, decode(runners["draft"]))), "the tokens differ"
                variety = len({token for row in written for token in row[0, PROMPT:].tolist()})
            before = runners["draft"].stats()
            ways = {name: lambda runner=runner: decode(runner) for name, runner in runners.items()}  # type: ignore[misc]
            ms = milliseconds(ways, new * len(texts), 1 if quick else 5)
            stats = {key: value - before[key] for key, value in runners["draft"].stats().items()}
            accepted, tokens = stats["accepted"] / stats["proposed"], stats["tokens"] / stats["passes"]
            what = f"trained pair, {mode}, {name}: {accepted:.2f} accepted, {tokens:.2f} tokens a pass"
            row = (what, f"aegis.generate, {mode}", ms["plain"], ms["draft"], "ms/token")
            if name == "greedy":  # so small a model repeats itself, and is then easy to guess
                table.compared(*row)
            else:
                table.ratio(*row, 1.5)
    table.notes.append(
        f"The trained pair is that of examples/speculative.py: {whole / 1e6:.1f} and {size / 1e6:.1f} million "
        f"parameters, {settings.steps} steps on the demo's text; {len(texts)} prompts from other text. "
        f"What greedy decoding wrote has {variety} different bytes: few are easy to guess."
    )


def build(quick: bool) -> Table:
    """Speculative decoding of one row, on all cores."""
    table = Table("Speculative decoding")
    of_a_trained_pair(table, quick)
    of_random_weights(table, quick)
    return table


def of_random_weights(table: Table, quick: bool) -> None:
    """A larger target, greedy, and guesses that are right as often as told."""
    new = 24 if quick else 96
    target = llama(13)
    ids = torch.randint(0, VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    plain = aegis.CUDAGraphFastRunner(target, max_cache_len=PROMPT + new)
    text = aegis.generate(target, ids, runner=plain, **options)
    padded = torch.cat([text, torch.zeros(1, 2 * GUESSES + 3, dtype=torch.int64)], 1)
    runners: dict[str, Any] = {"plain": plain}

    def speculative(name: str, draft: Any, **options: Any) -> aegis.SpeculativeFastRunner:
        runners[name] = aegis.SpeculativeFastRunner(target, draft, GUESSES, max_cache_len=PROMPT + new, **options)
        return runners[name]

    small = llama(2)
    for chance in (0.7, 0.86):  # about 4 and 7 in ten are then kept: those behind a wrong one are lost
        name = f"a draft of 1/6 the size, guesses right with chance {chance}"
        runner = speculative(name, small)
        runner._draft = Practised(runner._draft, padded, chance)
        runner = speculative(name + AHEAD, small, overlap=True)
        runner._overlapped.draft = Practised(runner._overlapped.draft, padded, chance)
    for shape, tree in ((f"a tree of {len(NARROW)} nodes", NARROW), (f"(4, 2, 2), {len(WIDE)} nodes", WIDE)):
        runner = speculative(
            f"{shape}: the draft that is right with chance 0.7, half of the rest as second guess", small, tree=tree
        )
        runner._tree.branches = PractisedBranches(runner._draft, padded, 0.7)
    speculative("the first 2 of 13 layers, untrained (nearly never right)", EarlyExit(2))
    speculative("prompt lookup", PromptLookup())

    def decoding(runner: Any) -> Any:
        def decode() -> None:
            assert torch.equal(aegis.generate(target, ids, runner=runner, **options), text), "the tokens differ"

        return decode

    ms = milliseconds({name: decoding(runner) for name, runner in runners.items()}, new, 1 if quick else 5)
    for name, runner in runners.items():
        if name == "plain":
            continue
        stats = runner.stats()
        what = f"{name}: {stats['acceptance_rate']:.2f} accepted, {stats['tokens_per_pass']:.2f} tokens a pass"
        if name.endswith(AHEAD):
            same = name.removesuffix(AHEAD)
            what += f", {stats['passes_ahead'] / stats['passes']:.2f} of them drafted ahead"
            table.compared(what, "without overlap", ms[same], ms[name], "ms/token")
        elif "0.86" in name:
            table.ratio(what, "aegis.generate", ms["plain"], ms[name], "ms/token", 1.5)
        else:
            table.compared(what, "aegis.generate", ms["plain"], ms[name], "ms/token")
    table.notes.append(
        f"A 13-layer Llama, 768 wide, float32, {GUESSES} guesses a pass; weights are random, so that the chance of a "
        "guess is set and not learnt: the draft runs, and its guesses are then replaced. All ways gave the same "
        "tokens. Both threads of an overlapped run use as many threads as torch is set to, and share the cores."
    )


if __name__ == "__main__":
    main(build)
