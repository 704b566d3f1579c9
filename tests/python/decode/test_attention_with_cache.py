"""attn_implementation="aegis" over whole buffers of a SlottedStaticCache against SDPA over a DynamicCache."""

import aegis.decode
import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="4.57")
from test_attention import MODELS, Calls, generate, model_of, prompts, reference  # noqa: E402

NAMES = [name for name in MODELS if name != "GptOss"]


def cache_of(model, batch, length, **options):
    model.set_attn_implementation("aegis")
    return aegis.decode.SlottedStaticCache.from_config(model.config, batch, length, **options)


@pytest.mark.parametrize("rollback", [0, 5])
@pytest.mark.parametrize(("batch", "padded"), [(1, False), (4, False), (4, True)], ids=["1", "4", "4 padded"])
@pytest.mark.parametrize("name", MODELS)
def test_generate(name, batch, padded, rollback):
    """Sliding layers keep 9 or 14 positions of 33: they wrap around in the prompt and again while decoding."""
    model, (ids, mask) = model_of(name), prompts(batch, padded)
    want = generate(model, reference(name), ids, mask)
    cache = cache_of(model, batch, 64, rollback=rollback)
    with Calls() as calls:
        got = generate(model, "aegis", ids, mask, past_key_values=cache)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)
    assert cache.row_lengths == [32] * batch
    assert calls.decodes == (0 if name == "GptOss" else 19 * len(cache.layers))


@pytest.mark.parametrize("name", NAMES)
def test_what_other_slots_hold_does_not_matter_case7(name):
    """The buffers are full of NaN before the first token."""
    model, (ids, mask) = model_of(name), prompts(4, True)
    want = generate(model, reference(name), ids, mask)
    cache = cache_of(model, 4, 64, dtype=torch.float32, device="cpu")
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    got = generate(model, "aegis", ids, mask, past_key_values=cache)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_masks_with_holes(name):
    model, (ids, mask) = model_of(name), prompts(4, True)
    mask[0, 4:12] = 0
    mask[2, 9] = 0
    want = generate(model, reference(name), ids, mask, tokens=8)
    got = generate(model, "aegis", ids, mask, tokens=8, past_key_values=cache_of(model, 4, 32))
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_batch_over_the_first_rows(name):
    model, (ids, mask) = model_of(name), prompts(2, True)
    want = generate(model, reference(name), ids, mask)
    got = generate(model, "aegis", ids, mask, past_key_values=cache_of(model, 5, 64))
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_different_lengths(name):
    """Each row is prefilled alone; then all are decoded together, in an order of their own."""
    model, ids = model_of(name), prompts(3, False, 30)[0]
    lengths = [5, 20, 11]
    cache = cache_of(model, 4, 64)
    rows = [cache.acquire_row() for _ in lengths]
    order = [2, 0, 1]
    with torch.no_grad():
        for row, length in zip(rows, lengths, strict=True):
            with cache.rows([row]):
                model(ids[row : row + 1, :length], past_key_values=cache)
        steps = []
        for step in range(4):
            token = torch.stack([ids[row, lengths[row] + step] for row in order])[:, None]
            with cache.rows(order):
                arguments = {"position_ids": cache.position_ids(), "attention_mask": cache.attention_mask()}
                steps.append(model(token, past_key_values=cache, **arguments).logits[:, 0])
        model.set_attn_implementation(reference(name))
        for place, row in enumerate(order):
            whole = model(ids[row : row + 1, : lengths[row] + 4]).logits[0, lengths[row] :]
            got = torch.stack([logits[place] for logits in steps])
            torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-4)


def test_capacity_case8():
    """An overflow is found before anything is written, and generation goes on afterwards."""
    model, (ids, mask) = model_of("Llama"), prompts(2, False)
    cache = cache_of(model, 2, 16)
    with pytest.raises(ValueError, match="16"):
        generate(model, "aegis", ids, mask, past_key_values=cache)
    assert cache.row_lengths == [16, 16]
    cache.reset()
    want = generate(model, "sdpa", ids, mask, tokens=4)
    got = generate(model, "aegis", ids, mask, tokens=4, past_key_values=cache)
    assert torch.equal(got[0], want[0])
