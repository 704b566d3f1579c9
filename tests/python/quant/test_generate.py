"""Models whose layers were converted decode as the dense ones do, through model.generate and aegis.generate."""

import aegis
import pytest
import torch
from aegis.decode.graph import fingerprint
from aegis.quant import convert, revert
from torch import nn

hf = pytest.importorskip("transformers", reason="transformers is not installed")


def tiny_llama():
    """All linear layers ternary, one scale for each row."""
    config = hf.LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name != "lm_head":
                scale = module.weight.abs().mean(1, keepdim=True) * 8
                module.weight.copy_(torch.randint_like(module.weight, -1, 2) * scale)
    return model


PROMPT = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(1))
OPTIONS = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


def test_exact_activations_decode_the_tokens_of_the_dense_model():
    model = tiny_llama()
    want = model.generate(PROMPT, **OPTIONS)
    logits = model(PROMPT).logits.detach()
    report = convert(model, "ternary", precision="exact")
    assert len(report.converted) == 14
    assert all(layer.relative_error == 0 for layer in report.converted)
    torch.testing.assert_close(model(PROMPT).logits, logits, rtol=1e-3, atol=1e-3)
    assert torch.equal(model.generate(PROMPT, **OPTIONS), want)
    assert torch.equal(aegis.generate(model, PROMPT, **OPTIONS), want)
    assert revert(model) == 14
    assert torch.equal(model.generate(PROMPT, **OPTIONS), want)


def test_int8_activations_decode_the_same_tokens_through_the_runner():
    model = tiny_llama()
    logits = model(PROMPT).logits.detach()
    convert(model, "ternary")
    close = model(PROMPT).logits.detach()
    assert (close - logits).norm() < 0.05 * logits.norm()
    assert torch.equal(aegis.generate(model, PROMPT, **OPTIONS), model.generate(PROMPT, **OPTIONS))


def test_compiled_runner_decodes_the_same_tokens_and_sees_that_layers_were_converted():
    model = tiny_llama()
    dense = model.generate(PROMPT, **OPTIONS)
    runner = aegis.CUDAGraphFastRunner(model, batch_size=2, max_cache_len=40, mode="compiled")
    before = fingerprint(model)
    convert(model, "ternary", precision="exact")
    assert fingerprint(model) != before
    assert torch.equal(aegis.generate(model, PROMPT, runner=runner, **OPTIONS), dense)
