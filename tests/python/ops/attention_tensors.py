"""Operands for the tests of decode_attention."""

import torch
from tensors import random

SPANS = torch.tensor([[0, 20], [5, 30]])


def operands(batch=2, heads=4, key_heads=2, slots=30, size=16, dtype=torch.float32, seed=0):
    query = random(batch, heads, 1, size, dtype=dtype, seed=seed)
    keys, values = (random(batch, key_heads, slots, size, dtype=dtype, seed=seed + i) for i in (1, 2))
    return query, keys, values
