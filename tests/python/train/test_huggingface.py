"""A MicroGPT as a model of transformers gives the same logits."""

import pytest
import torch
from aegis.train.model import MicroGPT, MicroGPTConfig

pytest.importorskip("transformers", reason="transformers is not installed")

from aegis.train.huggingface import to_transformers


@pytest.mark.parametrize("sizes", [{"layers": 1, "heads": 1, "width": 16}, {"layers": 3, "heads": 4, "width": 32}])
def test_logits_are_those_of_the_original(sizes):
    torch.manual_seed(0)
    model = MicroGPT(MicroGPTConfig(vocab_size=50, block_size=24, **sizes)).eval()
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)  # norms that are not one, so that none is mixed up
    tokens = torch.randint(50, (2, 24))
    converted = to_transformers(model)
    with torch.no_grad():
        torch.testing.assert_close(converted(input_ids=tokens).logits, model(tokens), rtol=1e-4, atol=1e-4)


def test_embeddings_stay_tied_and_weights_are_copies():
    model = MicroGPT(MicroGPTConfig(vocab_size=20, block_size=8, layers=1, heads=1, width=8))
    converted = to_transformers(model)
    assert converted.lm_head.weight.data_ptr() == converted.get_input_embeddings().weight.data_ptr()
    assert converted.lm_head.weight.data_ptr() != model.tokens.weight.data_ptr()
