"""Trees of guesses by themselves: shapes, and the rules by which a path is kept, against Python's own."""

import numpy as np
import pytest
import torch
from aegis import _C
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="transformers is not installed")

from aegis.decode import TokenTree
from aegis.decode.trees import as_tree


@st.composite
def trees(draw, most=64):
    count = draw(st.integers(1, most))
    return [draw(st.integers(-1, i - 1)) for i in range(count)]


def way(parents, node):
    """Nodes from the root to this one."""
    return [] if node < 0 else [*way(parents, parents[node]), node]


@given(trees())
def test_shapes(parents):
    tree = TokenTree(parents)
    depths = [len(way(parents, i)) for i in range(len(parents))]
    assert (tree.parents, tree.depths, tree.max_depth) == (parents, depths, max(depths))
    inner = [i for i in range(-1, len(parents)) if i in parents]
    assert tree.inner == inner
    assert [tree.children(i) for i in inner] == [[c for c, p in enumerate(parents) if p == i] for i in inner]
    ranks = tree.core.inner_ranks.tolist()
    assert [i - 1 for i in range(len(ranks)) if ranks[i] >= 0] == inner
    assert [rank for rank in ranks if rank >= 0] == list(range(len(inner)))
    mask = tree.mask()
    for i in range(-1, len(parents)):
        path = way(parents, i)
        assert mask[i + 1].nonzero().flatten().tolist() == sorted([0, *(node + 1 for node in path)])
        assert tree.paths[i + 1].tolist() == path + [-1] * (max(depths) - len(path))
    assert tree.entry_depths.tolist() == [0, *depths]


@given(trees(), st.integers(1, 64), st.integers(1, 64))
def test_by_depth_is_the_same_tree_and_its_beginning_is_one(parents, nodes, depth):
    tree = TokenTree(parents).by_depth()
    assert tree.depths == sorted(tree.depths)

    def shape(tree, node=-1):
        return [shape(tree, child) for child in tree.children(node)]

    assert shape(tree) == shape(TokenTree(parents)), "siblings stay in their order"
    first = tree.first(nodes, depth)
    assert first.parents == tree.parents[: len(first)]
    assert len(first) == sum(d <= depth for d in tree.depths[:nodes])
    assert first == TokenTree(first.parents)


def test_branching():
    tree = TokenTree.from_branching((2, 1, 2))
    assert tree == as_tree([2, 1, 2]) == as_tree(tree)
    assert tree.parents == [-1, -1, 0, 1, 2, 2, 3, 3]
    assert repr(tree) == "TokenTree([-1, -1, 0, 1, 2, 2, 3, 3])"
    assert len({tree, as_tree((2, 1, 2)), TokenTree([-1])}) == 2


@pytest.mark.parametrize(
    ("parents", "error", "message"),
    [
        ([], ValueError, "parents: expected 1 to 64 nodes, got 0"),
        ([-1] * 65, ValueError, "parents: expected 1 to 64 nodes, got 65"),
        ([0], ValueError, r"parents\[0\]: expected -1 \(the root\) or a node before it, got 0"),
        ([-1, 2, 1], ValueError, r"parents\[1\]: expected -1 \(the root\) or a node before it, got 2"),
        ([-1, -2], ValueError, r"parents\[1\]: .*got -2"),
        ([2**70], ValueError, "parents: expected numbers of a tree"),
        ([-1, 0.5], TypeError, "parents: expected ints"),
        ([True], TypeError, "parents: expected ints"),
    ],
)
def test_bad_trees(parents, error, message):
    with pytest.raises(error, match=message):
        TokenTree(parents)


@pytest.mark.parametrize(
    ("widths", "error", "message"),
    [
        ((), ValueError, "branching: expected at least 1 level"),
        ((3, 0), ValueError, r"branching\[1\]: expected at least 1, got 0"),
        ((8, 8), ValueError, "branching: expected at most 64 nodes in all, got more at level 1"),
        ((2**62,), ValueError, "branching: expected at most 64 nodes"),
        (4, TypeError, "tree: expected a TokenTree or the widths"),
        ("42", TypeError, "tree: expected a TokenTree or the widths"),
        ((2.0,), TypeError, "branching: expected ints"),
    ],
)
def test_bad_widths(widths, error, message):
    with pytest.raises(error, match=message):
        as_tree(widths)


# --- which path is kept ------------------------------------------------------------------------------------------


@given(st.data())
def test_follow_picks(data):
    """Trees shared or one for each row, smaller than others, with nodes that are none."""
    rows = data.draw(st.integers(1, 4))
    shapes = data.draw(st.lists(trees(12), min_size=rows, max_size=rows)) if data.draw(st.booleans()) else None
    shapes = shapes or [data.draw(trees(12))] * rows
    shared = all(shape is shapes[0] for shape in shapes)
    count = max(map(len, shapes)) + data.draw(st.integers(0, 2))
    small = st.integers(-1, 2)
    tokens = np.array(data.draw(st.lists(small, min_size=rows * count, max_size=rows * count))).reshape(rows, count)
    picked = np.array(data.draw(st.lists(small, min_size=rows * count + rows, max_size=rows * count + rows)))
    picked = picked.reshape(rows, count + 1)
    cores = [_C.TokenTree(shape) for shape in (shapes[:1] if shared else shapes)]
    kept, nodes, following = _C.follow_picks(cores, tokens, picked)
    for row, parents in enumerate(shapes):
        path, node = [], -1
        while True:
            right = [c for c, p in enumerate(parents) if p == node and tokens[row, c] == picked[row, node + 1] >= 0]
            if not right:
                break
            node = right[0]
            path.append(node)
        assert nodes[row].tolist() == path + [-1] * (nodes.shape[1] - len(path))
        assert (kept[row], following[row]) == (len(path), picked[row, node + 1])


