"""Speculation through aegis.generate: arguments, callbacks, criteria; and the pieces that choose guesses."""

import aegis
import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models  # noqa: E402
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner, TokenTree  # noqa: E402
from aegis.decode.draft_length import DraftLength  # noqa: E402
from aegis.decode.drafts import first_layers  # noqa: E402

GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama", num_hidden_layers=3)


@pytest.mark.parametrize(
    "options",
    [
        {"assistant_model": "itself"},
        {"assistant_model": "itself", "num_assistant_tokens": 2},
        {"prompt_lookup_num_tokens": 3},
        {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
        {"assistant_early_exit": 2},
        {"generation_config": transformers.GenerationConfig(prompt_lookup_num_tokens=5)},
    ],
    ids=lambda options: "+".join(options),
)
def test_the_names_of_transformers(llama, options, monkeypatch):
    made = []
    before = SpeculativeFastRunner.__init__
    monkeypatch.setattr(
        SpeculativeFastRunner, "__init__", lambda self, *a, **k: (made.append(a[1:]), before(self, *a, **k))[1]
    )
    options = {name: llama if value == "itself" else value for name, value in options.items()}
    ids = tiny_models.prompts(2)
    assert torch.equal(aegis.generate(llama, ids, **options, **GREEDY), llama.generate(ids, **GREEDY))
    draft, count = made[0]
    if "assistant_model" in options:
        assert draft is llama
        assert count == options.get("num_assistant_tokens", 4)
    elif "assistant_early_exit" in options:
        assert draft == EarlyExit(2)
    else:
        assert draft == PromptLookup(options.get("max_matching_ngram_size", 3))
        assert count in (3, 5)


def test_from_model_generate(llama):
    ids = tiny_models.prompts(2)
    got = llama.generate(ids, custom_generate=aegis.generate, draft=EarlyExit(1), **GREEDY)
    assert torch.equal(got, llama.generate(ids, **GREEDY))


def test_a_runner_is_used_again(llama):
    with_draft = SpeculativeFastRunner(llama, EarlyExit(1), 3, batch_size=2, max_cache_len=60, adaptive=True)
    for seed in (1, 2):
        ids, mask = tiny_models.padded(2, seed=seed)
        got = aegis.generate(llama, ids, attention_mask=mask, runner=with_draft, **GREEDY)
        assert torch.equal(got, llama.generate(ids, attention_mask=mask, **GREEDY))
        ids = tiny_models.prompts(1, seed=seed)
        got = aegis.generate(llama, ids, runner=with_draft, repetition_penalty=1.5, **GREEDY)
        assert torch.equal(got, llama.generate(ids, repetition_penalty=1.5, **GREEDY))
        sampled = aegis.generate(llama, ids, runner=with_draft, max_new_tokens=9, seed=4)
        assert torch.equal(sampled, aegis.generate(llama, ids, runner=with_draft, max_new_tokens=9, seed=4))


def test_callbacks_and_streamers_get_a_token_of_each_row_at_a_time(llama):
    ids = tiny_models.prompts(3)
    end = int(llama.generate(ids, **GREEDY)[1, 16])
    options = {"eos_token_id": end, **GREEDY}
    seen, want = [], []
    aegis.generate(llama, ids, callback=want.append, **options)
    got = aegis.generate(llama, ids, draft=llama, callback=seen.append, **options)
    assert torch.equal(torch.stack(seen, 1), got[:, 9:])
    assert torch.equal(torch.stack(seen), torch.stack(want))

    class Streamer:
        tokens, ended = [], False

        def put(self, value):
            self.tokens.append(value)

        def end(self):
            self.ended = True

    streamer = Streamer()
    got = aegis.generate(llama, ids[:1], draft=llama, streamer=streamer, **GREEDY)
    assert torch.equal(torch.cat([t.flatten() for t in streamer.tokens]), got[0])
    assert streamer.ended


def test_stop_sequences_and_criteria(llama):
    ids = tiny_models.prompts(2)
    free = llama.generate(ids, **GREEDY)
    options = {"stop_sequences": [free[0, 13:15].tolist(), free[1, 19:21].tolist()], **GREEDY}
    want = aegis.generate(llama, ids, **options)
    assert torch.equal(aegis.generate(llama, ids, draft=llama, num_speculative_tokens=6, **options), want)

    class Long(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] >= 20)

    for draft in (llama, EarlyExit(1), PromptLookup()):
        got = aegis.generate(llama, ids, draft=draft, stopping_criteria=[Long()], **GREEDY)
        assert torch.equal(got, free[:, :20])


