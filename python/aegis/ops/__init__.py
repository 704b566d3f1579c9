"""The operators, with their Python signatures: each is ``torch.ops.aegis.<name>``.

Use either spelling in eager code; TorchScript wants ``torch.ops.aegis``.
"""

from __future__ import annotations

# ruff: noqa: E402  (the library comes before what uses it)
from pathlib import Path

import torch

torch.ops.load_library(str(Path(__file__).parent.parent / "lib" / "libaegis_ops.so"))  # type: ignore[no-untyped-call]

from aegis import _autograd, _fake  # noqa: F401  (need the schemas that the library just brought)
from aegis.ops.batches import extract_batch, gather_records, gather_records_scaled
from aegis.ops.decoding import decode_attention, kv_append_, kv_move_, sample, token_probabilities
from aegis.ops.linear import float8_linear, float8_quantize, pack_ternary, skinny_linear, ternary_linear, unpack_ternary
from aegis.ops.rounding import to_bfloat16_rne

__all__ = [
    "decode_attention",
    "extract_batch",
    "float8_linear",
    "float8_quantize",
    "gather_records",
    "gather_records_scaled",
    "kv_append_",
    "kv_move_",
    "pack_ternary",
    "sample",
    "skinny_linear",
    "ternary_linear",
    "to_bfloat16_rne",
    "token_probabilities",
    "unpack_ternary",
]
