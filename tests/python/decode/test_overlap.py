"""SpeculativeFastRunner(overlap=True) gives what it gives without, while its draft works in a thread."""

import threading

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner
from aegis.decode import speculative as speculative_module
from overlapped import GREEDY, drafting, make, near, scripted


@pytest.fixture(scope="module")
def llama():
    return make()


# --- the same as without -----------------------------------------------------------------------------------------

SAMPLED = {"temperature": 0.8, "top_k": 20}
LAWS = {
    "greedy": lambda: {},
    "sampled": lambda: {"sampler": FusedLogitsSampler(**SAMPLED, seed=7)},
    "greedy draft": lambda: {
        "sampler": FusedLogitsSampler(**SAMPLED, seed=7),
        "draft_sampler": FusedLogitsSampler(do_sample=False),
    },
    "penalties": lambda: {"sampler": FusedLogitsSampler(**SAMPLED, repetition_penalty=1.3, seed=[4, 5, 6])},
}


def recorded(monkeypatch, model, draft, kind, rows, new=45, **options):
    """Everything of a run that can differ: counts of steps, texts, and what the target was told, to the bit."""
    told = []
    before = speculative_module.BlockDecoder.feed

    def feed(decoder, tokens, first):
        if decoder is runner._decoder:
            told.append(tokens.clone())
        return before(decoder, tokens, first)

    ratio = speculative_module.accept_by_ratio

    def accept(target, q, guesses, state):
        told.extend((q.clone(), state.clone()))
        return ratio(target, q, guesses, state)

    with monkeypatch.context() as patch:
        patch.setattr(speculative_module.BlockDecoder, "feed", feed)
        patch.setattr(speculative_module, "accept_by_ratio", accept)
        runner = SpeculativeFastRunner(
            model, draft, 4, batch_size=rows, max_cache_len=90, eos_token_id=[3, 50], **LAWS[kind](), **options
        )
        ids, mask = tiny_models.padded(rows)
        counts = []
        with runner:
            runner.prefill(ids, mask)
            while not all(runner.ended) and max(runner.lengths) < ids.shape[1] + new:
                counts.append(runner.step().counts)
    stats = runner.stats()
    return (counts, [runner.text(row) for row in range(rows)], told, [stats["proposed"], stats["accepted"]]), stats


@pytest.mark.parametrize(("kind", "rows"), [("greedy", 3), ("sampled", 1), ("greedy draft", 1), ("penalties", 3)])
@pytest.mark.parametrize("draft", ["same", "near", "exit", "lookup"])
def test_the_same_as_without_case1_case2_case38_case40(llama, kind, draft, rows, monkeypatch):
    """Steps, tokens, and the distributions that guesses were drawn from. Early exit has a cache of its own."""
    model = {"same": llama, "near": near(), "exit": EarlyExit(2), "lookup": PromptLookup()}[draft]
    options = {"adaptive": draft in ("exit", "near")}
    want, _ = recorded(monkeypatch, llama, model, kind, rows, **options)
    got, stats = recorded(monkeypatch, llama, model, kind, rows, overlap=True, **options)
    assert got[0] == want[0]
    assert got[3] == want[3]
    assert len(got[2]) == len(want[2])
    assert all(torch.equal(a, b) for a, b in zip(got[1] + got[2], want[1] + want[2], strict=True))
    assert stats["draft_seconds"] > 0
    assert not drafting()


