"""What token_probabilities computes, in torch's operations: the reference of its tests."""

from __future__ import annotations

import torch
from torch import Tensor


def probabilities_by_torch(scores: Tensor, settings: Tensor, keep_ties: bool) -> Tensor:
    scores = scores.float()
    temperature, top_k, top_p, min_p = (column[:, None] for column in settings.unbind(1))
    vocabulary = scores.shape[1]
    best = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(1, keepdim=True)
    taken = (scores == best).int().argmax(1, keepdim=True)  # the first; never a NaN, unless there is nothing else
    broken = scores.isnan().any(1, keepdim=True) | best.isinf()
    sure = broken | (temperature <= 0) | (top_p <= 0)
    scaled = (scores - best) / torch.where(temperature > 0, temperature, 1)
    scaled = torch.where(broken, 0, scaled)
    limited = (top_k >= 1) & (top_k < vocabulary)
    if bool(limited.any()):
        scaled = _top_k(scaled, torch.where(limited, top_k, vocabulary).long(), keep_ties)
    if bool((top_p < 1).any()):
        scaled = _top_p(scaled, top_p)
    result = torch.softmax(scaled, 1)
    if bool((min_p > 0).any()):
        result = torch.where(result >= min_p * result.amax(1, keepdim=True), result, 0)
        result = result / result.sum(1, keepdim=True)
    if bool(sure.any()):
        result = torch.where(sure, torch.zeros_like(result).scatter_(1, taken, 1), result)
    return result


def _top_k(scores: Tensor, k: Tensor, keep_ties: bool) -> Tensor:
    """Scores with -inf outside of the k largest; k (batch or 1, 1)."""
    most = int(torch.where(k < scores.shape[1], k, 1).max())
    largest = scores.topk(most).values
    kth = largest.gather(1, (k.clamp(max=most) - 1).expand(len(scores), 1))
    kth = torch.where(k < scores.shape[1], kth, -torch.inf)
    kept = scores >= kth
    if not keep_ties:
        ties = scores == kth
        room = k - (scores > kth).sum(1, keepdim=True)
        kept &= ~ties | (ties.cumsum(1) <= room)
    return torch.where(kept, scores, -torch.inf)


def _top_p(scores: Tensor, p: Tensor) -> Tensor:
    """Scores with -inf outside of the shortest prefix, in descending order and by index where equal, of mass p."""
    count = int((scores > -torch.inf).sum(1).max())
    index = scores.topk(count).indices.sort(1).values
    values, order = scores.gather(1, index).sort(stable=True, dim=1, descending=True)
    weights = torch.softmax(values.double(), 1)
    before = weights.cumsum(1) - weights
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept.scatter_(1, index.gather(1, order), before < torch.where(p >= 1, 2, p))
    return torch.where(kept, scores, -torch.inf)
