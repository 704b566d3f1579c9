"""The formats beyond raw, llm.c and .npy; importing this package registers them."""

from __future__ import annotations

from aegis.data.token_formats import aegis_v1, datatrove, litdata, megatron

__all__ = ["aegis_v1", "datatrove", "litdata", "megatron"]
