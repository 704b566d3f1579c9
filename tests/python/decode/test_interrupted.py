"""Exceptions that come between any two statements, as those of signals do: what is decoded afterwards is the same."""

import sys

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, SpeculativeFastRunner, cache_positions


class Interrupted(BaseException):
    pass


def interrupted(call, path, count):
    """Whether ``call()`` was ended by an exception before the ``count``-th line of a file that it came to."""
    left = count

    def inside(frame, event, argument):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise Interrupted
        return inside

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: inside if frame.f_code.co_filename == path else None)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


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
        ended = not interrupted(lambda cache=cache: changes(cache), cache_positions.__file__, count)
        cache.abort_step()
        assert cache.lengths.tolist() == cache.row_lengths, count
        assert cache._positions.growth.tolist() == [int(row in cache.rows_in_use) for row in range(3)], count
        count += 1
    assert count > 40


def test_a_step_that_was_interrupted_anywhere_is_made_up_for():
    """Each line of the cache's lengths, of a step that takes guesses back in both models."""
    model = tiny_models.make("llama", num_hidden_layers=2)
    ids = tiny_models.prompts(2)
    want = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    count, ended = 1, False
    with SpeculativeFastRunner(model, EarlyExit(1), 2, batch_size=2, max_cache_len=40) as runner:
        while not ended:
            runner.prefill(ids)
            ended = not interrupted(runner.step, cache_positions.__file__, count)
            runner.step()
            runner.step()
            for row, length in enumerate(runner.lengths):
                assert torch.equal(runner.text(row), want[row, :length]), count
            runner.reset()
            count += 1
    assert count > 40