VOCABULARY = 5
ROWS = 100_000


def drawn_children(q, parents, generator):
    """(rows, nodes): tokens of the children of each node, drawn without replacement; q (nodes with children, V) is of
    that node, whatever is before it."""
    inner = [i for i in range(-1, len(parents)) if i in parents]
    tokens = torch.full((ROWS, len(parents)), -1)
    for rank, node in enumerate(inner):
        children = [c for c, p in enumerate(parents) if p == node]
        there = min(len(children), int((q[rank] > 0).sum()))
        noise = q[rank].log() - torch.rand(ROWS, VOCABULARY, generator=generator).log().neg().log()
        tokens[:, children[:there]] = noise.topk(there).indices  # Gumbel: the same as one after the other
    return tokens


@pytest.mark.parametrize("widths", [(1, 1), (3, 2), (5, 1)], ids=str)
@pytest.mark.parametrize("sharp", [0.3, 3.0])
def test_what_is_kept_follows_the_targets_law_case37_case40(widths, sharp):
    """χ² of 10^5 paths, with the laws behind each token fixed: p(first) p(second | first)."""
    generator = torch.Generator().manual_seed(len(widths) + int(sharp))
    tree = TokenTree.from_branching(widths)
    p = torch.softmax(sharp * torch.randn(1 + VOCABULARY, VOCABULARY, generator=generator), 1)
    p[1, 2] = 0
    p /= p.sum(1, keepdim=True)
    q = torch.softmax(sharp * torch.randn(len(tree.inner), VOCABULARY, generator=generator), 1)
    q[0, 3] = 0  # of 5 children of the text, there are 4
    tokens = drawn_children(q, tree.parents, generator)
    behind = torch.cat([p[0].expand(ROWS, 1, -1), p[1 + tokens.clamp(min=0)]], 1)
    state = torch.zeros(ROWS, 4, dtype=torch.int64)
    state[:, 1] = torch.arange(ROWS)
    kept, nodes, following = _C.follow_draws(
        [tree.core], tokens.numpy(), behind.numpy(), q.expand(ROWS, -1, -1).numpy(), state.numpy()
    )
    assert 0 < (kept > 0).mean() <= 1
    first = np.where(kept > 0, np.take_along_axis(tokens.numpy(), nodes[:, :1].clip(0), 1)[:, 0], following)
    second = np.where(kept > 1, np.take_along_axis(tokens.numpy(), nodes[:, 1:].clip(0), 1)[:, 0], following)
    expected = p[0].double().numpy() * ROWS
    check_counts(np.bincount(first, minlength=VOCABULARY), expected)
    for token in range(VOCABULARY):
        there = (kept > 0) & (first == token)
        if there.sum() > 500:
            law = p[1 + token].double().numpy() * there.sum()
            check_counts(np.bincount(second[there], minlength=VOCABULARY), law)


def check_counts(counts, expected):
    assert counts[expected == 0].sum() == 0
    there = expected > 0
    chi = ((counts[there] - expected[there]) ** 2 / expected[there]).sum()
    freedom = there.sum() - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5 + 5, (chi, freedom, counts, expected)


@settings(deadline=None, max_examples=50)
@given(trees(20), st.integers(0, 2**32), st.sampled_from([0.0, float("nan"), float("inf"), 1e-38, 1.0]))
def test_numbers_that_are_no_distribution_give_a_token_of_the_vocabulary(parents, seed, value):
    generator = torch.Generator().manual_seed(seed)
    tree = TokenTree(parents)
    count = len(parents)
    tokens = torch.randint(-1, VOCABULARY, (2, count), generator=generator)
    p = torch.rand(2, count + 1, VOCABULARY, generator=generator)
    q = torch.rand(2, len(tree.inner), VOCABULARY, generator=generator)
    p[0] = value
    q[1, :, 1:] = value
    state = torch.zeros(2, 4, dtype=torch.int64)
    kept, nodes, following = _C.follow_draws([tree.core], tokens.numpy(), p.numpy(), q.numpy(), state.numpy())
    assert ((following >= 0) & (following < VOCABULARY)).all()
    assert ((nodes >= 0).sum(1) == kept).all()


def test_bad_batches():
    tree = _C.TokenTree([-1, 0])
    tokens = np.zeros((2, 2), dtype=np.int64)
    picked, state = np.zeros((2, 3), dtype=np.int64), np.zeros((2, 4), dtype=np.int64)
    p, q = np.ones((2, 3, 5), dtype=np.float32), np.ones((2, 2, 5), dtype=np.float32)
    for message, call in {
        "trees: expected 1 or 2, as many as there are rows, got 3": lambda: _C.follow_picks([tree] * 3, tokens, picked),
        "trees: expected 1 or 2, as many as there are rows, got 0": lambda: _C.follow_picks([], tokens, picked),
        "trees: expected at most 1 nodes": lambda: _C.follow_picks([tree], tokens[:, :1], picked),
        r"picked: expected shape \(2, 3\), got \(2, 2\)": lambda: _C.follow_picks([tree], tokens, tokens),
        r"target: expected shape \(2, 3, 5\)": lambda: _C.follow_draws([tree], tokens, p[:, :2], q, state),
        r"draft: expected shape \(2, 2, 5\)": lambda: _C.follow_draws([tree], tokens, p, q[:, :1], state),
        r"state: expected shape \(2, 4\)": lambda: _C.follow_draws([tree], tokens, p, q, state[:1]),
        "tokens: expected less than 5, the vocabulary, got 5": lambda: _C.follow_draws([tree], tokens + 5, p, q, state),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
