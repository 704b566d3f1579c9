"""SpeculativeFastRunner(overlap=True) where something goes wrong, and at its end."""

import gc
import os
import signal
import threading

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import SpeculativeFastRunner, overlap, overlap_thread
from aegis.decode.overlap_entries import Kind
from overlapped import GREEDY, drafting, goes_on, make, near, scripted

FAILURE = "what a draft may run into"


@pytest.fixture(scope="module")
def llama():
    return make()


# --- where it goes wrong -----------------------------------------------------------------------------------------


def fail():
    raise LookupError(FAILURE)


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


def test_an_answer_that_an_exception_took_along_is_not_waited_for(llama, monkeypatch):
    runner, _, ids, want = scripted(llama)
    pop = runner._overlapped._pop

    def interrupted(most):
        answer = pop(most)
        if answer["flags"][0] == Kind.HELD:
            raise KeyboardInterrupt
        return answer

    with runner:
        runner.prefill(ids)
        runner.step()
        monkeypatch.setattr(overlap, "WAIT_SECONDS", 60.0)
        with monkeypatch.context() as patch:
            patch.setattr(runner._overlapped, "_pop", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.reset()
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
    runner = SpeculativeFastRunner(llama, near(), 4, max_cache_len=70, overlap=True)
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
