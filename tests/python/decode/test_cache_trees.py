"""A pass over a tree of tokens gives each node what it gives alone behind its path, and a path becomes a text."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import TokenTree, register_attention
from aegis.decode.block_decoder import BlockDecoder
from aegis.decode.trees import TreePass

PARENTS = [-1, -1, -1, 0, 0, 2, 3, 3, 5, 7]


def parts(tree, *counts):
    """The tree's entries, the root first, so many at a time."""
    end = 0
    for count in counts:
        end += count
        yield (
            slice(end - count, end),
            TreePass(tree.mask()[None, end - count : end, :end], tree.entry_depths[None, :end]),
        )


def alone(model, prompts, tree, tokens):
    """(rows, entries, V): logits behind each entry's path, every one by a pass of its own."""
    logits = torch.empty(len(prompts), len(tree) + 1, tiny_models.VOCABULARY)
    for row, prompt in enumerate(prompts):
        for entry in range(len(tree) + 1):
            path = [int(tokens[row, node + 1]) for node in tree.paths[entry] if node >= 0]
            text = torch.tensor([[*prompt, int(tokens[row, 0]), *path]])
            logits[row, entry] = model(text).logits[0, -1]
    return logits


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("counts", [(11,), (1, 3, 1, 6), (4, 7)], ids=str)
@torch.no_grad()
def test_each_node_sees_its_path(family, counts):
    """Also one node at a time, where attention reads whole buffers, and behind windows that have wrapped."""
    model = tiny_models.make(family)
    tree = TokenTree(PARENTS).by_depth()
    tokens = torch.randint(1, tiny_models.VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(2))
    ids = tiny_models.prompts(2, 14)
    texts = [ids[0].tolist(), ids[1, 4:].tolist()]
    # transformers 4 does not cap scores with its default attention
    want = alone(tiny_models.make(family, attention="eager"), texts, tree, tokens)
    decoder = BlockDecoder(model, 2, 64, 14)
    with decoder.runner:
        mask = torch.arange(14) >= torch.tensor([0, 4])[:, None]  # the second row is padded
        decoder.prefill(ids * mask, mask.long(), 1024, None)
        got = [decoder.feed(tokens[:, part], 0, shape) for part, shape in parts(tree, *counts)]
    torch.testing.assert_close(torch.cat(got, 1), want, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("lengths", [(14, 14), (20, 11)], ids=str)
@torch.no_grad()
def test_a_path_becomes_a_text(family, lengths):
    """Rows of different lengths: what the cache holds afterwards is what it holds of the text alone."""
    model = tiny_models.make(family)
    tree = TokenTree(PARENTS).by_depth()
    tokens = torch.randint(1, tiny_models.VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(2))
    ids = tiny_models.prompts(2, max(lengths))
    decoder, plain = BlockDecoder(model, 2, 64, 12), BlockDecoder(model, 2, 64, 12)
    paths = [[n for n in tree.paths[entry].tolist() if n >= 0] for entry in (10, 3)]
    ((_, whole),) = parts(tree, 11)
    with decoder.runner, plain.runner:
        decoder.prefill(ids, None, 1024, None)
        decoder.keep(0, lengths)
        addresses = [layer.keys.data_ptr() for layer in decoder.cache.layers]
        decoder.feed(tokens, 0, whole)
        entries = torch.tensor([path + [-1] * (4 - len(path)) for path in paths])
        decoder.keep_path(0, [length + 1 for length in lengths], entries)
        decoder.keep(0, [length + 1 + len(path) for length, path in zip(lengths, paths, strict=True)])
        for row, path in enumerate(paths):
            text = torch.cat([ids[row, : lengths[row]], tokens[row, [0, *(node + 1 for node in path)]]])
            plain.reset()
            plain.prefill(text[None].repeat(2, 1), None, 1024, None)
            assert decoder.cache.row_lengths[row] == len(text)
            for mine, theirs in zip(decoder.cache.layers, plain.cache.layers, strict=True):
                live = torch.arange(max(0, len(text) - (mine.window or 64)), len(text)) % mine.slots
                torch.testing.assert_close(mine.keys[row, :, live], theirs.keys[row, :, live], atol=1e-4, rtol=1e-3)
                torch.testing.assert_close(mine.values[row, :, live], theirs.values[row, :, live], atol=1e-4, rtol=1e-3)
        assert addresses == [layer.keys.data_ptr() for layer in decoder.cache.layers]
        assert decoder.feed(tokens[:, :2], 0).isfinite().all()


@pytest.mark.parametrize("attention", ["eager", "sdpa", "aegis"])
@torch.no_grad()
def test_masks_of_every_attention(attention):
    register_attention()
    model = tiny_models.make("gemma3", attention=attention)
    tree = TokenTree(PARENTS).by_depth()
    tokens = torch.randint(1, tiny_models.VOCABULARY, (1, 11), generator=torch.Generator().manual_seed(2))
    ids = tiny_models.prompts(1, 9)
    cache = aegis.SlottedStaticCache(model.config, 1, 32, rollback=12)
    model(ids, past_key_values=cache)
    ((_, whole),) = parts(tree, 11)
    with cache.tree_pass(whole):
        logits = model(
            tokens,
            past_key_values=cache,
            attention_mask=cache.tree_mask(whole, 1),
            position_ids=cache.tree_positions(whole, 1),
        ).logits
    torch.testing.assert_close(logits, alone(model, ids.tolist(), tree, tokens), atol=2e-4, rtol=2e-3)


@torch.no_grad()
def test_moves_are_all_or_none():
    """The layer with the shortest buffer is asked first."""
    model = tiny_models.make("gemma3")
    cache = aegis.SlottedStaticCache(model.config, 1, 40, rollback=2)
    with pytest.raises(RuntimeError, match="move_tokens: expected a pass before it"):
        cache.move_tokens(torch.tensor([[1]]), torch.tensor([0]))
    model(tiny_models.prompts(1, 30), past_key_values=cache)
    before = [layer.keys.clone() for layer in cache.layers]
    with pytest.raises(IndexError, match=r"sources\[0\]\[0\]: expected -1, or at least 10 and less than 9"):
        cache.move_tokens(torch.tensor([[19]]), torch.tensor([10]))
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before, strict=True))
    with cache.rows([0]):
        cache.move_tokens(torch.tensor([[27]]), torch.tensor([25]))
    assert all(
        torch.equal(layer.keys[:, :, 25 % layer.slots], keys[:, :, 27 % layer.slots])
        for layer, keys in zip(cache.layers, before, strict=True)
    )
