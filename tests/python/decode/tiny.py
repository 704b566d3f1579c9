"""Hugging Face models small enough to decode hundreds of tokens in a second, with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 99
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_MIXED = ["sliding_attention", "full_attention"] * 2
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
_GPT2 |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
# name: (configuration class, model class, what differs)
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _SHAPE),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _SHAPE),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _SHAPE),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_SHAPE, "sliding_window": 6}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**_SHAPE, "sliding_window": 6, "layer_types": _MIXED}),
}
FAMILIES = list(_FAMILIES)


def make(name: str, attention: str = "sdpa", **changes: Any) -> Any:
    config_class, model_class, options = _FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**options, **changes})
    model = getattr(transformers, model_class)(config).eval()
    model.set_attn_implementation(attention)
    return model


def prompt(batch: int, length: int = 10, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, attention mask): row b begins with 2 * b tokens of padding."""
    ids = torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for b in range(batch):
        mask[b, : 2 * b] = 0
    return ids * mask, mask
