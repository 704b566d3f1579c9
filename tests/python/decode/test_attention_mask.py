"""The mask function of attn_implementation="aegis" against transformers' own for SDPA."""

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="4.57")
from aegis.decode.attention_mask import is_spans, make_mask, slot_mask  # noqa: E402
from transformers.masking_utils import causal_mask_function, sdpa_mask  # noqa: E402


@pytest.mark.parametrize("window", [0, 1, 5, 30])
def test_slot_mask(window):
    spans = torch.tensor([[0, 0], [0, 7], [3, 10], [12, 19], [30, 36]]).view(5, 1, 1, 2)
    mask = slot_mask(spans, 7, window)
    assert mask.shape == (5, 1, 1, 7)
    for row, (start, end) in zip(mask[:, 0, 0], spans.view(5, 2).tolist(), strict=True):
        live = {p % 7 for p in range(max(start, end - window) if window else start, end)}
        assert set(row.nonzero().flatten().tolist()) == live


def mask_arguments(batch, length, attention_mask=None, **other):
    if transformers.__version__.startswith("4."):
        query = {"cache_position": torch.tensor([length - 1])}
    else:
        query = {"q_length": 1, "q_offset": length - 1, "device": "cpu"}
    return {"batch_size": batch, "kv_length": length, "attention_mask": attention_mask, **query, **other}


def test_mask_function_makes_spans():
    assert make_mask(**mask_arguments(2, 9)).tolist() == [[[[0, 9]]]] * 2
    padding = torch.ones(2, 9, dtype=torch.bool)
    assert make_mask(**mask_arguments(2, 9, padding)).tolist() == [[[[0, 9]]]] * 2
    padding[1, :4] = False
    assert make_mask(**mask_arguments(2, 9, padding)).tolist() == [[[[0, 9]]], [[[4, 9]]]]
    assert make_mask(**mask_arguments(2, 9, padding.long())).tolist() == [[[[0, 9]]], [[[4, 9]]]]
    padding[0, 3] = False
    mask = make_mask(**mask_arguments(2, 9, padding))
    assert not is_spans(mask)
    assert torch.equal(mask, sdpa_mask(**mask_arguments(2, 9, padding)))


def test_mask_function_of_other_patterns():
    def window(batch, head, query, key):
        return (key > query - 3) & (key <= query)

    def even(batch, head, query, key):
        return (key % 2 == 0) & (key <= query)

    assert make_mask(**mask_arguments(2, 9, mask_function=window, local_size=3)).tolist() == [[[[6, 9]]]] * 2
    mask = make_mask(**mask_arguments(1, 9, mask_function=even, local_size=3))
    assert mask[0, 0, 0].tolist() == [True, False] * 4 + [True]


def test_mask_function_for_more_queries():
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :4] = False
    arguments = mask_arguments(2, 9, padding, mask_function=causal_mask_function)
    if "cache_position" in arguments:
        arguments["cache_position"] = torch.arange(5, 9)
    else:
        arguments |= {"q_length": 4, "q_offset": 5}
    assert torch.equal(make_mask(**arguments), sdpa_mask(**arguments))