def test_criteria_alone_end_no_row_before_the_others(llama):
    """As in model.generate, a row that a criterion has ended goes on until all have."""
    ids = tiny_models.prompts(2)

    class Odd(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return (input_ids[:, 0] == ids[0, 0]) | torch.tensor(input_ids.shape[1] >= 25)

    want = llama.generate(ids, stopping_criteria=[Odd()], **GREEDY)
    got = aegis.generate(llama, ids, draft=EarlyExit(1), stopping_criteria=[Odd()], **GREEDY)
    assert torch.equal(got, want)


def test_processors_see_the_row_they_are_asked_about(llama):
    ids = tiny_models.prompts(3)

    def allowed(row, text):
        return [row + 1, int(text[-1]) % 90 + 1, len(text)]

    options = {"prefix_allowed_tokens_fn": allowed, "no_repeat_ngram_size": 3, "min_new_tokens": 4, **GREEDY}
    want = llama.generate(ids, **options)
    for draft in (llama, PromptLookup()):
        assert torch.equal(aegis.generate(llama, ids, draft=draft, **options), want)


def test_bad_input(llama):
    ids = tiny_models.prompts(1)
    runner = SpeculativeFastRunner(llama, max_cache_len=20)
    for match, options in {
        "num_speculative_tokens: expected a draft": {"num_speculative_tokens": 3},
        "draft_sampler: expected a draft": {"draft_sampler": FusedLogitsSampler()},
        "draft: expected one of": {"draft": llama, "prompt_lookup_num_tokens": 3},
        "runner: expected none beside a draft": {"draft": llama, "runner": runner},
        "mode: expected 'auto', 'eager' or 'compiled' beside a draft": {"draft": llama, "mode": "cuda-graph"},
        "past_key_values: expected none beside a draft": {
            "draft": llama,
            "past_key_values": aegis.SlottedStaticCache(llama.config, 1, 40),
        },
        "max_cache_len: expected room for 32 tokens": {"runner": runner},
    }.items():
        with pytest.raises(ValueError, match=match):
            aegis.generate(llama, ids, **options, **GREEDY)
    for tree in ((2, 1), TokenTree([-1])):
        with pytest.raises(ValueError, match=r"overlap: expected False with a tree, .* got True"):
            SpeculativeFastRunner(llama, max_cache_len=20, tree=tree, overlap=True)


def test_processors_that_count_their_calls_are_refused(llama):
    """With a draft they gave other tokens; without, they give transformers' own."""
    ids, guided = tiny_models.prompts(2), GREEDY | {"guidance_scale": 1.5, "max_new_tokens": 6}
    assert torch.equal(aegis.generate(llama, ids, **guided), llama.generate(ids, **guided))
    keys = transformers.SynthIDTextWatermarkingConfig(keys=[3, 5], ngram_len=3)
    runner = SpeculativeFastRunner(llama, batch_size=2, max_cache_len=64)
    for options, kind in (
        (guided, "Guidance.* .guidance_scale"),
        (GREEDY | {"watermarking_config": keys}, "SynthID.* .watermarking_config"),
    ):
        for draft in ({"draft": PromptLookup()}, {"runner": runner}):
            with pytest.raises(ValueError, match=f"logits_processor: expected none that keeps a state.*{kind}"):
                aegis.generate(llama, ids, **draft, **options)
    assert torch.equal(aegis.generate(llama, ids, runner=runner, **GREEDY), llama.generate(ids, **GREEDY))


@pytest.mark.parametrize("options", [{}, {"tree": (2, 1)}, {"overlap": True}], ids=["line", "tree", "overlap"])
def test_processors_see_the_rows_of_the_batch_and_no_more(llama, options):
    """The runner has room for more."""
    seen = set()

    def processor(ids, scores):
        seen.add((len(ids), len(scores)))
        return scores

    ids = tiny_models.prompts(2)
    runner = SpeculativeFastRunner(llama, EarlyExit(2), 2, batch_size=4, max_cache_len=60, **options)
    got = aegis.generate(llama, ids, runner=runner, logits_processor=[processor], **GREEDY)
    assert torch.equal(got, llama.generate(ids, **GREEDY))
    assert seen == {(2, 2)}


# --- pieces ------------------------------------------------------------------------------------------------------


def test_lookup_prefers_long_and_recent_matches():
    find = PromptLookup(3).find
    text = np.array([1, 2, 3, 9, 8, 2, 3, 7, 6, 1, 2, 3])
    assert find(text, 2).tolist() == [9, 8], "three tokens match at the beginning, two later on"
    assert PromptLookup(2).find(text, 9).tolist() == [7, 6, 1, 2, 3]
    assert PromptLookup(1).find(np.array([5, 5, 5]), 4).tolist() == [5]
    assert find(np.array([1, 2, 3]), 4).tolist() == []
    assert find(np.array([1]), 4).tolist() == []


def test_first_layers_share_weights_and_leave_the_target_as_it_is(llama):
    ids = tiny_models.prompts(2)
    before = llama(ids).logits
    short = first_layers(llama, 1)
    assert short.model.layers[0] is llama.model.layers[0]
    assert short.lm_head is llama.lm_head
    assert (len(short.model.layers), short.config.num_hidden_layers) == (1, 1)
    assert (len(llama.model.layers), llama.config.num_hidden_layers) == (3, 3)
    assert not torch.allclose(short(ids).logits, before)
    assert torch.equal(llama(ids).logits, before)


def test_the_number_of_guesses_follows_what_is_kept():
    length = DraftLength(8, 0.1, adaptive=True)
    assert length.now == 8
    for _ in range(30):
        length.note([(length.now, 0), (length.now, 0)])
    assert length.now == 1
    for _ in range(30):
        length.note([(length.now, length.now)])
    assert length.now == 8
    length.note([(0, 0)])
    assert length.now == 8
    fixed = DraftLength(5, 0.1, adaptive=False)
    fixed.note([(5, 0)])
    assert fixed.now == 5
