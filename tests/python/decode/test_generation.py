"""aegis.generate gives what model.generate gives."""

import math

import aegis
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models  # noqa: E402

NEW = 24
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


@pytest.fixture(params=tiny_models.FAMILIES, scope="module")
def model(request):
    return tiny_models.make(request.param)


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_tokens_are_those_of_model_generate(model, rows):
    ids = tiny_models.prompts(rows)
    want = model.generate(ids, **GREEDY)
    assert torch.equal(aegis.generate(model, ids, **GREEDY), want)
    assert torch.equal(model.generate(ids, custom_generate=aegis.generate, **GREEDY), want)


def test_greedy_with_left_padding_case7(model):
    ids, mask = tiny_models.prompts(4), tiny_models.padding(4)
    want = model.generate(ids, attention_mask=mask, **GREEDY)
    got = aegis.generate(model, ids, attention_mask=mask, **GREEDY)
    assert torch.equal(got, want)
    alone = aegis.generate(model, ids[3:, 6:], **GREEDY)
    assert torch.equal(got[3:, 6:], alone), "a row's tokens depend on its mates or its padding"


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_prefill_in_chunks(model, chunk):
    ids, mask = tiny_models.prompts(2), tiny_models.padding(2)
    want = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(aegis.generate(model, ids, attention_mask=mask, prefill_chunk_size=chunk, **GREEDY), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_greedy_in_16_bits(dtype):
    """Sums are rounded elsewhere, so that near ties may fall otherwise: the first tokens must agree, and most."""
    model, ids = tiny_models.make("llama", dtype), tiny_models.prompts(4)
    want, got = model.generate(ids, **GREEDY), aegis.generate(model, ids, **GREEDY)
    assert torch.equal(got[:, :12], want[:, :12])


def test_compiled_step_gives_the_same_tokens(llama):
    """The second text, of other prompts, padding and length, by what was compiled for the first."""
    for seed, new in ((0, NEW), (1, 2 * NEW)):
        ids, mask = tiny_models.prompts(2, seed=seed), tiny_models.padding(2)
        options = {**GREEDY, "attention_mask": mask if seed == 0 else None, "max_new_tokens": new}
        want = llama.generate(ids, **options)
        assert torch.equal(aegis.generate(llama, ids, mode="compiled", **options), want)


@pytest.mark.parametrize(
    "option",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "eos_token_id": list(range(40))},
        {"suppress_tokens": list(range(0, 97, 2))},
        {"repetition_penalty": 1.7, "bad_words_ids": [[5], [7, 8]]},
    ],
    ids=lambda option: "+".join(option),
)
def test_processors_of_transformers_run(llama, option):
    ids = tiny_models.prompts(3)
    assert torch.equal(aegis.generate(llama, ids, **GREEDY, **option), llama.generate(ids, **GREEDY, **option))


def test_processors_of_the_user_run_before_the_sampler(llama):
    seen = []

    def only_five(input_ids, scores):
        seen.append(input_ids.shape[1])
        return torch.full_like(scores, -math.inf).index_fill_(1, torch.tensor([5]), 0.0)

    ids = tiny_models.prompts(2)
    processors = transformers.LogitsProcessorList([only_five])
    got = aegis.generate(llama, ids, logits_processor=processors, max_new_tokens=4, pad_token_id=0, top_k=3, seed=1)
    assert (got[:, 9:] == 5).all()
    assert seen == [9, 10, 11, 12]


# --- where it ends -----------------------------------------------------------------------------------------------


def test_rows_end_at_their_end_token_and_are_filled_up(llama):
    ids = tiny_models.prompts(4)
    free = llama.generate(ids, **GREEDY)
    ends = [int(free[0, 12]), int(free[2, 15])]
    want = llama.generate(ids, **GREEDY, eos_token_id=ends)
    got = aegis.generate(llama, ids, **GREEDY, eos_token_id=ends)
    assert torch.equal(got, want)
    assert (got[0, 13:] == 0).all()


def test_stops_early_when_all_rows_have_ended(llama):
    ids = tiny_models.prompts(1)
    end = int(llama.generate(ids, **GREEDY)[0, 14])
    got = aegis.generate(llama, ids, **GREEDY, eos_token_id=end)
    assert torch.equal(got, llama.generate(ids, **GREEDY, eos_token_id=end))
    assert got.shape[1] <= 15


