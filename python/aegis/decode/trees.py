"""Shapes of trees of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from operator import index
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aegis import _C

__all__ = ["TokenTree", "TreePass", "as_tree"]


class TreePass(NamedTuple):
    """Tokens of a tree that a model is fed, behind those that it holds already. Entry 0 of a tree is its root, the last
    token of the text; entries lie in the cache in their order, each in a place of its own."""

    seen: Tensor
    """(1 or batch, tokens, entries) bool: which entries each new token sees, itself included. New tokens are the last
    entries."""
    depths: Tensor
    """(1 or batch, entries) int64: how far behind the root each entry stands in the text."""


class TokenTree:
    """What a draft guesses for one pass: several continuations of a text, whose common beginnings are shared. ::

        TokenTree([-1, -1, 0, 0, 1])                  # two tokens behind the text; two behind the first, one behind...
        TokenTree.from_branching((4, 2, 1))           # 4 tokens, 2 behind each of them, 1 behind each of those

    Args:
        parents: for each node, -1 where it follows the text, or the number of the node that it follows, which is
            before it in this list. 1 to 64 nodes. Children are tried in their order, so the likeliest comes first.

    Raises:
        ValueError: more nodes, or none; a parent that is not before its child, so that there are no cycles.
        TypeError: parents that are no numbers.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self._core = _C.TokenTree(_numbers("parents", parents))

    @classmethod
    def from_branching(cls, widths: Sequence[int]) -> TokenTree:
        """A tree in which every node of depth d has ``widths[d]`` children, the text itself being of depth 0.

        Raises:
            ValueError: no widths, one below 1, or more than 64 nodes in all.
        """
        tree = cls.__new__(cls)
        tree._core = _C.TokenTree.from_branching(_numbers("branching", widths))
        return tree

    @property
    def core(self) -> _C.TokenTree:
        """The same in C++ (core/token_tree.h)."""
        return self._core

    def __len__(self) -> int:
        return len(self._core)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTree) and self.parents == other.parents

    def __hash__(self) -> int:
        return hash(tuple(self.parents))

    def __repr__(self) -> str:
        return f"TokenTree({self.parents})"

    @cached_property
    def parents(self) -> list[int]:
        parents: list[int] = self._core.parents.tolist()
        return parents

    @cached_property
    def depths(self) -> list[int]:
        """Of each node: 1 where it follows the text."""
        depths: list[int] = self._core.depths.tolist()
        return depths

    @property
    def max_depth(self) -> int:
        """The greatest of :attr:`depths`."""
        return self._core.max_depth

    @cached_property
    def inner(self) -> list[int]:
        """The nodes that have children, ascending; -1, the text, is the first."""
        return [i - 1 for i in np.flatnonzero(self._core.inner_ranks >= 0).tolist()]

    def children(self, node: int) -> list[int]:
        """Of a node, or of the text, -1."""
        return self._children[node + 1]

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return children

    def mask(self) -> Tensor:
        """(n + 1, n + 1) bool: entry i sees entry j. Entry 0 is the last token of the text, and i + 1 is node i."""
        return torch.from_numpy(self._core.mask())

    @cached_property
    def paths(self) -> Tensor:
        """(n + 1, max_depth) int64: the nodes on the way to each entry, and -1 behind it."""
        return torch.from_numpy(self._core.paths())

    @cached_property
    def entry_depths(self) -> Tensor:
        """(n + 1,) int64: depths of the entries."""
        return torch.tensor([0, *self.depths])

    def by_depth(self) -> TokenTree:
        """The same tree with its nodes level by level."""
        order = sorted(range(len(self)), key=lambda node: self.depths[node])
        place = {node: i for i, node in enumerate(order)} | {-1: -1}
        return TokenTree([place[self.parents[node]] for node in order])

    def first(self, nodes: int, depth: int) -> TokenTree:
        """Its first nodes, at most as many and as deep; of a tree by depth, and at least one of each."""
        count = sum(d <= depth for d in self.depths[:nodes])
        return self if count == len(self) else _cut(self, count)


@lru_cache(maxsize=256)
def _cut(tree: TokenTree, count: int) -> TokenTree:
    return TokenTree(tree.parents[:count])


def as_tree(given: TokenTree | Sequence[int]) -> TokenTree:
    """A tree, or the widths of one."""
    if isinstance(given, TokenTree):
        return given
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return TokenTree.from_branching(given)
    raise TypeError(f"tree: expected a TokenTree or the widths of its levels, got {given!r}")


def _numbers(name: str, given: Sequence[int]) -> list[int]:
    try:
        numbers = [index(number) for number in given if not isinstance(number, bool)]
    except TypeError:
        numbers = []
    if len(numbers) != len(given):
        raise TypeError(f"{name}: expected ints, got {given!r}")
    if any(not -(2**63) <= number < 2**63 for number in numbers):
        raise ValueError(f"{name}: expected numbers of a tree of at most 64 nodes, got {given!r}")
    return numbers
