"""SpeculativeFastRunner gives what the target alone gives, whatever the draft."""

import itertools

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner
from speculation import Scripted, another, run, run_on

NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("kind", ["same", "random", "exit", "lookup"])
def test_greedy_tokens_are_the_targets_own_case1(family, kind):
    model = tiny_models.make(family)
    draft = {"same": model, "random": None, "exit": EarlyExit(1), "lookup": PromptLookup()}[kind]
    draft = another(family) if kind == "random" else draft
    ids, mask = tiny_models.padded(3)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": [3, 4]}
    want = model.generate(ids, do_sample=False, **options)
    assert torch.equal(aegis.generate(model, ids, draft=draft, **options), want)


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, None])
def test_accepts_up_to_each_position_in_turn_case43(llama, wrong):
    """Only the tail that was not accepted is taken back: from the cache, and from nothing else."""
    ids = tiny_models.prompts(2)
    want = llama.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)
    with SpeculativeFastRunner(llama, None, 4, batch_size=2, max_cache_len=64) as runner:
        runner._draft = Scripted(want, wrong)
        runner.prefill(ids)
        lengths = runner.lengths
        for _ in range(4):
            kept = 4 if wrong is None else wrong
            assert runner.step().counts == [kept + 1] * 2
            lengths = [length + kept + 1 for length in lengths]
            assert runner.lengths == lengths
            assert runner.cache.row_lengths == [length - 1 for length in lengths]
            for row in range(2):
                assert torch.equal(runner.text(row), want[row, : lengths[row]])
    stats = runner.stats()
    assert stats["acceptance_rate"] == kept / 4
    assert stats["tokens_per_pass"] == kept + 1
    assert stats["passes"] == 4
    assert stats["tokens"] == 8 * (kept + 1)


def test_rows_accept_different_numbers_and_buffers_stay_case2(llama):
    ids, mask = tiny_models.padded(4)
    with SpeculativeFastRunner(llama, another("llama"), 3, batch_size=4, max_cache_len=80) as runner:
        want = llama.generate(ids, attention_mask=mask, max_new_tokens=50, do_sample=False, pad_token_id=0)
        runner._draft = Scripted(want)
        runner._draft.texts = want.clone()
        runner._draft.texts[1] = 0
        runner._draft.texts[2, 15::3] = 0
        runner.prefill(ids, mask)
        before = [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
        for _ in range(8):
            counts = runner.step().counts
            assert counts[:2] == [4, 1]
        assert before == [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
        for row in range(4):
            assert torch.equal(runner.text(row), want[row, : runner.lengths[row]])


def test_a_draft_that_is_the_target_is_always_right(llama):
    with SpeculativeFastRunner(llama, llama, 3, max_cache_len=64) as runner:
        run(runner, tiny_models.prompts(1))
    assert runner.stats()["acceptance_rate"] == 1
    assert runner.stats()["tokens_per_pass"] == 4


def test_the_models_are_as_before_afterwards(llama):
    draft = another("llama")
    before = llama.config._attn_implementation
    aegis.generate(llama, tiny_models.prompts(1), draft=draft, max_new_tokens=4)
    aegis.generate(llama, tiny_models.prompts(1), draft=EarlyExit(1), max_new_tokens=4)
    assert llama.config._attn_implementation == draft.config._attn_implementation == before
    assert len(llama.model.layers) == llama.config.num_hidden_layers == 2
    assert {type(m).__name__ for m in llama.modules() if isinstance(m, torch.nn.Linear)} == {"Linear"}


# --- where it ends -----------------------------------------------------------------------------------------------


def test_stops_at_the_first_end_token_inside_a_block_case42(llama):
    ids = tiny_models.prompts(1)
    free = llama.generate(ids, max_new_tokens=NEW, do_sample=False)
    for at in range(10, 15):
        end = int(free[0, at])
        first = int((free[0, 9:] == end).nonzero()[0]) + 10
        with SpeculativeFastRunner(llama, llama, 5, max_cache_len=64, eos_token_id=[end, 96]) as runner:
            runner.prefill(ids)
            while not runner.ended[0]:
                runner.step()
            assert torch.equal(runner.text(0), free[0, :first])
            assert runner.cache.row_lengths == [first - 1]
            with pytest.raises(RuntimeError, match="expected a row that has not ended"):
                runner.step()
        got = aegis.generate(llama, ids, draft=llama, num_speculative_tokens=5, max_new_tokens=NEW, eos_token_id=end)
        assert torch.equal(got, free[:, :first])


@pytest.mark.parametrize(("new", "guesses"), list(itertools.product([1, 2, 3, 5, 7], [1, 4, 100])))
def test_never_more_tokens_than_asked_for(llama, new, guesses):
    ids = tiny_models.prompts(2)
    want = aegis.generate(llama, ids, max_new_tokens=new, pad_token_id=0)
    got = aegis.generate(llama, ids, max_new_tokens=new, pad_token_id=0, draft=llama, num_speculative_tokens=guesses)
    assert torch.equal(got, want)


def test_goes_on_until_the_cache_is_full_and_no_further(llama):
    ids = tiny_models.prompts(1)
    want = llama.generate(ids, max_new_tokens=8, do_sample=False)
    with SpeculativeFastRunner(llama, llama, 6, max_cache_len=16) as runner:
        assert torch.equal(run(runner, ids, new=8), want)
        assert runner.cache.row_lengths == [16]
        with pytest.raises(ValueError, match="cache: expected room for another token"):
            runner.step()
        assert torch.equal(runner.text(0), want[0])


def test_rows_end_at_different_times_and_others_go_on(llama):
    """Ended rows amid the others are carried along; those outside are left out."""
    ids = tiny_models.prompts(5)
    free = llama.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=0)
    ends = sorted({int(free[row, at]) for row, at in ((0, 12), (2, 14), (4, 20))})
    want = llama.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=0, eos_token_id=ends)
    for draft in (llama, another("llama"), PromptLookup()):
        got = aegis.generate(llama, ids, draft=draft, max_new_tokens=60, pad_token_id=0, eos_token_id=ends)
        assert torch.equal(got, want)


