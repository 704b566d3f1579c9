"""Drafts, runs and exact probabilities for the tests of speculative decoding."""

import tiny_models
import torch
from aegis.decode import FusedLogitsSampler, PromptLookup
from aegis.decode.drafts import PromptLookupDraft, Proposal


def another(name, **changes):
    """A model of other weights."""
    model = tiny_models.make(name, **changes)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.std() + weight.mean())
    return model


class Scripted(PromptLookupDraft):
    """Guesses the texts that it was given, with every ``wrong``-th guess of a pass, counted from 0, off by one."""

    def __init__(self, texts, wrong=None):
        super().__init__(PromptLookup())
        self.texts, self.wrong = texts, wrong

    def propose(self, count, first, text, lengths, state):
        tokens = torch.zeros(len(lengths), count, dtype=torch.int64)
        for row, length in enumerate(lengths):
            mine = self.texts[first + row, length : length + count]
            tokens[row, : len(mine)] = mine
        if self.wrong is not None and self.wrong < count:
            tokens[:, self.wrong] = (tokens[:, self.wrong] + 1) % tiny_models.VOCABULARY
        return Proposal(tokens, [count] * len(lengths), None)


def run_on(runner, length):
    while min(runner.lengths) < length:
        runner.step()


def run(runner, ids, mask=None, new=24):
    """Texts of ``new`` more tokens, by steps."""
    runner.prefill(ids, mask)
    run_on(runner, ids.shape[1] + new)
    return torch.stack([runner.text(row)[: ids.shape[1] + new] for row in range(len(ids))])


TARGET = {"temperature": 0.8, "top_k": 5}


def law(model, prompt, new):
    """{text: probability} of all continuations under TARGET."""
    sampler = FusedLogitsSampler(**TARGET)
    laws = {(): 1.0}
    for _ in range(new):
        texts = torch.tensor([prompt + list(text) for text in laws])
        with torch.no_grad():
            chances = sampler.probabilities(model(texts).logits[:, -1]).double()
        laws = {
            (*text, token): chance * float(chances[row, token])
            for row, (text, chance) in enumerate(laws.items())
            for token in range(chances.shape[1])
            if chances[row, token] > 0
        }
    return laws


def small_models(width, dtype=torch.float32):
    """A target and a draft with six tokens, none of which is far more likely than the others."""
    small = {"vocab_size": 6, "hidden_size": width, "intermediate_size": width, "num_attention_heads": 1}
    small |= {"num_key_value_heads": 1, "num_hidden_layers": 1}
    target, draft = tiny_models.make("llama", **small), another("llama", **small).to(dtype)
    with torch.no_grad():
        for model in (target, draft):
            model.lm_head.weight.mul_(0.25)
    return target, draft


def assert_texts_follow_the_law(runner, target, rows, new):
    """χ² of as many texts, ``new`` tokens long, of a runner of small models against their exact probabilities."""
    prompt = [1, 2, 3]
    with runner:
        runner.prefill(torch.tensor([prompt]).repeat(rows, 1))
        run_on(runner, len(prompt) + new)
        texts = runner._text[:, len(prompt) : len(prompt) + new]
    assert 0.2 < runner.stats()["acceptance_rate"] < 0.95, "nothing is tested where all or nothing is kept"
    codes = (texts * 6 ** torch.arange(new - 1, -1, -1)).sum(1)
    counts = torch.bincount(codes, minlength=6**new)
    expected = torch.zeros(6**new, dtype=torch.float64)
    for text, chance in law(target, prompt, new).items():
        expected[sum(t * 6 ** (new - 1 - i) for i, t in enumerate(text))] = chance * rows
    assert counts[expected == 0].sum() == 0
    common = expected >= 10
    observed = torch.cat([counts[common].double(), counts[~common].sum()[None].double()])
    wanted = torch.cat([expected[common], expected[~common].sum()[None] + 1e-9])
    chi = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(observed) - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5, (chi, freedom)
