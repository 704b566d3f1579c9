"""attn_implementation="aegis" against SDPA and eager attention, in tiny Hugging Face models and piece by piece."""

import functools
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="4.57")
from aegis.decode import register_attention  # noqa: E402
from aegis.decode.attention import attend  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

VOCABULARY = 200
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
SLIDING = SHAPE | {"head_dim": 16, "sliding_window": 8}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY, "eos_token_id": None, "bos_token_id": None}
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", SHAPE),
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SHAPE),
    "Mistral": ("MistralForCausalLM", "MistralConfig", SHAPE | {"sliding_window": 8}),
    "Gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        SLIDING | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    ),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", SLIDING | {"query_pre_attn_scalar": 16}),
    "Llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        SHAPE | {"head_dim": 16, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 96},
    ),
    "GptOss": ("GptOssForCausalLM", "GptOssConfig", SLIDING | {"num_local_experts": 2, "num_experts_per_tok": 1}),
}
# SDPA leaves out score capping (or refuses it) and sinks.
EAGER = {"Gemma2", "GptOss"}

register_attention()


@functools.cache
def model_of(name: str):
    model_class, config_class, shape = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**shape)
    model = getattr(transformers, model_class)(config).eval()
    for parameter in model.parameters():  # the usual 0.02 makes attention nearly uniform
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def reference(name: str) -> str:
    return "eager" if name in EAGER else "sdpa"


def prompts(batch: int, padded: bool, length: int = 13):
    ids = torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row in range(batch if padded else 0):
        mask[row, : 3 * row] = 0
        ids[row, : 3 * row] = 0
    return ids, mask


def generate(model, implementation: str, ids, mask, **keywords):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        result = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=keywords.pop("tokens", 20),
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
            **keywords,
        )
    return result.sequences, torch.stack(result.logits, 1)


class Calls(TorchDispatchMode):
    """Counts what reaches torch's dispatcher."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))

    @property
    def decodes(self) -> int:
        return self.counts.get("aegis::decode_attention", 0)


@pytest.mark.parametrize(("batch", "padded"), [(1, False), (4, False), (4, True)], ids=["1", "4", "4 padded"])
@pytest.mark.parametrize("name", MODELS)
def test_generate(name, batch, padded):
    """The same tokens as SDPA's or eager attention's, and logits that differ by rounding alone."""
    model, (ids, mask) = model_of(name), prompts(batch, padded)
    want = generate(model, reference(name), ids, mask)
    with Calls() as calls:
        got = generate(model, "aegis", ids, mask)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)
    layers = len(model.model.layers) if hasattr(model, "model") else len(model.transformer.h)
    assert calls.decodes == (0 if name == "GptOss" else 19 * layers)


@pytest.mark.parametrize("name", ["Llama", "Gemma3"])
def test_a_row_does_not_depend_on_its_batch_mates_case7(name):
    model, (ids, mask) = model_of(name), prompts(4, True)
    tokens, logits = generate(model, "aegis", ids, mask)
    for row in range(4):
        start = 3 * row
        alone = generate(model, "aegis", ids[row : row + 1, start:], mask[row : row + 1, start:])
        assert torch.equal(alone[0][0], tokens[row, start:])
        torch.testing.assert_close(alone[1][0], logits[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Gemma2", "Gemma3"])
@pytest.mark.parametrize("padded", [False, True])
def test_static_cache(name, padded):
    """transformers' own: whole buffers, of which a part is live."""
    model, (ids, mask) = model_of(name), prompts(4, padded)
    want = generate(model, reference(name), ids, mask)
    got = generate(model, "aegis", ids, mask, cache_implementation="static", disable_compile=True)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_masks_with_holes(name):
    model, (ids, mask) = model_of(name), prompts(4, True)
    mask[0, 4:7] = 0
    mask[2, 9] = 0
    want = generate(model, reference(name), ids, mask, tokens=6)
    got = generate(model, "aegis", ids, mask, tokens=6)
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 13])
def test_no_cache(name, length):
    model, (ids, mask) = model_of(name), prompts(2, False, length)
    results = []
    for implementation in (reference(name), "aegis"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            results.append(model(ids, attention_mask=mask, use_cache=False).logits)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Gemma2", "GptOss"])
@pytest.mark.parametrize("length", [1, 13])
def test_training(name, length):
    """Gradients of every parameter, dropout included, with the same random numbers."""
    model, (ids, mask) = model_of(name), prompts(2, length > 1, length)
    gradients = []
    model.train()
    try:
        for implementation in (reference(name), "aegis"):
            model.set_attn_implementation(implementation)
            model.zero_grad()
            torch.manual_seed(5)
            model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()].sin().sum().backward()
            gradients.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    finally:
        model.eval()
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient, rtol=1e-3, atol=1e-3, msg=key)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Mistral", "Gemma2", "Gemma3"])
def test_spans_through_a_model(name):
    """A 4-D mask goes unchanged through transformers: here spans, with a window for the layers that have one."""
    model, (ids, mask) = model_of(name), prompts(4, True)
    model.set_attn_implementation("aegis")
    caches = [transformers.DynamicCache(), transformers.DynamicCache()]
    with torch.no_grad():
        for cache in caches:
            model(ids[:, :12], attention_mask=mask[:, :12], past_key_values=cache)
        want = model(ids[:, 12:], attention_mask=mask, position_ids=torch.full((4, 1), 12), past_key_values=caches[0])
        spans = torch.tensor([[3 * row, 13] for row in range(4)]).view(4, 1, 1, 2)
        got = model(ids[:, 12:], attention_mask=spans, position_ids=torch.full((4, 1), 12), past_key_values=caches[1])
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_model(dtype):
    model = model_of("Llama")
    ids, mask = prompts(4, True)
    want = generate(model, "sdpa", ids, mask, tokens=2)[1]
    try:
        with Calls() as calls:
            got = generate(model.to(dtype), "aegis", ids, mask, tokens=2)[1]
    finally:
        model_of.cache_clear()
    assert calls.decodes == 4
    assert (got - want).abs().mean() < 0.03 * want.abs().mean()