def test_a_row_can_be_cut_after_it_has_ended(llama):
    ids = tiny_models.prompts(3)
    with SpeculativeFastRunner(llama, PromptLookup(), 2, batch_size=3, max_cache_len=40) as runner:
        runner.prefill(ids)
        for bad in (-1, 3):
            for asks in (runner.end, runner.text):
                with pytest.raises(IndexError, match=f"row: expected one of 3, got {bad}"):
                    asks(bad)
        with pytest.raises(ValueError, match="length: expected 1 to 10, the row's, got 11"):
            runner.end(1, 11)
        assert runner.ended == [False] * 3
        runner.end(1)
        runner.step()  # its place in the cache now serves as filling
        whole = runner.text(1)
        runner.end(1, 7)
        assert runner.lengths[1] == 7
        assert torch.equal(runner.text(1), whole[:7])


def test_a_step_that_failed_is_taken_back(llama):
    ids = tiny_models.prompts(2)
    calls = itertools.count()

    def breaks(input_ids, scores):
        if next(calls) == 17:
            raise InterruptedError
        return scores

    sampler = FusedLogitsSampler(temperature=0.8, seed=2).after([breaks])
    with SpeculativeFastRunner(llama, another("llama"), 3, batch_size=2, max_cache_len=60, sampler=sampler) as runner:
        runner.prefill(ids)
        with pytest.raises(InterruptedError):
            run_on(runner, 40)
        run_on(runner, 25)
        got = [runner.text(row)[:25] for row in range(2)]
    sampler = FusedLogitsSampler(temperature=0.8, seed=2).after([lambda input_ids, scores: scores])
    with SpeculativeFastRunner(llama, another("llama"), 3, batch_size=2, max_cache_len=60, sampler=sampler) as runner:
        assert torch.equal(torch.stack(got), run(runner, ids, new=16))


