"""What was written into a cache and is no more part of a text is not seen by anybody, also where it is NaN: masked
attention gives it a weight of 0, and 0 times NaN is NaN."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import register_attention

POISON = tiny_models.VOCABULARY - 1


def prompts(rows, length, seed=1):
    return tiny_models.prompts(rows, length, seed) % POISON


def poisoned(attention=None, dtype=torch.float32):
    """A layer with a window, one without, and a token that is NaN in both."""
    register_attention()
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    model = tiny_models.make("gemma3", dtype, attention, **layers)
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    return model


def forward(model, cache, ids, **options):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits[..., :POISON]  # the head's weights are the tokens'


def feed(model, cache, row, ids):
    with cache.rows([row]):
        return forward(model, cache, ids)


def nans(count):
    return torch.full((1, count), POISON)


def freed(model, cache):
    feed(model, cache, 1, nans(30))
    cache.free_row(1)


def emptied(model, cache):
    for row in range(3):
        feed(model, cache, row, nans(30))
    cache.reset()


def cropped(model, cache):
    feed(model, cache, 1, prompts(1, 2))
    feed(model, cache, 1, nans(6))
    with cache.rows([1]):
        cache.crop(-8)


def died(model, cache):
    class Dies(BaseException):
        pass

    def die(*_):
        raise Dies

    hook = model.model.layers[1].register_forward_pre_hook(die)
    with pytest.raises(Dies):
        feed(model, cache, 1, nans(30))
    hook.remove()


def carried(model, cache):
    """Free rows of a step get tokens, too, which are left there."""
    feed(model, cache, 0, prompts(1, 3))
    with cache.step(5):
        options = {"attention_mask": cache.attention_mask(5, 3), "position_ids": cache.position_ids(5, 3)}
        forward(model, cache, torch.cat([prompts(1, 5), nans(5), nans(5)]), **options)
    cache.free_row(0)


def moved(model, cache):
    feed(model, cache, 0, prompts(1, 12))
    feed(model, cache, 1, torch.cat([prompts(1, 3), nans(6)], 1))
    with cache.rows([1]):
        cache.crop(-6)
    cache.reorder_cache(torch.tensor([1, 0, 1]))
    for row in range(3):
        with cache.rows([row]):
            cache.crop(-20)


EVENTS = [freed, emptied, cropped, died, carried, moved]


def uneven(model, cache, ids, how):
    tokens = ids.shape[1]
    if how == "step":
        with cache.step(tokens):
            options = {"attention_mask": cache.attention_mask(tokens), "position_ids": cache.position_ids(tokens)}
            return forward(model, cache, ids, **options)
    options = {"attention_mask": cache.attention_mask(tokens), "position_ids": cache.position_ids(tokens)}
    return forward(model, cache, ids, **options)


def decoded(model, make, event, how):
    """Logits of passes over three rows of different lengths, in a cache in which something happened before."""
    cache = make(model.config)
    if event is not None:
        event(model, cache)
    for row, length in enumerate((2, 14, 7)):
        feed(model, cache, row, prompts(1, length, seed=row))
    logits = []
    for tokens in (1, 4):
        logits.append(uneven(model, cache, prompts(3, tokens, seed=tokens), how))
        cache.crop([-(tokens // 2), -(tokens // 3), 0])
    return torch.cat([one.flatten() for one in logits])


def slotted(config):
    return aegis.SlottedStaticCache(config, 3, 40, rollback=12)


def paged(config):
    return aegis.PagedKVCache(config, 3, 40, pages=24, block_size=5)


@pytest.mark.parametrize("how", ["eager", "step"])
@pytest.mark.parametrize(
    ("attention", "dtype"),
    [("sdpa", torch.float32), ("eager", torch.float32), ("aegis", torch.float32), ("aegis", torch.float64)],
    ids=["sdpa", "eager", "aegis", "aegis beside its operator"],
)
@pytest.mark.parametrize("make", [slotted, paged])
def test_no_nan_of_others_or_of_what_was_taken_back(make, attention, dtype, how):
    model = poisoned(attention, dtype)
    want = decoded(model, make, None, how)
    assert want.isfinite().all()
    for event in EVENTS:
        got = decoded(model, make, event, how)
        assert torch.equal(got, want), event.__name__


def test_attention_reads_no_further_than_the_longest_row():
    """Where it is handed whole buffers of rows that are equally long, and is not the operator's."""
    register_attention()
    model = tiny_models.make("llama", torch.float64, "aegis")
    cache = aegis.SlottedStaticCache(model.config, 2, 40, dtype=torch.float64, device="cpu")
    for layer in cache.layers:
        layer.keys[:, :, 13:].fill_(torch.nan)
        layer.values[:, :, 13:].fill_(torch.inf)
    forward(model, cache, prompts(2, 12))
    assert forward(model, cache, prompts(2, 1)).isfinite().all()
