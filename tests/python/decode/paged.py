"""Texts through a PagedKVCache, as a server would decode them."""

from __future__ import annotations

import torch


def forward(model, ids, cache, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


def decode(model, cache, rows, tokens, count):
    """Greedy tokens (rows, count) after feeding ``tokens`` (rows, n) to these rows."""
    picked = []
    for _ in range(count):
        with cache.rows(rows):
            options = {"position_ids": cache.position_ids(tokens.shape[1])}
            logits = forward(model, tokens, cache, attention_mask=cache.attention_mask(tokens.shape[1]), **options)
        tokens = logits[:, -1:].argmax(2)
        picked.append(tokens)
    return torch.cat(picked, 1)


def alone(model, ids, count):
    """What a text of its own goes on with."""
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids[None], attention_mask=torch.ones_like(ids[None]), **options)[0, len(ids) :]


def decode_prompt(model, cache, ids):
    row = cache.acquire_row(ids)
    with cache.rows([row]):
        forward(model, ids[None, cache.row_lengths[row] :], cache)
    return row