def test_a_prompt_that_a_draft_fails_at_has_drawn_nothing(llama, monkeypatch):
    """So a seed means the same tokens when it is fed again."""
    ids, draft = tiny_models.prompts(1), another("llama")
    sampler = FusedLogitsSampler(temperature=0.8, seed=2)
    with SpeculativeFastRunner(llama, draft, 3, max_cache_len=60, sampler=sampler) as runner:
        want = run(runner, ids)
        runner.reset()
        sampler.reset()
        with monkeypatch.context() as patch:
            patch.setattr(draft.lm_head, "forward", lambda states: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                runner.prefill(ids)
        assert torch.equal(run(runner, ids), want)


def test_another_sampler_waits_for_another_text(llama):
    """Amid a text it is refused, and one that cannot be used changes nothing."""
    ids = tiny_models.prompts(1)
    guidance = tiny_models.hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, llama)
    with SpeculativeFastRunner(llama, llama, 3, max_cache_len=60, sampler=FusedLogitsSampler(seed=2)) as runner:
        want = run(runner, ids)
        with pytest.raises(RuntimeError, match=r"use_sampler: expected reset\(\) before"):
            runner.use_sampler(FusedLogitsSampler(seed=3))
        runner.reset()
        with pytest.raises(ValueError, match="logits_processor: expected none that keeps a state"):
            runner.use_sampler(FusedLogitsSampler(seed=3).after([guidance]))
        runner._decoder.runner.sampler.reset()
        assert torch.equal(run(runner, ids), want)


# --- bad input ---------------------------------------------------------------------------------------------------


def refused(llama, match, *arguments, error=ValueError, **options):
    with pytest.raises(error, match=match):
        SpeculativeFastRunner(llama, *arguments, **options)


def test_bad_input(llama):
    refused(llama, "num_speculative_tokens: expected at least 1, got 0", llama, 0)
    refused(llama, "num_speculative_tokens: expected an int, got 2.5", llama, 2.5, error=TypeError)
    wider = tiny_models.make("llama", vocab_size=101)
    refused(llama, "draft: expected the target's vocabulary of 97 tokens, got 101", wider)
    refused(llama, "draft: expected a model, PromptLookup or EarlyExit, got str", "ngram")
    refused(llama, "draft: model: expected a causal language model", llama.model)
    refused(llama, "layers: expected 1 to 1, fewer than the target's 2, got 2", EarlyExit(2))
    refused(llama, "sampler: expected a FusedLogitsSampler", None, sampler=print)
    refused(llama, "layers: expected 1 to 1, fewer than the target's 2, got True", EarlyExit(True))
    refused(llama, "eos_token_id: expected a token or several, got 'a'", eos_token_id="a", error=TypeError)
    refused(llama, "batch_size: expected at least 1, got 0", llama, batch_size=0)
    refused(llama, "prefill_chunk: expected none without paged=True, got 4", llama, prefill_chunk=4)
    refused(llama, "prefill_chunk: expected at least 1, got 0", llama, paged=True, prefill_chunk=0)
    with pytest.raises(ValueError, match=r"min_ngram: expected 1 to max_ngram \(2\), got 3"):
        PromptLookup(2, 3)
    with pytest.raises(TypeError, match="max_ngram: expected an int, got '3'"):
        PromptLookup("3")
    runner = SpeculativeFastRunner(llama, llama, max_cache_len=12)
    with pytest.raises(RuntimeError, match="inside `with runner:`"):
        runner.prefill(tiny_models.prompts(1))
    with runner:
        with pytest.raises(RuntimeError, match="step: expected prefill"):
            runner.step()
        with pytest.raises(RuntimeError, match="entered once"):
            runner.__enter__()
        with pytest.raises(ValueError, match="input_ids: expected room for 13 more tokens"):
            runner.prefill(tiny_models.prompts(1, 13))
        runner.prefill(tiny_models.prompts(1))
        with pytest.raises(RuntimeError, match=r"expected reset\(\) before another prompt"):
            runner.prefill(tiny_models.prompts(1))
        for few in (0, 1.5):
            with pytest.raises(ValueError, match=f"max_tokens: expected at least 1, got {few}"):
                runner.step(max_tokens=few)
        with pytest.raises(ValueError, match="length: expected 1 to 10"):
            runner.end(0, 11)
        runner.reset()
        runner.prefill(tiny_models.prompts(1))
        assert runner.step().counts == [3], "as many as there is room for"
