"""SpeculativeFastRunner gives what the target alone gives, whatever the draft."""

import itertools

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner
from aegis.decode.accept import accept_by_ratio
from aegis.decode.drafts import PromptLookupDraft, Proposal

NEW = 24


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


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


def run(runner, ids, mask=None, new=NEW):
    """Texts of ``new`` more tokens, by steps."""
    runner.prefill(ids, mask)
    run_on(runner, ids.shape[1] + new)
    return torch.stack([runner.text(row)[: ids.shape[1] + new] for row in range(len(ids))])


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


# --- sampled -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 1}], ids=str)
def test_with_a_greedy_draft_sampled_tokens_are_those_of_generate(llama, rows, options):
    """The target's own draws decide, so a seed means the same with and without a draft."""
    ids, mask = tiny_models.padded(rows)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "top_k": 20, "seed": 3, **options}
    want = aegis.generate(llama, ids, **options)
    greedy = FusedLogitsSampler(do_sample=False)
    assert torch.equal(aegis.generate(llama, ids, draft=llama, draft_sampler=greedy, **options), want)
    assert torch.equal(aegis.generate(llama, ids, draft=PromptLookup(), **options), want)


ROWS = 100_000
TARGET = {"temperature": 0.8, "top_k": 5}
DRAFTS = {
    "as the target": (None, torch.float32),
    "own settings": ({"temperature": 1.5, "top_k": 3}, torch.float32),
    "bfloat16": ({"top_p": 0.9}, torch.bfloat16),
}


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


@pytest.mark.parametrize("kind", DRAFTS)
def test_sampled_texts_follow_the_targets_law_case37_case38_case40_case41(kind):
    """χ² of 10^5 texts against their exact probabilities, with guesses that are drawn and kept by p/q."""
    settings, dtype = DRAFTS[kind]
    small = {"vocab_size": 6, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    small |= {"num_key_value_heads": 1, "num_hidden_layers": 1}
    target, draft = tiny_models.make("llama", **small), another("llama", **small).to(dtype)
    with torch.no_grad():
        for model in (target, draft):
            model.lm_head.weight.mul_(0.25)
    prompt, new = [1, 2, 3], 4
    chances = law(target, prompt, new)
    with SpeculativeFastRunner(
        target,
        draft,
        2,
        batch_size=ROWS,
        max_cache_len=10,
        sampler=FusedLogitsSampler(**TARGET, seed=11),
        draft_sampler=FusedLogitsSampler(**settings) if settings else None,
    ) as runner:
        runner.prefill(torch.tensor([prompt]).repeat(ROWS, 1))
        run_on(runner, len(prompt) + new)
        texts = runner._text[:, len(prompt) : len(prompt) + new]
    assert 0.2 < runner.stats()["acceptance_rate"] < 0.95, "nothing is tested where all or nothing is kept"
    codes = (texts * 6 ** torch.arange(new - 1, -1, -1)).sum(1)
    counts = torch.bincount(codes, minlength=6**new)
    expected = torch.zeros(6**new, dtype=torch.float64)
    for text, chance in chances.items():
        expected[sum(t * 6 ** (new - 1 - i) for i, t in enumerate(text))] = chance * ROWS
    assert counts[expected == 0].sum() == 0
    common = expected >= 10
    observed = torch.cat([counts[common].double(), counts[~common].sum()[None].double()])
    wanted = torch.cat([expected[common], expected[~common].sum()[None] + 1e-9])
    chi = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(observed) - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5, (chi, freedom)


def test_guesses_are_kept_by_the_ratio_and_replaced_from_what_is_left():
    """p = (.5, .5, 0), q = (.8, 0, .2): token 0 is kept with 5/8, token 2 never, and the rest goes to token 1."""
    rows = 40_000
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]).expand(rows, 2, 3)
    q = torch.tensor([[[0.8, 0.0, 0.2]]]).expand(rows, 1, 3)
    guesses = torch.zeros(rows, 1, dtype=torch.int64)
    guesses[rows * 4 // 5 :] = 2
    state = torch.zeros(rows, 4, dtype=torch.int64)
    state[:, 1] = torch.arange(rows)
    kept, following = accept_by_ratio(p, q, guesses, state)
    zeros = guesses[:, 0] == 0
    assert abs(float(kept[zeros].float().mean()) - 0.625) < 0.01
    assert not kept[~zeros].any()
    assert (following == torch.where(kept == 1, 2, 1)).all()


def test_equal_distributions_keep_every_guess():
    """Also where p and q differ by rounding and nothing is left to draw a replacement from."""
    p = torch.softmax(torch.randn(50, 3, 7, generator=torch.Generator().manual_seed(0)), 2)
    state = torch.zeros(50, 4, dtype=torch.int64)
    state[:, 1] = torch.arange(50)
    kept, following = accept_by_ratio(p, p[:, :2], p[:, :2].argmax(2), state)
    assert (kept == 2).all()
    assert (following < 7).all()


def test_a_rows_tokens_do_not_depend_on_its_mates(llama):
    ids, draft = tiny_models.prompts(3), another("llama")
    options = {"max_new_tokens": 12, "pad_token_id": 0, "temperature": 0.7, "draft": draft}
    alone = [aegis.generate(llama, ids[row : row + 1], seed=[row], **options) for row in range(3)]
    together = aegis.generate(llama, ids, seed=[0, 1, 2], **options)
    # near the end, fewer guesses fit behind the longest row: draws are then used otherwise
    assert torch.equal(together[:, :14], torch.cat(alone)[:, :14])


@pytest.mark.parametrize("broken", [[3], [0, 5, 96], list(range(97))], ids=len)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_scores_that_are_no_distribution_end_nothing(llama, broken, value):
    """A NaN takes the largest number of its row, as the sampler does; infinities mean what they say."""

    def breaks(input_ids, scores):
        return scores.index_fill_(1, torch.tensor(broken), value)

    ids = tiny_models.prompts(2)
    options = {"max_new_tokens": 8, "pad_token_id": 0, "seed": 1, "logits_processor": [breaks]}
    got = aegis.generate(llama, ids, draft=another("llama"), **options)
    assert ((got >= 0) & (got < tiny_models.VOCABULARY)).all()
    if value == torch.inf:
        assert (got[:, 9:] == broken[0]).all()
    elif value == -torch.inf and len(broken) < 97:
        assert not torch.isin(got[:, 9:], torch.tensor(broken)).any()


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
            with pytest.raises(IndexError, match=f"row: expected one of 3, got {bad}"):
                runner.end(bad)
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
        with pytest.raises(ValueError, match="max_tokens: expected at least 1"):
            runner.step(max_tokens=0)
        with pytest.raises(ValueError, match="length: expected 1 to 10"):
            runner.end(0, 11)
        runner.reset()
        runner.prefill(tiny_models.prompts(1))
        assert runner.step().counts == [3], "as many as there is room for"
