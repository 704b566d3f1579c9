"""A trained MicroGPT as a model of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aegis.train.model import MicroGPT

__all__ = ["to_transformers"]

_POSITION_OFFSET = 2  # an OPT model leaves the first two rows of its position table out


def to_transformers(model: MicroGPT) -> Any:
    """An ``OPTForCausalLM`` with the weights of ``model`` copied: it has the same layers, so it gives the same logits.

    OPT (Zhang et al. 2022) is the model of transformers with pre-norm layers, learned positions and no biases; those
    that its norms have are zero. No token begins, ends or pads a text.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import OPTConfig, OPTForCausalLM

    sizes = model.config
    config = OPTConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.width,
        word_embed_proj_dim=sizes.width,
        ffn_dim=4 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=sizes.block_size,
        activation_function="gelu",
        dropout=sizes.dropout,
        enable_bias=False,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    result = OPTForCausalLM(config)
    with torch.no_grad():
        wanted = result.state_dict()
        for name, weight in _weights(model).items():
            wanted[name].copy_(weight)
    result.eval()
    return result


def _weights(model: MicroGPT) -> dict[str, Tensor]:
    own = model.state_dict()
    decoder = "model.decoder."
    unused = torch.zeros(_POSITION_OFFSET, model.config.width)
    weights = {
        decoder + "embed_tokens.weight": own["tokens.weight"],
        decoder + "embed_positions.weight": torch.cat([unused, own["positions.weight"].cpu()]),
        **_norm(decoder + "final_layer_norm", own["norm.weight"]),
    }
    for i in range(model.config.layers):
        block, layer = f"blocks.{i}.", f"{decoder}layers.{i}."
        query, key, value = own[block + "attention.qkv.weight"].chunk(3)
        weights |= {
            layer + "self_attn.q_proj.weight": query,
            layer + "self_attn.k_proj.weight": key,
            layer + "self_attn.v_proj.weight": value,
            layer + "self_attn.out_proj.weight": own[block + "attention.out.weight"],
            layer + "fc1.weight": own[block + "mlp_in.weight"],
            layer + "fc2.weight": own[block + "mlp_out.weight"],
            **_norm(layer + "self_attn_layer_norm", own[block + "attention_norm.weight"]),
            **_norm(layer + "final_layer_norm", own[block + "mlp_norm.weight"]),
        }
    return weights


def _norm(name: str, weight: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros_like(weight)}
