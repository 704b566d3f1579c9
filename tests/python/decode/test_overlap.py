"""SpeculativeFastRunner(overlap=True) gives what it gives without, while its draft works in a thread."""

import gc
import os
import signal
import threading

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner, overlap, overlap_thread
from aegis.decode import speculative as speculative_module
from aegis.decode.drafts import PromptLookupDraft, Proposal

GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
FAILURE = "what a draft may run into"


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama", num_hidden_layers=3)


def near(model):
    """A copy whose weights are a little off, so that it is right most of the time."""
    other = tiny_models.make("llama", num_hidden_layers=3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * 0.03)
    return other


class Scripted(PromptLookupDraft):
    """Guesses the texts that it was given, with every ``wrong``-th guess of a block off by one; can be told to do
    something at a call."""

    def __init__(self, texts, wrong=None):
        super().__init__(PromptLookup())
        self.texts, self.wrong = texts, wrong
        self.calls, self.happens = 0, {}

    def propose(self, count, first, text, lengths, state):
        self.calls += 1
        self.happens.pop(self.calls, lambda: None)()
        tokens = torch.zeros(len(lengths), count, dtype=torch.int64)
        for row, length in enumerate(lengths):
            mine = self.texts[first + row, length : length + count]
            tokens[row, : len(mine)] = mine
        if self.wrong is not None and self.wrong < count:
            tokens[:, self.wrong] = (tokens[:, self.wrong] + 1) % tiny_models.VOCABULARY
        return Proposal(tokens, [count] * len(lengths), None)

    def follow(self, first, text, lengths, state):
        return torch.tensor([int(self.texts[first + row, length]) for row, length in enumerate(lengths)])


def scripted(llama, guesses=4, rows=1, wrong=None, new=40, **options):
    """A runner whose draft is a script of the right text, the draft, a prompt, and that text."""
    ids = tiny_models.prompts(rows)
    want = llama.generate(ids, max_new_tokens=new + 10, do_sample=False, pad_token_id=0)
    runner = SpeculativeFastRunner(llama, None, guesses, batch_size=rows, max_cache_len=70, overlap=True, **options)
    runner._overlapped.draft = Scripted(want, wrong)
    return runner, runner._overlapped.draft, ids, want


def drafting():
    return [thread for thread in threading.enumerate() if thread.name == "aegis-draft"]


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
    model = {"same": llama, "near": near(llama), "exit": EarlyExit(2), "lookup": PromptLookup()}[draft]
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
        SpeculativeFastRunner(llama, near(llama), 3, batch_size=2, max_cache_len=60, overlap=overlaps)
        for overlaps in (False, True)
    ]
    for options in ({"seed": 3}, {"do_sample": False}, {"seed": 4, "repetition_penalty": 1.2}):
        options = {"max_new_tokens": 20, "pad_token_id": 0, **options}
        want, got = (aegis.generate(llama, ids, runner=runner, **options) for runner in runners)
        assert torch.equal(got, want)


def test_two_runners_at_once(llama):
    ids, other = tiny_models.prompts(1), near(llama)
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


# --- where it goes wrong -----------------------------------------------------------------------------------------


def fail():
    raise LookupError(FAILURE)


def goes_on(runner, want, steps=3):
    for _ in range(steps):
        runner.step()
    assert torch.equal(runner.text(0), want[0, : runner.lengths[0]])


def test_errors_of_the_draft_reach_the_caller(llama):
    runner, draft, ids, want = scripted(llama, wrong=1)
    draft.happens = {1: fail, 5: fail}
    with runner:
        runner.prefill(ids)
        with pytest.raises(LookupError, match=FAILURE):
            runner.step()
        goes_on(runner, want)  # calls 2 to 7: the 5th is one ahead, of guesses that nobody wants
        draft.happens = {8: fail}
        with pytest.raises(LookupError, match=FAILURE):
            runner.step()
        goes_on(runner, want)


def test_a_thread_that_has_ended_is_an_error_and_is_replaced(llama, monkeypatch):
    runner, _, ids, want = scripted(llama)

    def ends(*arguments):
        raise SystemExit("as if it were killed")

    with runner:
        runner.prefill(ids)
        runner.step()
        with monkeypatch.context() as patch:
            patch.setattr(overlap_thread, "block", ends)
            patch.setattr(overlap_thread.DraftThread, "_answer", ends)
            with pytest.raises(RuntimeError, match="guesses of its thread, which has ended: SystemExit"):
                runner.step()
        assert not drafting()
        goes_on(runner, want)


def test_a_thread_that_does_not_answer_is_waited_for_and_no_longer(llama, monkeypatch):
    runner, draft, ids, want = scripted(llama, wrong=0)
    released = threading.Event()
    with runner:
        runner.prefill(ids)
        draft.happens = {1: released.wait}
        with monkeypatch.context() as patch:
            patch.setattr(overlap, "WAIT_SECONDS", 0.2)
            with pytest.raises(TimeoutError, match=r"draft: expected an answer of its thread within 0\.2 seconds"):
                runner.step()
            with pytest.raises(TimeoutError, match="draft: expected an answer"):
                runner.reset()
        released.set()
        goes_on(runner, want)
        runner.reset()
        runner.prefill(ids)
        goes_on(runner, want)