@pytest.mark.parametrize("family", ["mistral", "gemma3", "gpt2"])
def test_windows_that_wrap_are_taken_back(family, monkeypatch):
    """A draft ahead of its target takes back up to two blocks, also where a sliding window has wrapped."""
    model = tiny_models.make(family)
    want, _ = recorded(monkeypatch, model, EarlyExit(1), "sampled", 2)
    got, _ = recorded(monkeypatch, model, EarlyExit(1), "sampled", 2, overlap=True)
    assert got[0] == want[0]
    assert all(torch.equal(a, b) for a, b in zip(got[1] + got[2], want[1] + want[2], strict=True))


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, None])
def test_a_rejection_at_each_position_case43(llama, wrong):
    runner, draft, ids, want = scripted(llama, rows=2, wrong=wrong)
    kept = 4 if wrong is None else wrong
    with runner:
        runner.prefill(ids)
        for number in range(1, 6):
            assert runner.step().counts == [kept + 1] * 2
            assert runner.lengths == [10 + number * (kept + 1)] * 2
            assert runner.cache.row_lengths == [length - 1 for length in runner.lengths]
            for row in range(2):
                assert torch.equal(runner.text(row), want[row, : runner.lengths[row]])
    # A script looks at no orders, and so has always worked ahead before it reads the next one.
    assert runner.stats()["passes_ahead"] == (4 if wrong is None else 0)
    assert draft.calls == (6 if wrong is None else 10)


def test_rows_accept_different_numbers_case2(llama):
    runner, draft, ids, want = scripted(llama, rows=3)
    draft.texts = want.clone()
    draft.texts[1] = 0
    draft.texts[2, 15::3] = 0
    with runner:
        runner.prefill(ids)
        for _ in range(7):
            counts = runner.step().counts
            assert counts[:2] == [5, 1]
        for row in range(3):
            assert torch.equal(runner.text(row), want[row, : runner.lengths[row]])


def test_fewer_guesses_than_were_drafted_ahead(llama):
    """Where max_tokens leaves less room, the first of them are used."""
    runner, draft, ids, want = scripted(llama)
    with runner:
        runner.prefill(ids)
        assert runner.step().counts == [5]
        for most in (3, 4, 1, 1, 2, 5):
            assert runner.step(max_tokens=most).counts == [most]
        assert torch.equal(runner.text(0), want[0, : runner.lengths[0]])
    assert draft.calls > 0


@pytest.mark.parametrize("draft", ["same", "exit", "lookup"])
def test_through_generate_case42(llama, draft):
    """End tokens inside a block, of rows at different times, and limits."""
    model = {"same": llama, "exit": EarlyExit(1), "lookup": PromptLookup()}[draft]
    ids, mask = tiny_models.padded(4)
    free = llama.generate(ids, attention_mask=mask, **GREEDY)
    ends = sorted({int(free[row, at]) for row, at in ((0, 14), (1, 17), (2, 16))})
    for options in ({"eos_token_id": ends}, {"max_new_tokens": 7}, {"max_new_tokens": 1}):
        options = {"attention_mask": mask, **GREEDY, **options}
        want = llama.generate(ids, **options)
        assert torch.equal(aegis.generate(llama, ids, draft=model, overlap=True, **options), want)
    got = llama.generate(ids, custom_generate=aegis.generate, attention_mask=mask, draft=model, overlap=True, **GREEDY)
    assert torch.equal(got, free)
    with torch.inference_mode():
        got = aegis.generate(llama, ids, attention_mask=mask, draft=model, overlap=True, **GREEDY)
    assert torch.equal(got, free)


def test_a_runner_is_used_again_with_another_sampler(llama):
    ids = tiny_models.prompts(2)
    runners = [
        SpeculativeFastRunner(llama, near(), 3, batch_size=2, max_cache_len=60, overlap=overlaps)
        for overlaps in (False, True)
    ]
    for options in ({"seed": 3}, {"do_sample": False}, {"seed": 4, "repetition_penalty": 1.2}):
        options = {"max_new_tokens": 20, "pad_token_id": 0, **options}
        want, got = (aegis.generate(llama, ids, runner=runner, **options) for runner in runners)
        assert torch.equal(got, want)


def test_two_runners_at_once(llama):
    ids, other = tiny_models.prompts(1), near()
    want = llama.generate(ids, **GREEDY)
    found = []

    def decode():
        torch.set_num_threads(1)
        found.append(aegis.generate(llama, ids, draft=other, overlap=True, **GREEDY))

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(one, want) for one in found)
    assert not drafting()
