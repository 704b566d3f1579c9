"""Exceptions that come between any two statements, as those of signals do: what is decoded afterwards is the same."""

import sys

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import (
    FusedLogitsSampler,
    SpeculativeFastRunner,
    block_decoder,
    cache_positions,
    cache_steps,
    register_attention,
)
from aegis.decode import runner as runner_module
from aegis.decode import sampler as sampler_module
from aegis.decode import speculative as speculative_module
from overlapped import make, near


class Interrupted(BaseException):
    pass


def interrupted(call, count, names=(), modules=(cache_positions,)):
    """Whether ``call()`` was ended by an exception before the ``count``-th line that it came to in these modules, or in
    functions of theirs that have these names."""
    left = count

    def inside(frame, event, argument):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise Interrupted
        return inside

    def counts(code):
        return code.co_filename in files and (not names or code.co_name in names)

    files = [module.__file__ for module in modules]

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: inside if counts(frame.f_code) else None)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def has_texts(runner, want):
    """Whether each row's text is the beginning of its row in ``want``."""
    return all(torch.equal(runner.text(row), want[row, :length]) for row, length in enumerate(runner.lengths))


def changes(cache):
    """What changes lengths between passes."""
    with cache.rows([1]):
        cache.crop(-2)
    cache.acquire_row()
    cache.free_row(0)
    with cache.step():
        cache.lengths[1:] += 1
    cache.reorder_cache(torch.tensor([2, 1]))
    cache.reset()


def test_device_lengths_follow_the_hosts_wherever_an_exception_comes():
    model = tiny_models.make("llama", num_hidden_layers=1)
    count, ended = 1, False
    while not ended:
        cache = aegis.SlottedStaticCache(model.config, 3, 20)
        with torch.no_grad():
            model(tiny_models.prompts(2), past_key_values=cache)
        ended = not interrupted(lambda cache=cache: changes(cache), count)
        cache.abort_step()
        assert cache.lengths.tolist() == cache.row_lengths, count
        assert cache._positions.growth.tolist() == [int(row in cache.rows_in_use) for row in range(3)], count
        count += 1
    assert count > 40


def test_a_step_that_was_interrupted_anywhere_is_made_up_for():
    """Before each line where tokens are taken back, in a step that begins by taking back tokens of the longest row in
    the draft's cache. Spans beyond the keys that the host counts are an error."""
    register_attention()
    model, draft = make(), near()
    for one in (model, draft):
        one.set_attn_implementation("aegis")
    ids = tiny_models.prompts(2, seed=5)
    want = model.generate(ids, max_new_tokens=30, do_sample=False, pad_token_id=0)
    count, ended = 1, False
    with SpeculativeFastRunner(model, draft, 2, batch_size=2, max_cache_len=40) as runner:
        while not ended:
            runner.prefill(ids)
            kept = [0, 0]
            while kept[0] == 3 or kept[1] < 3 or runner.lengths[0] <= runner.lengths[1]:
                kept = runner.step().counts
            ended = not interrupted(runner.step, count, ("crop", "_changed", "_publish_lengths"))
            runner.step()
            runner.step()
            assert has_texts(runner, want), count
            runner.reset()
            count += 1
    assert count > 10


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("paged", [False, True])
def test_a_step_of_one_token_is_made_again_wherever_it_was_interrupted(monkeypatch, mode, paged):
    """Before each line of what counts tokens and of what draws them."""
    monkeypatch.setattr("aegis.decode.runner.compiled", lambda step: step)
    model, ids = make(), tiny_models.prompts(2)
    want = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[:, 9:].T
    cache = (aegis.PagedKVCache if paged else aegis.SlottedStaticCache)(model.config, 2, 20)
    count, ended = 1, False
    with aegis.CUDAGraphFastRunner(model, cache=cache, mode=mode, clone=True) as runner:
        while not ended:
            got = [runner.prefill(ids), runner.step()]
            ended = not interrupted(runner.step, count, modules=(cache_steps, cache_positions, sampler_module))
            got += [runner.step() for _ in range(4)]
            assert torch.equal(torch.stack(got), want) or ended, count
            runner.reset()
            count += 1
    assert count > 30


def test_a_step_that_is_interrupted_again_while_it_finds_its_place():
    model, ids = make(), tiny_models.prompts(1)
    want = model.generate(ids, max_new_tokens=4, do_sample=False)[0, 9:].tolist()
    count, ended = 1, False
    with aegis.CUDAGraphFastRunner(model, max_cache_len=20, clone=True) as runner:
        while not ended:
            got = [runner.prefill(ids), runner.step()]
            assert interrupted(runner.step, 1, ("_draw",), (runner_module,))
            ended = not interrupted(runner.step, count, ("_place",), (runner_module,))
            if not ended:
                assert [int(token) for token in (*got, runner.step(), runner.step())] == want, count
            runner.reset()
            count += 1
    assert count > 5


@pytest.mark.parametrize("options", [{}, {"paged": True}, {"tree": (2, 1)}], ids=["line", "pages", "tree"])
def test_a_seeds_tokens_go_on_wherever_a_pass_was_interrupted(options):
    """Before each line of a pass that gives a row back which has ended amid the others: texts and random numbers move
    together, and every row or none."""
    model, draft, ids = make(), near(), tiny_models.prompts(3)
    sampler = FusedLogitsSampler(temperature=0.8, top_k=3, seed=[1, 2, 3])
    greedy = FusedLogitsSampler(do_sample=False)
    want = aegis.generate(model, ids, max_new_tokens=30, temperature=0.8, top_k=3, seed=[1, 2, 3], pad_token_id=0)
    count, ended = 1, False
    options |= {"batch_size": 3, "max_cache_len": 50, "sampler": sampler, "draft_sampler": greedy}
    with SpeculativeFastRunner(model, draft, 2, **options) as runner:
        while not ended:
            runner.prefill(ids)
            runner.step()
            runner.end(1)
            before = runner.lengths
            ended = not interrupted(
                runner.step, count, ("step", "_pass", "_in_line", "retire"), (speculative_module, block_decoder)
            )
            grown = [now > then for now, then in zip(runner.lengths, before, strict=True)]
            assert grown in ([False] * 3, [True, False, True]), count
            runner.step()
            runner.step()
            assert has_texts(runner, want), count
            runner.reset()
            sampler.reset()
            count += 1
    assert count > 40


def test_a_prompt_that_was_interrupted_anywhere_can_be_fed_again():
    model, ids = make(), tiny_models.prompts(2)
    want = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    count, ended = 1, False
    with SpeculativeFastRunner(model, near(), 2, batch_size=2, max_cache_len=30) as runner:
        while not ended:
            ended = not interrupted(lambda: runner.prefill(ids), count, ("prefill",), (speculative_module,))
            if not ended:
                runner.prefill(ids)
            runner.step()
            assert has_texts(runner, want), count
            runner.reset()
            count += 1
    assert count > 10