@pytest.mark.parametrize("field", ["attestation", "token"])
def test_a_guess_about_another_text_is_an_error(llama, field, monkeypatch):
    runner, _, ids, want = scripted(llama)
    before = overlap_thread.block

    def corrupted(*arguments):
        entries = before(*arguments)
        entries[3][field] ^= 16
        return entries

    with runner:
        runner.prefill(ids)
        runner.step()
        with monkeypatch.context() as patch:
            patch.setattr(overlap_thread, "block", corrupted)
            match = "position 17 of row 0 to attest the text so far, whose checksum is ([0-9a-f]{8}), got ([0-9a-f]{8})"
            with pytest.raises(RuntimeError, match=match):
                runner.step()
        goes_on(runner, want)


def test_a_thread_that_missed_a_rollback_is_found_out(llama, monkeypatch):
    runner, _, ids, want = scripted(llama, wrong=2)

    def grow(texts, ends):
        texts.lengths = [position + 1 for position, _ in ends]

    with runner:
        runner.prefill(ids)
        runner.step()
        texts = runner._overlapped._thread.texts
        monkeypatch.setattr(texts, "grow", lambda ends: grow(texts, ends))
        with pytest.raises(RuntimeError, match="to attest the text so far"):
            runner.step()
        goes_on(runner, want)


def test_ctrl_c_while_waiting(llama):
    runner, draft, ids, want = scripted(llama, wrong=3)
    released = threading.Event()

    def interrupts():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        released.wait(60)

    with runner:
        runner.prefill(ids)
        draft.happens = {1: interrupts}
        with pytest.raises(KeyboardInterrupt):
            runner.step()
        released.set()
        goes_on(runner, want)
    assert not drafting()


def test_a_step_of_the_target_that_failed(llama, monkeypatch):
    runner, _, ids, want = scripted(llama)
    with runner:
        runner.prefill(ids)
        runner.step()
        with monkeypatch.context() as patch:
            patch.setattr(runner._decoder, "feed", lambda tokens, first: fail())
            with pytest.raises(LookupError):
                runner.step()
        goes_on(runner, want)


# --- its end -----------------------------------------------------------------------------------------------------


def test_closing_in_the_middle_and_beginning_again(llama):
    runner = SpeculativeFastRunner(llama, near(llama), 4, max_cache_len=70, overlap=True)
    ids = tiny_models.prompts(1)
    want = llama.generate(ids, max_new_tokens=50, do_sample=False)
    for _ in range(3):
        with runner:
            runner.prefill(ids)
            runner.step()
            assert len(drafting()) == 1
        assert not drafting()
        with runner:  # the text has stayed
            goes_on(runner, want)
            runner.reset()


def test_a_thread_that_does_not_end_keeps_its_draft(llama, monkeypatch):
    """The error says so; the runner does nothing until the thread has ended, and then goes on."""
    runner, draft, ids, want = scripted(llama)
    begun, released = threading.Event(), threading.Event()
    draft.happens = {2: lambda: (begun.set(), released.wait())}
    with monkeypatch.context() as patch:
        patch.setattr(overlap, "WAIT_SECONDS", 0.2)
        runner.__enter__()
        runner.prefill(ids)
        runner.step()
        assert begun.wait(60)
        with pytest.raises(RuntimeError, match=r"its thread to end within 0\.2 seconds, but it is at work"):
            runner.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="but it is at work"), runner:
            runner.step()
    released.set()
    with runner:
        goes_on(runner, want)
    assert not drafting()


def test_a_runner_that_is_dropped_takes_its_thread_along(llama):
    runner, _, ids, _ = scripted(llama)
    runner.__enter__()
    runner.prefill(ids)
    runner.step()
    (thread,) = drafting()
    del runner
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def in_child(check):
    """Runs in a fork; what it raises fails the test."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_amid_a_text_is_refused_in_the_child(llama):
    runner, _, ids, want = scripted(llama)

    def refused():
        for call in (runner.step, runner.reset):
            with pytest.raises(RuntimeError, match="does not run in a fork"):
                call()
        runner.__exit__(None, None, None)

    def begins():
        runner.prefill(ids)
        goes_on(runner, want)
        runner.__exit__(None, None, None)

    with runner:
        runner.prefill(ids)
        runner.step()
        in_child(refused)
        goes_on(runner, want)
        runner.reset()
        in_child(begins)
        begins()


def test_bad_input(llama):
    ids = tiny_models.prompts(1)
    runner = SpeculativeFastRunner(llama, max_cache_len=40, overlap=True)
    for match, options in {
        "overlap: expected a draft beside it": {},
        "overlap: expected False beside a runner": {"runner": runner},
    }.items():
        with pytest.raises(ValueError, match=match):
            aegis.generate(llama, ids, overlap=True, **options, **GREEDY)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="overlap: expected models on a CPU, got some on cuda"):
        SpeculativeFastRunner(tiny_models.make("llama").to("cuda"), overlap=True)
