"""aegis.generate beside model.generate where its arguments are unusual: the same tokens, or an error that names one."""

import copy

import aegis
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


def assert_same(model, ids, **options):
    """As a function and as the hook of model.generate."""
    options = {**GREEDY, **options}
    want = model.generate(ids, **options)
    assert torch.equal(aegis.generate(model, ids, **options), want)
    assert torch.equal(model.generate(ids, custom_generate=aegis.generate, **options), want)
    return want


def ends_at(length):
    return lambda input_ids, scores, **kwargs: input_ids.shape[1] >= length


@pytest.mark.parametrize(
    "criterion",
    [
        transformers.MaxLengthCriteria(12),
        transformers.MaxLengthCriteria(30),  # takes the place of max_new_tokens
        transformers.MaxLengthCriteria(5),  # shorter than the prompt: one token comes before it is asked
        ends_at(12),
        lambda ids, scores, **kwargs: torch.tensor(ids.shape[1] >= 12),
        lambda ids, scores, **kwargs: torch.tensor([ids.shape[1] >= 12]),
        lambda ids, scores, **kwargs: torch.tensor([int(ids.shape[1] >= 12)] * len(ids)),
        lambda ids, scores, **kwargs: torch.tensor([ids.shape[1] >= 11, ids.shape[1] >= 13]),
    ],
    ids=["12", "30", "5", "bool", "0-d", "1 element", "ints", "rows"],
)
@pytest.mark.parametrize("end", [None, 96])
def test_criteria(llama, criterion, end):
    """Without an end token, rows that a criterion has ended go on until all have, as in model.generate."""
    criteria = transformers.StoppingCriteriaList([criterion])
    assert_same(llama, tiny_models.prompts(2), stopping_criteria=criteria, eos_token_id=end)


def test_criteria_that_end_all_rows_at_once_need_no_padding_token(llama):
    assert_same(llama, tiny_models.prompts(2), max_time=100.0, pad_token_id=None)


@pytest.mark.parametrize(
    "processor",
    [
        lambda ids, scores: scores.mul_(-1),
        lambda ids, scores: -scores.double(),
        lambda ids, scores: -scores.t().clone().t(),
    ],
    ids=["in place", "float64", "transposed"],
)
def test_processors_may_return_what_they_like(llama, processor):
    assert_same(llama, tiny_models.prompts(2), logits_processor=transformers.LogitsProcessorList([processor]))


def test_numbers_and_ids_of_other_types(llama):
    ids = tiny_models.prompts(2)
    assert_same(llama, ids.int())
    assert_same(llama, ids, max_new_tokens=3.5)
    assert_same(llama, ids, attention_mask=tiny_models.padding(2).bool())
    assert torch.equal(aegis.generate(llama, inputs=ids, **GREEDY), llama.generate(ids, **GREEDY))


def test_all_rows_end_at_once(llama):
    """The result is memory of its own then, not a view of all that could have come."""
    got = assert_same(llama, tiny_models.prompts(2), eos_token_id=list(range(97)))
    assert got.shape == (2, 10)
    assert aegis.generate(llama, tiny_models.prompts(2), **GREEDY, eos_token_id=list(range(97))).is_contiguous()


def test_generation_config(llama):
    config = transformers.GenerationConfig(max_new_tokens=4, eos_token_id=5, pad_token_id=0, repetition_penalty=1.3)
    ids = tiny_models.prompts(2)
    want = llama.generate(ids, generation_config=config)
    assert torch.equal(aegis.generate(llama, ids, generation_config=config), want)


@pytest.mark.parametrize("kind", ["train", "float64", "tied", "hooked", "pruned", "weight_norm", "lora"])
def test_unusual_models(kind):
    model = tiny_models.make("llama")
    layer = model.model.layers[0].mlp.up_proj
    if kind == "train":
        model.train()
    elif kind == "float64":
        model.double()
    elif kind == "tied":
        model.lm_head.weight = model.model.embed_tokens.weight
    elif kind == "hooked":
        layer.register_forward_hook(lambda module, args, output: output * 0.5)
    elif kind == "pruned":
        prune.l1_unstructured(layer, "weight", 0.5)
    elif kind == "weight_norm":
        torch.nn.utils.parametrizations.weight_norm(layer)
    else:
        model.model.layers[0].mlp.up_proj = _Lora(layer)
    assert_same(model, tiny_models.prompts(2))