def test_stop_sequences_end_a_row(llama):
    ids = tiny_models.prompts(2)
    free = aegis.generate(llama, ids, **GREEDY)
    sequence = free[1, 13:15].tolist()
    got = aegis.generate(llama, ids, **GREEDY, stop_sequences=[sequence])
    stop = next(n for n in range(11, 34) if free[1, n - 2 : n].tolist() == sequence)
    assert torch.equal(got[1, :stop], free[1, :stop])
    assert (got[1, stop:] == 0).all()


def test_criteria_of_the_user_are_called_as_model_generate_calls_them(llama):
    def long_enough(input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 14)

    ids = tiny_models.prompts(2)
    criteria = transformers.StoppingCriteriaList([long_enough])
    got = aegis.generate(llama, ids, **GREEDY, stopping_criteria=criteria)
    assert torch.equal(got, llama.generate(ids, **GREEDY, stopping_criteria=criteria))
    assert got.shape[1] == 14


# --- sampling ----------------------------------------------------------------------------------------------------


def test_sampled_tokens_follow_the_distribution_of_transformers(llama):
    """One step, 8192 equal rows: chi-square against the probabilities that transformers' own processors leave."""
    rows, options = 8192, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
    prompt = tiny_models.prompts(1)
    got = aegis.generate(llama, prompt.expand(rows, -1), max_new_tokens=1, seed=3, pad_token_id=0, **options)[:, -1]
    hf = transformers.generation.logits_process
    with torch.no_grad():
        scores = llama(prompt).logits[:, -1]
    for warper in (hf.TemperatureLogitsWarper(0.8), hf.TopKLogitsWarper(20), hf.TopPLogitsWarper(0.9)):
        scores = warper(prompt, scores)
    expected = torch.softmax(scores, -1)[0].double() * rows
    counts = torch.bincount(got, minlength=len(expected)).double()
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    chi2 = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    assert degrees > 2
    assert chi2 < degrees + 5 * math.sqrt(2 * degrees), f"chi-square {chi2:.1f} of {degrees} degrees"


def test_a_seed_gives_the_same_tokens_again(llama):
    ids, options = tiny_models.prompts(3), {"max_new_tokens": 12, "pad_token_id": 0, "top_k": 30}
    first = aegis.generate(llama, ids, seed=5, **options)
    assert torch.equal(aegis.generate(llama, ids, seed=5, **options), first)
    assert not torch.equal(aegis.generate(llama, ids, seed=6, **options), first)
    torch.manual_seed(1)
    unseeded = aegis.generate(llama, ids, do_sample=True, **options)
    torch.manual_seed(1)
    assert torch.equal(aegis.generate(llama, ids, do_sample=True, **options), unseeded)


def test_a_row_depends_on_its_own_seed_alone_case28(llama):
    ids, options = tiny_models.prompts(3), {"max_new_tokens": 12, "pad_token_id": 0, "top_k": 30}
    together = aegis.generate(llama, ids, seed=[7, 8, 9], **options)
    assert torch.equal(aegis.generate(llama, ids[1:2], seed=[8], **options), together[1:2])


# --- caches and runners ------------------------------------------------------------------------------------------


def test_goes_on_in_a_cache_case5(llama):
    cache = aegis.SlottedStaticCache.from_config(llama.config, batch_size=2, max_cache_len=64)
    ids = tiny_models.prompts(2)
    first = aegis.generate(llama, ids, past_key_values=cache, **GREEDY)
    assert cache.get_seq_length() == first.shape[1] - 1
    longer = torch.cat([first, tiny_models.prompts(2, 3, seed=2)], 1)
    got = llama.generate(
        longer, past_key_values=cache, custom_generate=aegis.generate, max_new_tokens=6, do_sample=False, pad_token_id=0
    )
    assert torch.equal(got, llama.generate(longer, max_new_tokens=6, do_sample=False, pad_token_id=0))
    with pytest.raises(ValueError, match=r"input_ids: expected more tokens than the cache holds, which is 41, got 9"):
        aegis.generate(llama, ids, past_key_values=cache, **GREEDY)
    cache.reset()
    assert torch.equal(aegis.generate(llama, ids, past_key_values=cache, **GREEDY), first)