def test_encoder_and_decoder():
    """Cross attention to an encoder whose keys are padded on the right."""
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, init_std=0.2, eos_token_id=199,
        forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).eval()
    ids, mask = prompts(3, False)
    mask[1, 9:] = 0
    want = generate(model, "sdpa", ids, mask, num_beams=1)
    got = generate(model, "aegis", ids, mask, num_beams=1)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Module(torch.nn.Module):
    num_key_value_groups = 2
    is_causal = True


QUERY, KEY, VALUE = random(2, 4, 1, 16), random(3, 2, 20, 16, seed=1), random(3, 2, 20, 16, seed=2)
SPANS = torch.tensor([[0, 15], [17, 32]]).view(2, 1, 1, 2)  # the second row has wrapped


@pytest.mark.parametrize("window", [0, 6, 100])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_spans_where_the_operator_does_not_serve(window, softcap):
    """With gradients, sinks, dropout, a dtype of its own: the same from torch's operations."""
    keywords = {"sliding_window": window, "softcap": softcap, "scaling": 0.3}
    with Calls() as calls:
        want, _ = attend(Module(), QUERY, KEY, VALUE, SPANS, **keywords)
    assert calls.decodes == 1
    assert want.shape == (2, 1, 4, 16)
    query = QUERY.clone().requires_grad_()
    got, _ = attend(Module(), query, KEY, VALUE, SPANS, **keywords)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert query.grad.abs().sum() > 0
    double, _ = attend(Module(), QUERY.double(), KEY.double(), VALUE.double(), SPANS, **keywords)
    torch.testing.assert_close(double.float(), want)
    vanishing_sinks = torch.full((4,), -1e30)
    got, _ = attend(Module(), QUERY, KEY, VALUE, SPANS, s_aux=vanishing_sinks, **keywords)
    torch.testing.assert_close(got, want)
    torch.manual_seed(0)
    dropped, _ = attend(Module().train(), QUERY, KEY, VALUE, SPANS, dropout=0.5, **keywords)
    assert not torch.allclose(dropped, want)


def test_sinks_take_their_share():
    zeros = torch.zeros(4)
    got, _ = attend(Module(), QUERY, KEY, torch.ones_like(VALUE), SPANS, s_aux=zeros, scaling=0.0)
    torch.testing.assert_close(got, torch.full((2, 1, 4, 16), 15 / 16))