def test_checkpointed_gradients():
    """transformers 4 keeps no cache then, even where no gradient is asked for."""
    model, ids = tiny_models.make("llama").train(), tiny_models.prompts(2)
    model.gradient_checkpointing_enable()
    if int(transformers.__version__.split(".")[0]) >= 5:
        assert_same(model, ids)
        return
    with pytest.raises(ValueError, match="model: expected forward to add 9 tokens to the cache, but it did not"):
        aegis.generate(model, ids, **GREEDY)
    model.eval()
    assert_same(model, ids)


class _Lora(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_cache_with_keys_and_values_of_other_shapes_than_the_config_tells():
    sizes = {**tiny_models.SIZES, "num_key_value_heads": 4, "intermediate_size": 32}
    config = transformers.DeepseekV3Config(
        **sizes,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=6,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    assert_same(model, tiny_models.prompts(2), attention_mask=tiny_models.padding(2), eos_token_id=None)


def test_stop_strings(llama):
    """model.generate hands its tokenizer on to its own loop only."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[: tiny_models.VOCABULARY]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tiny_models.prompts(1)
    free = llama.generate(ids, **GREEDY)[0, 9:].tolist()
    stop = next(letters[token] for token in free if letters[token].isalpha())
    options = {**GREEDY, "stop_strings": [stop], "tokenizer": tokenizer}
    want = llama.generate(ids, **options)
    assert want.shape[1] == 9 + free.index(letters.index(stop)) + 1
    assert torch.equal(aegis.generate(llama, ids, **options), want)


class _Streamer:
    def __init__(self):
        self.shapes = []

    def put(self, tokens):
        self.shapes.append(tuple(tokens.shape))

    def end(self):
        self.shapes.append("end")


def test_streamer_gets_the_prompt_as_often_as_it_is_continued(llama):
    options = {"max_new_tokens": 2, "do_sample": True, "num_return_sequences": 3, "pad_token_id": 0}
    streamers = _Streamer(), _Streamer()
    llama.generate(tiny_models.prompts(1), streamer=streamers[0], **options)
    aegis.generate(llama, tiny_models.prompts(1), streamer=streamers[1], **options)
    assert streamers[0].shapes == streamers[1].shapes == [(3, 9), (3,), (3,), "end"]


def test_streamer_gets_nothing_from_a_call_that_is_refused(llama):
    streamer = _Streamer()
    with pytest.raises(ValueError, match="return_dict_in_generate: expected False"):
        aegis.generate(llama, tiny_models.prompts(1), streamer=streamer, return_dict_in_generate=True, **GREEDY)
    assert streamer.shapes == []


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        ([[1, 2]], "list"),
        (torch.ones(3, dtype=torch.int64), r"torch.int64 of shape \[3\]"),
        (torch.ones(1, 1, 3, dtype=torch.int64), r"torch.int64 of shape \[1, 1, 3\]"),
        (torch.ones(1, 0, dtype=torch.int64), r"torch.int64 of shape \[1, 0\]"),
        (torch.ones(0, 3, dtype=torch.int64), r"torch.int64 of shape \[0, 3\]"),
        (torch.ones(1, 3), r"torch.float32 of shape \[1, 3\]"),
    ],
)
def test_bad_ids(llama, ids, got):
    with pytest.raises(ValueError, match=rf"input_ids: expected an int64 tensor \(batch, length\) .*, got {got}"):
        aegis.generate(llama, ids, **GREEDY)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stop_sequences": [5, 6]}, ValueError, r"stop_sequences: expected sequences of tokens, got \[5, 6\]"),
        ({"stop_sequences": "ab"}, ValueError, "stop_sequences: expected sequences of tokens, got 'ab'"),
        ({"callback": 5}, TypeError, "callback: expected a function, got 5"),
        ({"runner": 5}, ValueError, "runner: expected a CUDAGraphFastRunner or a SpeculativeFastRunner, got 5"),
        ({"assistant_model": "self"}, ValueError, "draft: expected a model, PromptLookup or EarlyExit, got str"),
        ({"prompt_lookup_num_tokens": 0}, ValueError, "num_speculative_tokens: expected at least 1, got 0"),
        ({"penalty_alpha": 0.6, "top_k": 4}, ValueError, "generation_config: expected greedy .* contrastive_search"),
        ({"attention_mask": torch.ones(1, 8)}, ValueError, r"attention_mask: expected shape \[1, 9\], .* got \[1, 8\]"),
        ({"prefill_chunk_size": "4"}, ValueError, "chunk: expected at least 1, got '4'"),
        ({"seed": [1.5]}, TypeError, r"seed: expected an int, or one for each row, got \[1.5\]"),
        ({"stopping_criteria": [lambda ids, scores: None]}, ValueError, "stopping_criteria: expected .* got None"),
        ({"stopping_criteria": [lambda ids, scores: torch.ones(3)]}, ValueError, r"stopping_criteria: .* shape \[3\]"),
        ({"logits_processor": [lambda ids, scores: None]}, ValueError, "processors: expected .* to return scores"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options(llama, options, error, message):
    with pytest.raises(error, match=message):
        aegis.generate(llama, tiny_models.prompts(1), **{**GREEDY, **options})
    assert llama.config._attn_implementation == "sdpa"


def test_models_that_are_refused(llama):
    meta = copy.deepcopy(llama).to("meta")
    with pytest.raises(ValueError, match="model: expected one on a CPU or on CUDA, got one on meta"):
        aegis.generate(meta, tiny_models.prompts(1), **GREEDY)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast: expected none"):
        aegis.generate(llama, tiny_models.prompts(1), **GREEDY)
    config = transformers.Llama4TextConfig(
        **tiny_models.SIZES, head_dim=8, attention_chunk_size=6, intermediate_size_mlp=32, num_local_experts=2
    )
    with pytest.raises(ValueError, match="model: expected full or sliding attention, got chunked"):
        aegis.generate(transformers.Llama4ForCausalLM(config), tiny_models.prompts(1), **GREEDY)


def test_caches_that_do_not_fit(llama):
    def cache_of(config, rows=2):
        return aegis.SlottedStaticCache.from_config(config, batch_size=rows, max_cache_len=64)

    ids, cache = tiny_models.prompts(2, 20), cache_of(llama.config)
    aegis.generate(llama, tiny_models.prompts(1), past_key_values=cache, **GREEDY)
    with pytest.raises(ValueError, match="cache: expected rows of one length, got 0 to 16"):
        aegis.generate(llama, ids, past_key_values=cache, **GREEDY)
    assert cache.row_lengths == [16, 0]
    with pytest.raises(ValueError, match=r"cache: expected one made from model.config itself"):
        aegis.generate(llama, ids, past_key_values=cache_of(copy.deepcopy(llama.config)), **GREEDY)
    runner = aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=64)
    with pytest.raises(ValueError, match="past_key_values: expected none beside a runner"):
        aegis.generate(llama, ids, runner=runner, past_key_values=cache, **GREEDY)
    with runner:
        first = runner.prefill(ids).clone()
        with pytest.raises(RuntimeError, match="expected to be entered once at a time"):
            aegis.generate(llama, ids, runner=runner, **GREEDY)
        assert torch.equal(torch.stack([first, runner.step()], 1), llama.generate(ids, **GREEDY)[:, 20:22])


def test_selected_rows_of_a_cache(llama):
    cache = aegis.SlottedStaticCache.from_config(llama.config, batch_size=4, max_cache_len=64)
    for _ in range(3):
        cache.acquire_row()
    ids = tiny_models.prompts(2)
    with cache.rows([2, 0]):
        got = aegis.generate(llama, ids, past_key_values=cache, **GREEDY)
    assert torch.equal(got, llama.generate(ids, **GREEDY))
    assert cache.row_lengths == [16, 0, 16, 0]


def test_embeddings_are_refused_by_their_name():
    model = tiny_models.make("llama")
    embeddings = model.get_input_embeddings()(tiny_models.prompts(1))
    with pytest.raises(ValueError, match="inputs_embeds: expected none, but token ids as input_ids"):
        aegis.generate(model, inputs_embeds=embeddings, max_new_tokens=2)
