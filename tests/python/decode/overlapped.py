"""Runners whose draft works in a thread, and drafts for them."""

import threading

import speculation
import tiny_models
import torch
from aegis.decode import SpeculativeFastRunner

GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


def make():
    """The target."""
    return tiny_models.make("llama", num_hidden_layers=3)


def near():
    """A copy of it whose weights are a little off, so that it is right most of the time."""
    other = make()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * 0.03)
    return other


class Scripted(speculation.Scripted):
    """Can be told to do something at a call."""

    def __init__(self, texts, wrong=None):
        super().__init__(texts, wrong)
        self.calls, self.happens = 0, {}

    def propose(self, count, first, text, lengths, state):
        self.calls += 1
        self.happens.pop(self.calls, lambda: None)()
        return super().propose(count, first, text, lengths, state)

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


def goes_on(runner, want, steps=3):
    for _ in range(steps):
        runner.step()
    assert torch.equal(runner.text(0), want[0, : runner.lengths[0]])
