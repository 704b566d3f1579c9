"""Exceptions that come between any two statements, as those of signals do: what is decoded afterwards is the same."""

import sys

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import SpeculativeFastRunner, cache_positions, register_attention
from overlapped import make, near


class Interrupted(BaseException):
    pass


def interrupted(call, count, names=()):
    """Whether ``call()`` was ended by an exception before the ``count``-th line that it came to in the file of the
    cache's lengths, or in functions of it that have these names."""
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
        return code.co_filename == cache_positions.__file__ and (not names or code.co_name in names)

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: inside if counts(frame.f_code) else None)
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
            for row, length in enumerate(runner.lengths):
                assert torch.equal(runner.text(row), want[row, :length]), count
            runner.reset()
            count += 1
    assert count > 10
