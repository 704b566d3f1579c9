"""FusedLogitsSampler: its arguments, its state, penalties, and Hugging Face's classes as the measure."""

import math
import subprocess
import sys

import aegis
import pytest
import torch
from aegis.decode.penalties import penalize_
from hypothesis import given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")
Sampler = aegis.FusedLogitsSampler


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn(sampler, logits: torch.Tensor, times: int, *arguments) -> torch.Tensor:
    """(times, batch)"""
    return torch.stack([sampler(logits, *arguments).clone() for _ in range(times)])


def test_importing_aegis_does_not_import_transformers():
    code = "import sys, aegis; aegis.FusedLogitsSampler(top_k=3); assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_greedy():
    logits = random(4, 300)
    for options in ({"do_sample": False}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}, {"temperature": -2}):
        assert torch.equal(Sampler(**options)(logits), logits.argmax(1))


@pytest.mark.parametrize("keep_ties", [False, True])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_filtered_sets_are_those_of_hugging_face(keep_ties, data):
    """Each draw lies in the set that transformers' warpers leave, has their probability, and with many draws the set is
    filled. Ties at the k-th place are kept by them."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    width = data.draw(st.integers(2, 60))
    logits = 2 * random(1, width, seed=data.draw(st.integers(0, 10_000)))
    if keep_ties:
        logits = (2 * logits).round() / 2
    temperature = data.draw(st.sampled_from([0.5, 1.0, 2.0]))
    top_k = data.draw(st.sampled_from([None, 1, 2, 5, 59, 100]))
    top_p = data.draw(st.sampled_from([None, 0.31, 0.87, 0.99])) if not keep_ties else None
    min_p = data.draw(st.sampled_from([None, 0.013, 0.21]))
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p is not None:
        scores = MinPLogitsWarper(min_p)(None, scores)
    sampler = Sampler(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, keep_ties=keep_ties, seed=range(400)
    )
    want = scores.log_softmax(1)[0]
    tokens, logprobs = sampler(logits.expand(400, width), return_logprobs=True)
    torch.testing.assert_close(logprobs, want[tokens], rtol=1e-4, atol=1e-4)
    likely = (want > math.log(0.05)).nonzero().flatten().tolist()
    assert set(likely) <= set(tokens.tolist())


def test_from_generation_config():
    config = transformers.GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.02,
        repetition_penalty=1.2,
        sequence_bias={(3,): 2.0},
    )
    sampler = Sampler.from_generation_config(config, seed=5)
    same = Sampler(
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.02,
        repetition_penalty=1.2,
        logit_bias={3: 2.0},
        seed=5,
        keep_ties=True,
    )
    logits, ids = random(3, 40), torch.arange(12).view(3, 4)
    assert torch.equal(drawn(sampler, logits, 20, ids), drawn(same, logits, 20, ids))
    greedy = Sampler.from_generation_config(transformers.GenerationConfig(top_k=5))
    assert torch.equal(greedy(logits), logits.argmax(1))
    unset = Sampler.from_generation_config(transformers.GenerationConfig(do_sample=True), seed=1)
    assert torch.equal(drawn(unset, random(2, 99), 9), drawn(Sampler(top_k=50, seed=1), random(2, 99), 9))
    override = Sampler.from_generation_config(config, seed=1, do_sample=False, repetition_penalty=1, logit_bias=None)
    assert torch.equal(override(logits), logits.argmax(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True, "typical_p": 0.9}, "typical_p: this filter is not one of the sampler's, got 0.9"),
        ({"do_sample": True, "epsilon_cutoff": 0.1}, "epsilon_cutoff: .*got 0.1"),
        ({"num_beams": 4}, "num_beams: expected 1, got 4"),
        ({"sequence_bias": {(1, 2): 3.0}}, "sequence_bias: expected single tokens"),
    ],
)
def test_generation_configs_that_it_cannot_follow(options, message):
    with pytest.raises(ValueError, match=message):
        Sampler.from_generation_config(transformers.GenerationConfig(**options))


def test_rows_have_settings_of_their_own_case20():
    logits = random(4, 200)
    sampler = Sampler(temperature=[0, 1, -1, 1], top_k=torch.tensor([50, 1, 3, 2]), seed=3)
    tokens = drawn(sampler, logits, 60)
    assert (tokens[:, :3] == logits.argmax(1)[:3]).all()
    assert set(tokens[:, 3].tolist()) == set(logits[3].topk(2).indices.tolist())


def test_equal_rows_draw_independently_case12():
    logits = torch.zeros(5, 10_000)
    for seed in (None, 4):
        sampler = Sampler(seed=seed)
        tokens = drawn(sampler, logits, 8)
        assert tokens.unique().numel() >= 38


def test_a_row_depends_on_its_seed_alone_case28():
    logits = random(1, 500)
    want = drawn(Sampler(seed=[11]), logits, 10)[:, 0]
    crowd = torch.cat([random(3, 500, seed=1), logits, random(2, 500, seed=2)])
    assert torch.equal(drawn(Sampler(seed=[1, 2, 3, 11, 5, 11]), crowd, 10)[:, 3], want)
    assert torch.equal(drawn(Sampler(seed=torch.tensor([11, 4])), logits.expand(2, 500), 10)[:, 0], want)


def test_seeds_and_reset():
    logits = random(2, 1000)
    sampler = Sampler(seed=9)
    first = drawn(sampler, logits, 5)
    assert sampler.state.tolist() == [[9, 0, 5, 0], [9, 1, 5, 0]]
    address = sampler.state.data_ptr()
    sampler.reset()
    assert torch.equal(drawn(sampler, logits, 5), first)
    sampler.reset(10)
    assert not torch.equal(drawn(sampler, logits, 5), first)
    sampler.reset([9, 8])
    assert sampler.state.tolist() == [[9, 0, 0, 0], [8, 0, 0, 0]]
    assert sampler.state.data_ptr() == address
    torch.manual_seed(3)
    unseeded = drawn(Sampler(), logits, 5)
    assert not torch.equal(drawn(Sampler(), logits, 5), unseeded)
    torch.manual_seed(3)
    assert torch.equal(drawn(Sampler(), logits, 5), unseeded)
    huge = Sampler(seed=2**64 + 5)
    assert torch.equal(drawn(huge, logits, 5), drawn(Sampler(seed=5), logits, 5))


def test_one_row_can_begin_anew():
    logits = random(3, 1000)
    sampler = Sampler(seed=[1, 2, 3])
    first = drawn(sampler, logits, 4)
    sampler.state[1, 2] = 0
    again = drawn(sampler, logits, 4)
    assert torch.equal(again[:, 1], first[:, 1])
    assert not torch.equal(again[:, 0], first[:, 0])


def test_batches_of_another_size():
    logits = random(4, 1000)
    whole = drawn(Sampler(seed=2), logits, 6)
    sampler = Sampler(seed=2)
    assert torch.equal(drawn(sampler, logits[:2], 3), whole[:3, :2])
    assert torch.equal(drawn(sampler, logits[:1], 3)[:, 0], whole[3:, 0])
    assert torch.equal(drawn(sampler, logits, 3)[:, 2:], whole[:3, 2:])  # rows that are new begin at 0
    assert sampler.state[:, 2].tolist() == [9, 6, 3, 3]


def test_results_are_reused_and_out_is_not():
    logits = random(3, 50)
    sampler = Sampler(seed=1)
    one = sampler(logits)
    held, kept = one.clone(), torch.empty(3, dtype=torch.int64)
    assert sampler(logits, out=kept) is kept
    assert torch.equal(one, held)
    two, valid, logprobs = sampler(logits, return_valid=True, return_logprobs=True)
    assert two is one
    assert valid.all()
    torch.testing.assert_close(logprobs, logits.log_softmax(1).gather(1, two[:, None])[:, 0])
    assert len(sampler(logits, return_valid=True)) == 2


def test_logits_are_left_as_they_are():
    logits, ids = random(2, 50), torch.randint(0, 50, (2, 9))
    before = logits.clone()
    Sampler(repetition_penalty=2, presence_penalty=1, logit_bias={1: 3}, seed=1)(logits, ids)
    assert torch.equal(logits, before)


def test_strict_raises_for_a_row_that_is_not_valid_case14():
    logits = random(3, 40)
    sampler = Sampler(strict=True, seed=1)
    sampler(logits)
    logits[1, 7] = math.nan
    with pytest.raises(ValueError, match="logits: row 1 has a NaN, or nothing above -inf"):
        sampler(logits)
    logits[1] = -math.inf
    with pytest.raises(ValueError, match="row 1"):
        sampler(logits)
    tokens, valid = Sampler(seed=1)(logits, return_valid=True)
    assert valid.tolist() == [True, False, True]
    assert 0 <= tokens[1] < 40


def dense_penalties(logits, ids, prompt_length, repetition, frequency, presence):
    """One token after another."""
    scores = logits.double().clone()
    for row in range(len(scores)):
        every = [t for t in ids[row].tolist() if 0 <= t < scores.shape[1]]
        generated = [t for t in ids[row, prompt_length:].tolist() if 0 <= t < scores.shape[1]]
        for token in set(every):
            score = scores[row, token]
            scores[row, token] = score * repetition if score < 0 else score / repetition
        for token in set(generated):
            scores[row, token] -= frequency * generated.count(token) + presence
    return scores


@settings(deadline=None)
@given(data=st.data())
def test_penalties_touch_what_was_seen_and_nothing_else(data):
    width, rows, length = (data.draw(st.integers(*limits)) for limits in ((1, 20), (1, 3), (0, 15)))
    ids = torch.tensor(
        data.draw(st.lists(st.integers(-2, width + 2), min_size=rows * length, max_size=rows * length)),
        dtype=torch.int64,
    ).view(rows, length)
    prompt_length = data.draw(st.integers(0, length))
    penalties = [data.draw(st.sampled_from(values)) for values in ([1.0, 0.5, 1.3], [0.0, 0.2, -1.0], [0.0, 0.7])]
    logits = 3 * random(rows, width, seed=data.draw(st.integers(0, 99)))
    scores = torch.empty(rows, width + 1)
    scores[:, :-1] = logits
    penalize_(scores, ids, prompt_length, torch.tensor([penalties]))
    want = dense_penalties(logits, ids, prompt_length, *penalties)
    torch.testing.assert_close(scores[:, :-1].double(), want, rtol=1e-5, atol=1e-5)


def test_repetition_penalty_is_that_of_hugging_face():
    logits, ids = random(3, 60), torch.randint(0, 60, (3, 25))
    want = transformers.RepetitionPenaltyLogitsProcessor(1.4)(ids, logits.clone())
    scores = torch.empty(3, 61)
    scores[:, :-1] = logits
    penalize_(scores, ids, 25, torch.tensor([[1.4, 0.3, 0.2]]))
    torch.testing.assert_close(scores[:, :-1], want)
    greedy = Sampler(do_sample=False, repetition_penalty=1.4)
    assert torch.equal(greedy(logits, ids), want.argmax(1))


def test_presence_and_frequency_count_what_was_generated():
    """The prompt is what the first call after a reset was given."""
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    sampler = Sampler(do_sample=False, frequency_penalty=0.6)
    prompt = torch.tensor([[0, 0, 0, 0]])
    assert sampler(logits, prompt).item() == 0
    assert sampler(logits, torch.tensor([[0, 0, 0, 0, 0]])).item() == 0
    assert sampler(logits, torch.tensor([[0, 0, 0, 0, 0, 0]])).item() == 1
    sampler.reset()
    assert sampler(logits, torch.tensor([[0, 0, 0, 0, 0, 0]])).item() == 0
    sampler.prompt_length = 4
    assert sampler(logits, torch.tensor([[0, 0, 0, 0, 0, 0]])).item() == 1
    assert Sampler(do_sample=False, presence_penalty=[0.5, 1.5])(logits.expand(2, 3), prompt.expand(2, 4)).tolist() == [
        0,
        0,
    ]


def test_logit_bias():
    logits = random(2, 30)
    sampler = Sampler(do_sample=False, logit_bias={7: 100.0, 9: -100})
    assert sampler(logits).tolist() == [7, 7]
    assert sampler(logits.bfloat16()).tolist() == [7, 7]
    with pytest.raises(ValueError, match="logit_bias: expected tokens 0 to 4, got 7"):
        sampler(random(2, 5))


def test_processors_run_before_it():
    logits, ids = random(3, 40), torch.randint(0, 40, (3, 6))
    processors = transformers.LogitsProcessorList(
        [
            transformers.NoRepeatNGramLogitsProcessor(1),
            lambda input_ids, scores: scores.index_fill_(1, torch.arange(20), -math.inf),
        ]
    )
    want = processors(ids, logits.clone()).argmax(1)
    before = logits.clone()
    sampler = Sampler(do_sample=False).after(processors)
    assert torch.equal(sampler(logits, ids), want)
    assert torch.equal(logits, before)
    tokens, valid = sampler(logits, ids, return_valid=True)
    assert torch.equal(tokens, want)
    assert valid.all()


def test_as_the_last_processor_of_generate():
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[1, 2, 3]])
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    sampler = Sampler(top_k=20, seed=4)
    one = model.generate(prompt, logits_processor=[sampler.as_processor()], **options)
    assert sampler.state[0, 2] == 12
    sampler.reset()
    assert torch.equal(model.generate(prompt, logits_processor=[sampler.as_processor()], **options), one)
    greedy = model.generate(prompt, logits_processor=[Sampler(do_sample=False).as_processor()], **options)
    assert torch.equal(greedy, model.generate(prompt, **options))
    assert not torch.equal(one, greedy)


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_k": 5, "repetition_penalty": 1.2, "logit_bias": {3: 1.0}}])
def test_compiled(options):
    logits, ids = random(2, 60), torch.randint(0, 60, (2, 7))
    ours, theirs = Sampler(seed=3, **options), Sampler(seed=3, **options)
    ours.prepare(2, 60, "cpu")
    step = torch.compile(lambda logits: ours(logits * 2, ids) + 1, fullgraph=True)
    for _ in range(4):
        assert torch.equal(step(logits), theirs(logits * 2, ids) + 1)
    assert torch.equal(ours.state, theirs.state)


def test_nothing_new_after_the_first_call():
    sampler, logits = Sampler(top_k=5, top_p=0.9, seed=1), random(2, 100)
    tokens = sampler(logits)
    held = [t.data_ptr() for t in vars(sampler).values() if isinstance(t, torch.Tensor)]
    for _ in range(5):
        assert sampler(logits) is tokens
    assert [t.data_ptr() for t in vars(sampler).values() if isinstance(t, torch.Tensor)] == held


def test_made_in_inference_mode_and_used_outside():
    logits = random(2, 50)
    sampler = Sampler(seed=1, repetition_penalty=1.1)
    with torch.inference_mode():
        first = sampler(logits, torch.zeros(2, 1, dtype=torch.int64)).clone()
    sampler.reset()
    assert torch.equal(sampler(logits.requires_grad_(), torch.zeros(2, 1, dtype=torch.int64)), first)