@pytest.mark.parametrize("slots", [20, 40])
def test_masks_over_positions_find_their_slots(slots):
    """A bool mask with holes is over positions 0 to 31; the buffers hold the newest of them, or have room for more."""
    positions = random(2, 2, 32, 16, seed=3), random(2, 2, 32, 16, seed=4)
    buffers = [torch.full((3, 2, slots, 16), torch.nan) for _ in positions]
    for buffer, tensor in zip(buffers, positions, strict=True):
        for p in range(32):
            buffer[:2, :, p % slots] = tensor[:, :, p]
    mask = torch.zeros(2, 1, 1, 32, dtype=torch.bool)
    mask[0, ..., 14:32:2] = True
    mask[1, ..., 20:24] = True
    want, _ = attend(Module(), QUERY, *positions, mask)
    got, _ = attend(Module(), QUERY, *buffers, mask)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mask", [torch.zeros(2, 1, 1, 20), random(1, 4, 1, 20), None], ids=["zeros", "bias", "none"])
def test_other_masks(mask):
    key, value = KEY[:2], VALUE[:2]
    want = torch.nn.functional.scaled_dot_product_attention(QUERY, key, value, attn_mask=mask, enable_gqa=True)
    got, _ = attend(Module(), QUERY, key, value, mask)
    torch.testing.assert_close(got, want.transpose(1, 2))


def test_compiled():
    """Lengths are data to a compiled step."""
    step = torch.compile(
        lambda spans: attend(Module(), QUERY, KEY, VALUE, spans)[0], fullgraph=True, backend="aot_eager"
    )
    spans = SPANS.clone()
    step(spans)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            spans[..., 1] += 1
            assert torch.equal(step(spans), attend(Module(), QUERY, KEY, VALUE, spans)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_spans_on_cuda(window, softcap):
    keywords = {"sliding_window": window, "softcap": softcap, "scaling": 0.3}
    want, _ = attend(Module(), QUERY, KEY, VALUE, SPANS, **keywords)
    got, _ = attend(Module(), *(t.cuda() for t in (QUERY, KEY, VALUE, SPANS)), **keywords)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_spans_for_several_queries_give_what_each_gives_alone(window, softcap):
    keywords = {"sliding_window": window, "softcap": softcap, "scaling": 0.3}
    query = random(2, 4, 3, 16, seed=5)
    spans = torch.cat([SPANS + torch.tensor([0, i]) for i in range(-2, 1)], 2)
    with Calls() as calls:
        got, _ = attend(Module(), query, KEY, VALUE, spans, **keywords)
    assert calls.decodes == 1
    for i in range(3):
        want, _ = attend(Module(), query[:, :, i : i + 1], KEY, VALUE, spans[:, :, i : i + 1], **keywords)
        assert torch.equal(got[:, i : i + 1], want)
    double, _ = attend(Module(), query.double(), KEY.double(), VALUE.double(), spans, **keywords)
    torch.testing.assert_close(double.float(), got)


def test_bad_input_spans_for_another_number_of_queries():
    with pytest.raises(ValueError, match="attention_mask: expected spans for 3 queries, got 1"):
        attend(Module(), QUERY.expand(2, 4, 3, 16), KEY, VALUE, SPANS)


def test_bad_input_spans_longer_than_the_buffer():
    with pytest.raises(ValueError, match=r"spans\[0\]: expected at most 20 positions"):
        attend(Module(), QUERY, KEY, VALUE, torch.tensor([[0, 21], [0, 1]]).view(2, 1, 1, 2))


def test_registering_again_changes_nothing():
    functions = transformers.AttentionInterface()["aegis"], transformers.AttentionMaskInterface()["aegis"]
    register_attention()
    assert (transformers.AttentionInterface()["aegis"], transformers.AttentionMaskInterface()["aegis"]) == functions


def test_transformers_is_imported_where_it_is_used():
    code = "import sys, aegis, aegis.decode; assert 'transformers' not in sys.modules; aegis.decode.register_attention"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'transformers' in sys.modules"], check=True)
