"""Drafts that guess several continuations at once."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from aegis import _C
from aegis.decode.drafts import Draft, ModelDraft, PromptLookupDraft
from aegis.decode.law import Ahead, Domain, draw
from aegis.decode.trees import TokenTree, TreePass

__all__ = ["Branches", "LookupBranches", "ModelBranches", "TreeProposal", "branches_of"]

_MOST_MATCHES = 64
"""Places of the text that a lookup takes continuations from."""


class TreeProposal(NamedTuple):
    """What a draft guesses for each row of a range."""

    trees: list[TokenTree]
    """One for all rows, or one for each."""
    tokens: Tensor
    """(b, n) int64: of each node; -1 where there is none."""
    probabilities: Tensor | None
    """(b, nodes with children, V) float32: what the children of each were drawn from, one without the other, the text's
    first; None where they were not drawn."""


class Branches(Protocol):
    """The part of a draft that has to do with trees."""

    def propose(
        self, tree: TokenTree, first: int, text: Tensor, lengths: list[int], state: Tensor
    ) -> TreeProposal | None:
        """Guesses for rows first, first + 1, ... whose lengths and random states are given, in a tree by depth or one
        of at most its size and depth. None where there is nothing to guess."""

    def keep(self, first: int, lengths: list[int], nodes: np.ndarray) -> None:
        """These nodes, (b, n) and -1 behind them, became text behind ``lengths``."""


def branches_of(draft: Draft) -> Branches:
    """What of a draft has to do with trees."""
    if isinstance(draft, ModelDraft):
        return ModelBranches(draft)
    assert isinstance(draft, PromptLookupDraft)
    return LookupBranches(draft)


class ModelBranches:
    """Of a language model: the likeliest tokens where its sampler is greedy, and otherwise tokens drawn one without the
    other. A level of the tree is a pass of the model."""

    def __init__(self, draft: ModelDraft) -> None:
        self.draft = draft
        self._ranks = np.zeros(0, dtype=np.int64)

    def propose(self, tree: TokenTree, first: int, text: Tensor, lengths: list[int], state: Tensor) -> TreeProposal:
        law = self.draft.law
        self._ranks = tree.core.inner_ranks
        logits = self.draft.catch_up(first, text, lengths)
        ends = torch.tensor(lengths, device=text.device)
        tokens = torch.full((len(lengths), len(tree)), -1, dtype=torch.int64, device=text.device)
        distributions = []
        for level in _levels(tree):
            if level != [-1]:
                logits = self._feed(tree, level, first, tokens)
            ahead = self._ahead(tree, level, tokens)
            widest = max(len(tree.children(node)) for node in level)
            if law.greedy:
                picks = law.scores(logits, first, text, ends, ahead).topk(widest, 2).indices
            else:
                distributions.append(law.probabilities(logits, first, text, ends, ahead))
                picks = _drawn(distributions[-1], tree, level, state)
            for place, node in enumerate(level):
                children = tree.children(node)
                mine = picks[:, place, : len(children)]
                tokens[:, children] = mine if node < 0 else mine.where(tokens[:, node, None] >= 0, -1)
        return TreeProposal([tree], tokens, None if law.greedy else torch.cat(distributions, 1))

    def _feed(self, tree: TokenTree, level: list[int], first: int, tokens: Tensor) -> Tensor:
        """Only nodes with children are fed, so entries are those."""
        entries = torch.tensor(tree.inner) + 1
        fed = int(self._ranks[level[-1] + 1]) + 1
        seen = tree.mask()[entries][:, entries][fed - len(level) : fed, :fed]
        depths = tree.entry_depths[entries][:fed]
        device = tokens.device
        part = TreePass(seen[None].to(device), depths[None].to(device))
        return self.draft.decoder.feed(tokens[:, level].clamp(min=0), first, part)

    def _ahead(self, tree: TokenTree, level: list[int], tokens: Tensor) -> Ahead:
        entries = torch.tensor(level) + 1
        steps = tree.entry_depths[entries][None].to(tokens.device)
        if not self.draft.law.needs_text:
            return Ahead(steps, None)
        paths = tree.paths[entries].clamp(min=0).to(tokens.device)
        return Ahead(steps, tokens[:, paths].clamp(min=0))

    def keep(self, first: int, lengths: list[int], nodes: np.ndarray) -> None:
        entries = np.where(nodes >= 0, self._ranks[nodes + 1], -1)  # a last node without children was not fed
        entries = np.where(entries > 0, entries - 1, -1)  # counted from behind the root
        self.draft.decoder.keep_path(first, lengths, torch.from_numpy(entries))
        fed = (entries >= 0).sum(1).tolist()
        self.draft.decoder.keep(first, [length + n for length, n in zip(lengths, fed, strict=True)])


def _levels(tree: TokenTree) -> list[list[int]]:
    """Nodes that have children, level by level; [-1] is the first."""
    levels: dict[int, list[int]] = {}
    for node in tree.inner:
        levels.setdefault(0 if node < 0 else tree.depths[node], []).append(node)
    return list(levels.values())


def _drawn(distribution: Tensor, tree: TokenTree, level: list[int], state: Tensor) -> Tensor:
    """(b, nodes, widest) int64: a token for each child, drawn without those before it; -1 where nothing was left."""
    batch, nodes, vocabulary = distribution.shape
    children = [tree.children(node) for node in level]
    rest = distribution.clone()
    picks = []
    for turn in range(max(len(own) for own in children)):
        states = state[:, None].repeat(1, nodes, 1)
        for place, own in enumerate(children):
            if turn < len(own):
                states[:, place, 2] += tree.depths[own[turn]] - 1
                states[:, place, 3] = int(Domain.DRAFT) + _C.TREE_DOMAINS * (own[turn] + 1)
        drawn = draw(rest.view(-1, vocabulary), states.view(-1, 4)).view(batch, nodes).clone()
        picks.append(drawn.where((rest > 0).any(2), -1))
        rest.scatter_(2, drawn[:, :, None], 0)
    return torch.stack(picks, 2)


class LookupBranches:
    """Of a prompt lookup: what followed each time that the newest tokens occurred, the longest matches and of these the
    newest first, until there are as many nodes as in the tree; none deeper than that."""

    def __init__(self, draft: PromptLookupDraft) -> None:
        self.draft = draft

    def propose(
        self, tree: TokenTree, first: int, text: Tensor, lengths: list[int], state: Tensor
    ) -> TreeProposal | None:
        host = text[first : first + len(lengths), : max(lengths)].cpu().numpy()
        found = [self._find(row[:length], len(tree), tree.max_depth) for row, length in zip(host, lengths, strict=True)]
        most = max(len(tokens) for _, tokens in found)
        if most == 0:
            return None
        tokens = np.full((len(found), most), -1, dtype=np.int64)
        for row, (_, guesses) in enumerate(found):
            tokens[row, : len(guesses)] = guesses
        trees = [TokenTree(parents or [-1]) for parents, _ in found]
        return TreeProposal(trees, torch.from_numpy(tokens).to(text.device), None)

    def _find(self, text: np.ndarray, nodes: int, depth: int) -> tuple[list[int], list[int]]:
        """Parents and tokens."""
        parents: list[int] = []
        tokens: list[int] = []
        places: dict[tuple[int, int], int] = {}
        for match, begin in enumerate(self.draft.lookup.matches(text)):
            if match == _MOST_MATCHES or len(tokens) == nodes:
                break
            node = -1
            for token in text[begin : begin + depth].tolist():
                place = places.get((node, token))
                if place is None:
                    if len(tokens) == nodes:
                        break
                    place = places[node, token] = len(tokens)
                    parents.append(node)
                    tokens.append(token)
                node = place
        return parents, tokens

    def keep(self, first: int, lengths: list[int], nodes: np.ndarray) -> None:
        pass
