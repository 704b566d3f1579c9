"""What a transformers configuration says about the layers of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

__all__ = ["LayerPlan", "Shape", "check_sizes", "plan_layers", "planned_shapes"]

# What transformers calls layers that keep nothing of their own: a shared cache, or no attention at all.
_WITHOUT_CACHE = ("dummy", "moe", "mlp")
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}

Shape = tuple[int, int, int]
"""(heads, size of a key, size of a value)"""


@dataclass(frozen=True)
class LayerPlan:
    """One layer, of the kind that transformers calls so. ``window`` is None where it sees all positions; ``stored`` is
    False where it keeps nothing."""

    kind: str
    window: int | None = None
    stored: bool = True

    def slots(self, max_cache_len: int, rollback: int) -> int:
        """The length of its buffer."""
        if not self.stored:
            return 0
        return max_cache_len if self.window is None else min(max_cache_len, self.window + rollback + 1)


def _layer_configs(config: Any) -> list[Any]:
    """The configuration of each layer; they differ where the model is heterogeneous (transformers 5)."""
    return list(getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers)


def _layer_types(config: Any, configs: list[Any]) -> list[str]:
    """``config.layer_types``, or what the windows tell where there are none, with layers that share marked dummy."""
    types = getattr(config, "layer_types", None)
    if types is None:
        types = [
            next((kind for kind, name in _WINDOWS.items() if getattr(one, name, None) is not None), "full_attention")
            for one in configs
        ]
    types = list(types)
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is None:
        modes = [None] * (len(types) - shared) + ["reuse"] * shared
    return ["dummy" if mode == "reuse" else kind for kind, mode in zip(types, modes, strict=True)]


def plan_layers(config: Any) -> list[LayerPlan]:
    """The layers of a decoder's (text) configuration.

    Raises:
        ValueError: a kind of layer whose state is not keys and values of tokens, naming it.
    """
    configs = _layer_configs(config)
    plans = []
    for index, kind in enumerate(_layer_types(config, configs)):
        if kind in _WITHOUT_CACHE:
            plans.append(LayerPlan(kind, stored=False))
        elif kind == "full_attention":
            plans.append(LayerPlan(kind))
        elif kind in _WINDOWS:
            window = getattr(configs[index], _WINDOWS[kind])
            if not isinstance(window, int) or window < 1:
                raise ValueError(f"layer {index}: expected a {_WINDOWS[kind]} of at least 1, got {window}")
            plans.append(LayerPlan(kind, window))
        else:
            raise ValueError(f"layer {index}: expected full, sliding or chunked attention, got {kind!r}")
    if not any(plan.stored for plan in plans):
        raise ValueError("config: expected a layer with attention, found none")
    return plans


def planned_shapes(config: Any) -> list[Shape]:
    """The shape of every layer's keys and values, as far as the configuration tells."""
    shapes = []
    for one in _layer_configs(config):
        query_heads = one.num_attention_heads
        heads = getattr(one, "num_key_value_heads", None) or query_heads
        size = getattr(one, "head_dim", None) or one.hidden_size // query_heads
        shapes.append((heads, size, size))
    return shapes


def check_sizes(config: Any, batch_size: Any, max_cache_len: Any, rollback: Any) -> int:
    """Raises for what no cache can be made of: see :class:`aegis.SlottedStaticCache`. Returns max_cache_len."""
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"config: expected model.config, got {type(config).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError("config: expected a decoder, got an encoder-decoder model")
    if max_cache_len is None:
        raise TypeError("max_cache_len: expected the most tokens that a row is to hold")
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("max_cache_len", max_cache_len, 1),
        ("rollback", rollback, 0),
    ):
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name}: expected an int, got {value!r}")
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    return int(max_cache_len)
