"""What differs between the releases of transformers, and what aegis asks of a model of theirs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "ATTENTION",
    "aegis_attention",
    "cache_argument",
    "check_model",
    "check_positions",
    "forward_arguments",
    "learned_positions",
    "left_padding",
    "longest_text",
]

ATTENTION = "aegis"
"""The name under which the attention and mask functions are registered."""


def forward_arguments(model: nn.Module) -> frozenset[str]:
    """The names of what ``model.forward`` takes."""
    return frozenset(inspect.signature(model.forward).parameters)


def cache_argument(model: nn.Module) -> str:
    """``cache`` in the newest releases, ``past_key_values`` before."""
    return "cache" if "cache" in forward_arguments(model) else "past_key_values"


def check_model(model: Any) -> None:
    """Raises ValueError where ``model`` is none that aegis can decode, and says why."""
    kind = type(model).__name__
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise ValueError(f"model: expected a causal language model of transformers, got {kind}")
    if model.config.is_encoder_decoder:
        raise ValueError(f"model: expected a decoder-only model, got the encoder-decoder {kind}")
    needed = {"input_ids", "attention_mask", "position_ids", cache_argument(model)}
    if missing := needed - forward_arguments(model):
        raise ValueError(f"model: expected forward to take {', '.join(sorted(missing))}, which that of {kind} does not")
    if model.device.type not in ("cpu", "cuda"):
        raise ValueError(f"model: expected one on a CPU or on CUDA, got one on {model.device}")
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"model: expected one whose attention goes through transformers' AttentionInterface, which that of {kind} "
            "does not; model.generate still takes it"
        )


def longest_text(config: Any) -> int:
    """The tokens that a model of this configuration was made for. Raises ValueError where it does not say."""
    length: int | None = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ValueError("max_cache_len: expected a number, since the target's configuration has none")
    return length


# What transformers calls the embeddings that a decoder learns for positions.
_POSITIONS = ("wpe", "embed_positions", "position_embeddings")


def learned_positions(model: Any) -> int | None:
    """How many positions a model has an embedding for. None where it has none, as with rotary positions or ALiBi,
    whose texts may be longer than ``max_position_embeddings``, or where that cannot be told.

    It can where a table of one of the usual names has as many rows as the configuration says, and those that the
    module itself passes over (OPT's offset).
    """
    said: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            offset = getattr(module, "offset", 0)
            if isinstance(offset, int) and module.num_embeddings - offset == said:
                return said
    return None


def check_positions(model: Any, max_cache_len: int) -> None:
    """Raises ValueError where a row of so many tokens has positions that the model knows nothing of."""
    known = learned_positions(model)
    if known is not None and max_cache_len > known:
        raise ValueError(
            f"max_cache_len: expected at most {known}, the positions that {type(model).__name__} has learned, got "
            f"{max_cache_len}"
        )


def left_padding(mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """(batch,) int64: how many tokens of each row a mask says are padding; None where there is no mask.

    Raises ValueError for another shape than (batch, length), and where padding is not on the left of rows alone.
    """
    if mask is None:
        return None
    if mask.shape != (batch, length):
        raise ValueError(
            f"attention_mask: expected shape ({batch}, {length}), all tokens in the cache included, got "
            f"{tuple(mask.shape)}"
        )
    live = mask != 0
    starts = length - live.sum(1)
    if not torch.equal(live, torch.arange(length, device=mask.device) >= starts[:, None]) or not live[:, -1].all():
        raise ValueError(
            "attention_mask: expected padding on the left of each row alone, got zeros elsewhere (where no mask is "
            "given, model.generate takes each pad_token_id in a prompt for padding)"
        )
    return starts


@contextmanager
def aegis_attention(model: Any) -> Iterator[None]:
    """Inside, the model's attention is aegis's. Raises ValueError where the model takes no other attention."""
    from aegis.decode.attention import register_attention

    register_attention()
    config = model.config
    before: Any = config._attn_implementation
    parts = {name: getattr(config, name)._attn_implementation for name in config.sub_configs if getattr(config, name)}
    if parts:  # of a model of text and images, say; each may have had its own
        before = {"": before, **parts}
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
