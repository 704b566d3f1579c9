"""Causal language models of transformers, tiny and random, one of each kind that matters to a cache."""

import pytest
import torch

hf = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 97
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _config(name: str):
    if name == "llama":
        return hf.LlamaConfig(**_SIZES)
    if name == "gpt2":
        return hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    if name == "qwen2":
        return hf.Qwen2Config(**_SIZES)
    if name == "qwen3":
        return hf.Qwen3Config(**_SIZES, head_dim=8)
    if name == "mistral-sliding":
        return hf.MistralConfig(**_SIZES, sliding_window=6)
    if name == "gemma2":
        return hf.Gemma2Config(**_SIZES, head_dim=8, sliding_window=6, query_pre_attn_scalar=8)
    if name == "gemma3":
        sizes = {**_SIZES, "num_hidden_layers": 3}
        layers = ["sliding_attention", "sliding_attention", "full_attention"]
        return hf.Gemma3TextConfig(**sizes, head_dim=8, sliding_window=6, layer_types=layers, query_pre_attn_scalar=8)
    assert name == "opt"
    return hf.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
    )


FAMILIES = ("llama", "gpt2", "qwen2", "qwen3", "mistral-sliding", "gemma2", "gemma3", "opt")


def make(name: str, dtype: torch.dtype = torch.float32):
    """The same weights each time. No token ends a text unless a test says so."""
    config = _config(name)
    for token in _NO_TOKENS:
        setattr(config, token, None)
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).to(dtype).eval()
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