def test_cache_too_small_is_an_error_and_stays_as_it_is_case8(llama):
    cache = aegis.SlottedStaticCache.from_config(llama.config, batch_size=1, max_cache_len=20)
    with pytest.raises(ValueError, match=r"max_cache_len: expected room for 32 tokens .*, got 20"):
        aegis.generate(llama, tiny_models.prompts(1), past_key_values=cache, **GREEDY)
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_runner_serves_again_and_its_memory_stays_case2(llama, mode):
    runner = aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=64, mode=mode)
    addresses = set()
    for length in (9, 5, 12):
        ids = tiny_models.prompts(2, length)
        want = llama.generate(ids, **GREEDY)
        assert torch.equal(aegis.generate(llama, ids, runner=runner, **GREEDY), want)
        addresses.add(tuple(layer.keys.data_ptr() for layer in runner.cache.layers))
    assert len(addresses) == 1


def test_model_is_left_as_it_was(llama):
    classes = [type(module) for module in llama.modules()]
    attention = llama.config._attn_implementation
    with pytest.raises(RuntimeError, match="stop here"):
        aegis.generate(llama, tiny_models.prompts(1), callback=_raise, **GREEDY)
    assert [type(module) for module in llama.modules()] == classes
    assert llama.config._attn_implementation == attention
    assert torch.is_grad_enabled()


def _raise(tokens):
    raise RuntimeError("stop here")


# --- watching ----------------------------------------------------------------------------------------------------


class Streamer:
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, tokens):
        self.tokens.append(tokens.tolist())

    def end(self):
        self.ended = True


def test_streamer_and_callback_see_each_token(llama):
    ids = tiny_models.prompts(1)
    streamer, theirs, seen = Streamer(), Streamer(), []
    got = aegis.generate(llama, ids, streamer=streamer, callback=lambda tokens: seen.append(tokens.item()), **GREEDY)
    llama.generate(ids, streamer=theirs, **GREEDY)
    assert seen == got[0, 9:].tolist()
    assert streamer.tokens == theirs.tokens
    assert streamer.ended


def test_progress_shows_a_bar(llama, capsys):
    aegis.generate(llama, tiny_models.prompts(1), progress=True, **GREEDY)
    assert f"{NEW}/{NEW}" in capsys.readouterr().err


def test_bench_generate_compares_and_prints(llama, capsys):
    figures = aegis.bench_generate(llama, tiny_models.prompts(2), max_new_tokens=5, turns=1)
    assert figures.equal
    assert figures.ratio == figures.ours[0] / figures.theirs[0]
    assert capsys.readouterr().out == f"{figures}\n"
    assert "same tokens, 2 x 5 tokens" in str(figures)
    with pytest.raises(ValueError, match="max_new_tokens: expected at least 2, got 1"):
        aegis.bench_generate(llama, tiny_models.prompts(1), max_new_tokens=1)


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams: expected 1, got 2"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate: expected False"),
        ({"use_cache": False}, "use_cache: expected True"),
        ({"mode": "fast"}, "mode: expected 'auto', 'eager', 'compiled' or 'cuda-graph', got 'fast'"),
        ({"mode": "cuda-graph"}, "mode: expected 'eager' or 'compiled' for a model on cpu"),
        ({"stop_sequences": [[]]}, "stop_sequences: expected sequences of at least 1 token"),
        ({"past_key_values": "full"}, "past_key_values: expected a SlottedStaticCache or an empty cache"),
        ({"attention_mask": "holes"}, "attention_mask: expected padding on the left"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input(llama, options, message):
    ids = tiny_models.prompts(1)
    if options.get("past_key_values") == "full":
        options = {"past_key_values": transformers.DynamicCache(config=llama.config)}
        llama(ids[:, :3], **options, use_cache=True)
    if options.get("attention_mask") == "holes":
        options = {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 1]])}
    with pytest.raises(ValueError, match=message):
        aegis.generate(llama, ids, **{**GREEDY, **options})


def test_bad_models_and_runners(llama):
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(ValueError, match="model: expected a decoder-only model, got the encoder-decoder T5"):
        aegis.generate(t5, tiny_models.prompts(1))
    with pytest.raises(ValueError, match="model: expected a causal language model of transformers, got Linear"):
        aegis.generate(torch.nn.Linear(2, 2), tiny_models.prompts(1))
    other = aegis.CUDAGraphFastRunner(tiny_models.make("opt"), max_cache_len=32)
    with pytest.raises(ValueError, match="runner: expected one made for this model"):
        aegis.generate(llama, tiny_models.prompts(1), runner=other, **GREEDY)
