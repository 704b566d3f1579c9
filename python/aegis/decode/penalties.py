"""Penalties for tokens that have come before."""

from __future__ import annotations

import torch
from torch import Tensor


def penalize_(scores: Tensor, input_ids: Tensor, prompt_length: int, penalties: Tensor) -> None:
    """Lower the scores of tokens that are in ``input_ids``, in place; touches no others.

    Args:
        scores: (batch, n + 1) float32. The last column is scratch: ids outside of the vocabulary end there.
        input_ids: (batch, length) int64: the prompt and what was generated.
        prompt_length: tokens at the beginning that only ``repetition`` counts.
        penalties: (batch, 3) or (1, 3) float32: repetition, frequency, presence.

    A token anywhere in a row of input_ids has its score divided by ``repetition`` where that is positive, multiplied
    by it where not, once (Keskar et al. 2019, as in Hugging Face's RepetitionPenaltyLogitsProcessor). Then a token
    that was generated c > 0 times loses ``c * frequency + presence`` (as OpenAI's interface and vLLM define them).
    """
    outside = scores.shape[1] - 1
    repetition, frequency, presence = (penalties[:, i : i + 1] for i in range(3))
    ids = torch.where((input_ids < 0) | (input_ids > outside), outside, input_ids)
    seen = scores.gather(1, ids)
    scores.scatter_(1, ids, torch.where(seen < 0, seen * repetition, seen / repetition))
    generated = ids[:, prompt_length:]
    scores.scatter_add_(1, generated, -frequency.expand(generated.shape))
    scores.scatter_(1, generated, scores.gather(1, generated) - presence)
