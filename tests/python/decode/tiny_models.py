"""Causal language models of transformers, tiny and random, one of each kind that matters to a cache."""

import pytest
import torch

hf = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


_SLIDING = {"head_dim": 8, "sliding_window": 6}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_OPT = {"word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_GEMMA3 = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 8,
}
# name: (configuration class, sizes)
_FAMILIES = {
    "llama": ("LlamaConfig", SIZES),
    "gpt2": ("GPT2Config", {"vocab_size": VOCABULARY, **_GPT2}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 8}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 6}),
    "gemma2": ("Gemma2Config", {**SIZES, **_SLIDING, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {**SIZES, **_SLIDING, **_GEMMA3}),
    "opt": ("OPTConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "max_position_embeddings": 256, **_OPT}),
}
FAMILIES = tuple(_FAMILIES)


def make(name: str, dtype: torch.dtype = torch.float32, attention: str | None = None, **changes):
    """The same weights each time. No token ends a text unless a test says so."""
    kind, sizes = _FAMILIES[name]
    config = getattr(hf, kind)(**{**sizes, **changes})
    for token in _NO_TOKENS:
        setattr(config, token, None)
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    if attention is not None:
        model.set_attn_implementation(attention)
    for token in _NO_TOKENS:
        setattr(model.generation_config, token, None)
    with torch.no_grad():
        for weight in model.parameters():  # initial weights of 0.02 give logits that are nearly equal
            weight.mul_(8 if weight.ndim > 1 else 1)
    return model


def prompts(rows: int, length: int = 9, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(rows: int, length: int = 9) -> torch.Tensor:
    """A mask under which row i has 2 i tokens of padding on its left."""
    return (torch.arange(length) >= 2 * torch.arange(rows)[:, None]).long()


def padded(rows: int, length: int = 10, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts and their mask; what is masked is token 0."""
    mask = padding(rows, length)
    return prompts(rows, length, seed) * mask, mask
