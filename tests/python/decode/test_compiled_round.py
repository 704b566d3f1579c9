"""What guesses and verdicts in one compiled function each give is what they give without."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import (
    EarlyExit,
    FusedLogitsSampler,
    PromptLookup,
    SpeculativeFastRunner,
    compiled_pass,
    compiled_round,
)
from aegis.decode import speculative as speculative_module
from aegis.decode.compiled_round import CompiledGuesses, CompiledVerdicts
from aegis.decode.drafts import PromptLookupDraft, Proposal

NEW = 24
GUESSES = 3
ROOM = 64
SMALL = {"num_hidden_layers": 1}


def near(model, noise=0.05, seed=5):
    """Changes a model so that it is right about half the time."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) * noise * weight.std()
    return model


@pytest.fixture(scope="module")
def target():
    return tiny_models.make("llama", **SMALL)


@pytest.fixture(scope="module")
def draft():
    return near(tiny_models.make("llama", **SMALL))


@pytest.fixture(scope="module")
def truly_compiled(target, draft):
    return SpeculativeFastRunner(target, draft, 2, batch_size=2, max_cache_len=ROOM, mode="compiled")


@pytest.fixture
def by_hand(monkeypatch):
    """The same functions without a compiler, which needs seconds for each."""
    monkeypatch.setattr(compiled_pass, "compiled", lambda function: function)


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions that were called in place of single passes."""
    names = []

    def note(kind, method):
        inner = getattr(kind, method)

        def noted(self, *args):
            names.append(method)
            return inner(self, *args)

        monkeypatch.setattr(kind, method, noted)

    note(CompiledGuesses, "guess")
    note(CompiledVerdicts, "verify")
    return names


class Scripted(PromptLookupDraft):
    """Guesses the texts that it was given, of each row with the wrong[row]-th guess off by one."""

    def __init__(self, texts, wrong):
        super().__init__(PromptLookup())
        self.texts, self.wrong = texts, wrong

    def propose(self, count, first, text, lengths, state):
        tokens = torch.stack([self.texts[row, n : n + count] for row, n in enumerate(lengths, first)])
        for row, wrong in enumerate(self.wrong[: len(tokens)]):
            if wrong < count:
                tokens[row, wrong] = (tokens[row, wrong] + 1) % tiny_models.VOCABULARY
        return Proposal(tokens, [count] * len(lengths), None)


def sampled(**options):
    return FusedLogitsSampler(**{"temperature": [0.8, 1.3], "top_k": [0, 30], "top_p": 0.9, "seed": 3, **options})


def written(runner, sampler, ids, mask, new=NEW):
    """A text of ``new`` tokens by steps."""
    with runner:
        runner.reset()
        sampler.reset()
        runner.use_sampler(sampler)
        runner.prefill(ids, mask)
        while min(runner.lengths) < ids.shape[1] + new:
            runner.step()
        return [runner.text(row).tolist()[: ids.shape[1] + new] for row in range(len(ids))]


def eager_twin(runner, **options):
    draft = runner._draft.decoder.model
    return SpeculativeFastRunner(
        runner.model, draft, runner.num_speculative_tokens, batch_size=2, max_cache_len=ROOM, **options
    )


# --- compiled ----------------------------------------------------------------------------------------------------


def test_greedy_tokens_are_the_targets_own(truly_compiled, calls):
    """Rows that are padded and get ahead of each other; two texts of one compilation; end tokens inside a block."""
    runner, counts = truly_compiled, set()
    for seed, ends in ((1, None), (2, [3, 4, 50, 51, 52])):
        ids, mask = tiny_models.padded(2, seed=seed)
        options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": ends}
        want = runner.model.generate(ids, do_sample=False, **options)
        assert torch.equal(aegis.generate(runner.model, ids, runner=runner, **options), want)
        with runner:
            runner.reset()
            runner.prefill(ids, mask)
            counts.add(tuple(runner.step().counts))
    assert {"guess", "verify"} == set(calls)
    assert any(first != second for first, second in counts)
    assert 0.2 < runner.stats()["acceptance_rate"] < 0.9


def test_sampled_tokens_are_those_of_the_eager_runner(truly_compiled, calls):
    """And so they are with another sampler of the same form, whose numbers are others, and where its state is set."""
    eager = eager_twin(truly_compiled)
    ids, mask = tiny_models.padded(2)
    texts = []
    for options in ({}, {"seed": 4}, {"temperature": [0.5, 2.0], "top_p": 0.99}):
        got, want = (written(runner, sampled(**options), ids, mask) for runner in (truly_compiled, eager))
        assert got == want
        texts.append(got)
    assert texts[0] != texts[1] != texts[2]
    results = []
    for runner in (truly_compiled, eager):
        sampler = sampled()
        with runner:
            runner.reset()
            runner.use_sampler(sampler)
            runner.prefill(ids, mask)
            sampler.state[1, 0] = 77
            counts = runner.step().counts
            sampler.state[0, 2] += 1000
            results.append((counts, runner.step().counts, runner.text(0).tolist(), runner.text(1).tolist()))
            runner.reset()
    assert results[0] == results[1]
    assert len(truly_compiled._decoder.static_pass._compiled) <= 2, "compiled once for greedy and once for sampled"
    assert calls.count("guess") == calls.count("verify")


# --- all forms, without the compiler -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3", "opt"])
@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "logit_bias": {5: 3.0}},
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": None, "keep_ties": True, "logit_bias": {7: 2.0}},
        {"temperature": [0.0, 1.0]},
    ],
    ids=str,
)
def test_texts_are_those_of_the_eager_runner(by_hand, calls, family, options):
    model = tiny_models.make(family, num_hidden_layers=2) if family != "gemma3" else tiny_models.make(family)
    ids, mask = tiny_models.padded(2)
    texts = []
    for mode in ("compiled", "eager"):
        runner = SpeculativeFastRunner(model, EarlyExit(1), GUESSES, batch_size=2, max_cache_len=ROOM, mode=mode)
        texts.append(written(runner, sampled(**options), ids, mask))
    assert texts[0] == texts[1]
    assert calls.count("guess") == calls.count("verify") > 3
    assert runner.stats()["proposed"] > 0


def test_the_law_of_the_draft_may_be_another(by_hand, target, draft):
    """A greedy draft of a target that samples, and the other way round."""
    greedy = FusedLogitsSampler(do_sample=False)
    ids, mask = tiny_models.padded(2)
    for mine, theirs in ((sampled(), greedy), (greedy, sampled()), (sampled(), sampled(temperature=2.0))):
        runners = [
            SpeculativeFastRunner(
                target, draft, GUESSES, batch_size=2, max_cache_len=ROOM, draft_sampler=theirs, mode=mode
            )
            for mode in ("compiled", "eager")
        ]
        first, second = (written(runner, mine, ids, mask) for runner in runners)
        assert first == second


def test_a_prompt_of_one_token_and_another_beside_padding(by_hand, calls, target, draft):
    for ids, mask in (
        (tiny_models.prompts(2, 1), None),
        (tiny_models.prompts(2, 3), torch.tensor([[0, 0, 1], [1, 1, 1]])),
    ):
        runners = [
            SpeculativeFastRunner(target, draft, GUESSES, batch_size=2, max_cache_len=ROOM, mode=mode)
            for mode in ("compiled", "eager")
        ]
        first, second = (written(runner, sampled(), ids, mask) for runner in runners)
        assert first == second
    assert "guess" in calls


def test_many_guesses_are_made_one_by_one(monkeypatch, by_hand, calls, target):
    """A function of all of them would take long to compile."""
    monkeypatch.setattr("aegis.decode.compiled_pass.compiled", lambda function: function)
    ids, mask = tiny_models.padded(2)
    want = target.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    runner = SpeculativeFastRunner(target, target, 9, batch_size=2, max_cache_len=ROOM, mode="compiled")
    got = aegis.generate(
        target, ids, attention_mask=mask, runner=runner, max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    assert torch.equal(got, want)
    assert set(calls) == {"verify"}


@pytest.mark.parametrize("wrong", [(0, 3), (1, 2), (2, 0), (3, 1)])
def test_accepts_up_to_each_position_in_turn_case43(by_hand, calls, target, wrong):
    ids, mask = tiny_models.padded(2)
    want = target.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
    with SpeculativeFastRunner(target, None, GUESSES, batch_size=2, max_cache_len=ROOM, mode="compiled") as runner:
        runner._draft = Scripted(want, wrong)
        runner.prefill(ids, mask)
        for _ in range(3):
            lengths = runner.lengths
            assert runner.step().counts == [kept + 1 for kept in wrong]
            assert runner.lengths == [length + kept + 1 for length, kept in zip(lengths, wrong, strict=True)]
            assert runner.cache.row_lengths == runner.cache.lengths.tolist() == [n - 1 for n in runner.lengths]
            for row in range(2):
                assert torch.equal(runner.text(row), want[row, : runner.lengths[row]])
    assert calls == ["verify"] * 3


@pytest.mark.parametrize("room", [ROOM, 9 + NEW - 1], ids=["room for whole passes", "no room"])
@pytest.mark.parametrize("options", [{"do_sample": False}, {}], ids=str)
def test_the_last_pass_is_shorter(by_hand, calls, target, draft, room, options):
    """It gives what it gives where it is not compiled; where there is room, it is."""
    ids = tiny_models.prompts(2)
    texts = []
    for mode in ("compiled", "eager"):
        runner = SpeculativeFastRunner(
            target, draft, GUESSES, batch_size=2, max_cache_len=room, sampler=sampled(**options), mode=mode
        )
        with runner:
            runner.prefill(ids)
            while min(runner.lengths) < 9 + NEW:
                before, left = runner.lengths, 9 + NEW - max(runner.lengths)
                if left == 0:
                    runner.end(runner.lengths.index(9 + NEW))
                    left = 9 + NEW - min(runner.lengths)
                step = runner.step(max_tokens=left)
                assert max(step.counts) <= left
                assert runner.lengths == [n + c for n, c in zip(before, step.counts, strict=True)]
            texts.append([runner.text(row).tolist() for row in range(2)])
            stats = runner.stats()
        assert stats["accepted"] <= stats["proposed"]
    assert texts[0] == texts[1]
    assert len(calls) > 4


def test_what_needs_text_or_fewer_rows_is_not_compiled(monkeypatch, by_hand, calls, target, draft):
    """Penalties, processors, samplers that raise, and a batch of fewer rows than the cache has."""
    monkeypatch.setattr("aegis.decode.compiled_pass.compiled", lambda function: function)
    ids, mask = tiny_models.padded(2)
    runner = SpeculativeFastRunner(target, draft, GUESSES, batch_size=2, max_cache_len=ROOM, mode="compiled")
    eager = eager_twin(runner)
    unchanged = sampled().after([lambda ids, scores: scores])
    for sampler in (sampled(repetition_penalty=1.3), unchanged, sampled(strict=True)):
        assert written(runner, sampler, ids, mask) == written(eager, sampler, ids, mask)
    one = {"temperature": 0.8, "seed": 3}
    first, second = (written(r, FusedLogitsSampler(**one), ids[1:], mask[1:]) for r in (runner, eager))
    assert first == second
    assert calls == []


@pytest.mark.parametrize("where", ["in the guesses", "before the verdict", "in the verdict", "behind the verdict"])
@pytest.mark.parametrize("options", [{"do_sample": False}, {}], ids=str)
def test_an_exception_leaves_what_a_step_goes_on_from(monkeypatch, by_hand, target, draft, where, options):
    ids, mask = tiny_models.padded(2)
    runner = SpeculativeFastRunner(target, draft, GUESSES, batch_size=2, max_cache_len=ROOM, mode="compiled")
    want = written(runner, sampled(**options), ids, mask)
    kind, name = {
        "in the guesses": (type(runner._draft.decoder.static_pass), "__call__"),
        "before the verdict": (CompiledVerdicts, "verify"),
        "in the verdict": (compiled_round, "accept_equal" if options else "accept_by_ratio"),
        "behind the verdict": (speculative_module, "until_end"),
    }[where]
    inner, times = getattr(kind, name), []

    def failing(*args, **kwargs):
        times.append(name)
        if len(times) in (2, 3):
            raise KeyboardInterrupt
        return inner(*args, **kwargs)

    sampler = sampled(**options)
    with runner:
        runner.reset()
        runner.use_sampler(sampler)
        runner.prefill(ids, mask)
        monkeypatch.setattr(kind, name, failing)
        while min(runner.lengths) < ids.shape[1] + NEW:
            before = runner.lengths, sampler.state.clone()
            try:
                runner.step()
            except KeyboardInterrupt:
                assert runner.lengths == before[0]
                assert torch.equal(sampler.state, before[1])
        assert [runner.text(row).tolist()[: ids.shape[1] + NEW] for row in range(2)] == want
    assert len(times) > 3
