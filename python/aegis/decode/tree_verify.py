"""A pass of the target over a tree of guesses, and what is kept of it."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from aegis import _C
from aegis.decode.accept import Verified
from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.drafts import Draft
from aegis.decode.law import Ahead, Law
from aegis.decode.tree_drafts import TreeProposal, branches_of
from aegis.decode.trees import TokenTree, TreePass

__all__ = ["TreeVerifier"]


class TreeVerifier:
    """Guesses in trees, verifies each tree in one pass, and keeps one of its paths in both models' caches.

    Args:
        tree: the largest; passes with less room have its first levels.
        target: its rollback is at least the nodes of the tree and 2.
        draft: a model, or a lookup.
    """

    def __init__(self, tree: TokenTree, target: BlockDecoder, draft: Draft) -> None:
        self.tree = tree.by_depth()
        self.branches = branches_of(draft)
        self._target = target

    def run(
        self,
        law: Law,
        guesses: int,
        first: int,
        text: Tensor,
        lengths: list[int],
        state: Tensor,
        clock: list[float],
    ) -> Verified | None:
        """A pass over rows first, first + 1, ... of these lengths, with paths of at most ``guesses`` tokens.

        That is at least 1, and there is room in the cache for as many. Notes when drafting and verification ended.

        None where there is nothing to guess: then nothing was done.
        """
        tree = self.tree.first(self._target.cache.max_cache_len - max(lengths), guesses)
        proposal = self.branches.propose(tree, first, text, lengths, state)
        if proposal is None:
            return None
        clock.append(time.perf_counter())
        own = text[first : first + len(lengths)]
        ends = torch.tensor(lengths, device=text.device)
        fed = torch.cat([own.gather(1, ends[:, None] - 1), proposal.tokens.clamp(min=0)], 1)
        whole = _whole(proposal)
        logits = self._target.feed(fed, first, whole)
        clock.append(time.perf_counter())

        ahead = Ahead(whole.depths, _paths(proposal) if law.needs_text else None)
        trees = [tree.core for tree in proposal.trees]
        guessed = proposal.tokens.cpu().numpy()
        if proposal.probabilities is None or law.greedy:
            picked = law.pick(logits, first, state, text, ends, ahead)
            kept, nodes, following = _C.follow_picks(trees, guessed, picked.cpu().numpy())
        else:
            p = law.probabilities(logits, first, text, ends, ahead)
            q = proposal.probabilities
            kept, nodes, following = _C.follow_draws(
                trees, guessed, p.cpu().numpy(), q.cpu().numpy(), state.cpu().numpy()
            )
        fresh = np.zeros((len(lengths), nodes.shape[1] + 1), dtype=np.int64)
        fresh[:, :-1] = np.where(nodes >= 0, np.take_along_axis(guessed, nodes.clip(0), 1), 0)
        fresh[np.arange(len(lengths)), kept] = following
        result = torch.from_numpy(fresh).to(text.device)
        own.scatter_(1, ends[:, None] + torch.arange(fresh.shape[1], device=text.device), result)
        self._target.keep_path(first, lengths, torch.from_numpy(nodes))
        self.branches.keep(first, lengths, nodes)
        there = guessed >= 0
        depths = whole.depths[:, 1:].cpu().numpy()
        return Verified(
            result,
            fresh.tolist(),
            kept.tolist(),
            np.where(there, depths, 0).max(1).tolist(),
            there.sum(1).tolist(),
        )


def _whole(proposal: TreeProposal) -> TreePass:
    """All of the tree, of each row where they have their own. What a smaller tree lacks sees itself and the root."""
    count = proposal.tokens.shape[1] + 1
    seen = torch.eye(count, dtype=torch.bool).repeat(len(proposal.trees), 1, 1)
    seen[:, :, 0] = True
    depths = torch.ones(len(proposal.trees), count, dtype=torch.int64)
    for i, tree in enumerate(proposal.trees):
        size = min(len(tree) + 1, count)
        seen[i, :size, :size] = tree.mask()[:size, :size]
        depths[i, :size] = tree.entry_depths[:size]
    return TreePass(seen.to(proposal.tokens.device), depths.to(proposal.tokens.device))


def _paths(proposal: TreeProposal) -> Tensor:
    """(b, n + 1, depth): the tokens on the way to each entry; of no meaning behind it."""
    batch, count = proposal.tokens.shape
    depth = max(tree.max_depth for tree in proposal.trees)
    nodes = torch.zeros(len(proposal.trees), count + 1, depth, dtype=torch.int64)
    for i, tree in enumerate(proposal.trees):
        nodes[i, : len(tree) + 1, : tree.max_depth] = tree.paths.clamp(min=0)
    flat = nodes.flatten(1).expand(batch, -1).to(proposal.tokens.device)
    return proposal.tokens.gather(1, flat).clamp(min=0).view(batch, count + 1, depth)
