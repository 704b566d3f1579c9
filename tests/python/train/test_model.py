from __future__ import annotations

import math

import pytest
import torch
from aegis.train.model import MicroGPT, MicroGPTConfig, parameter_groups

TINY = {"vocab_size": 64, "block_size": 16, "layers": 2, "heads": 2, "width": 32}


def test_the_rfc_model_has_10_7_million_parameters() -> None:
    with torch.device("meta"):
        model = MicroGPT(MicroGPTConfig(vocab_size=256))
    matrices = 6 * 12 * 384 * 384
    assert model.parameter_count(positions=False) == matrices + 256 * 384 + 13 * 384 == 10_720_128
    assert model.parameter_count() == 10_720_128 + 256 * 384


def test_tied_embedding_is_one_parameter_and_is_used_for_the_logits() -> None:
    model = MicroGPT(MicroGPTConfig(**TINY))
    inputs = torch.randint(0, 64, (2, 16))
    before = model(inputs)
    with torch.no_grad():
        model.tokens.weight[63] = 0.0
    after = model(inputs[inputs != 63][:8].view(1, 8))
    assert before.shape == (2, 16, 64)
    assert torch.equal(after[..., 63], torch.zeros(1, 8))


def test_logits_depend_on_no_later_token() -> None:
    model = MicroGPT(MicroGPTConfig(**TINY)).eval()
    inputs = torch.randint(0, 64, (1, 16))
    changed = inputs.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 64
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_loss_is_the_cross_entropy_and_starts_near_uniform() -> None:
    torch.manual_seed(0)
    model = MicroGPT(MicroGPTConfig(**TINY))
    x, y = torch.randint(0, 64, (4, 16)), torch.randint(0, 64, (4, 16))
    log_probabilities = model(x).log_softmax(-1)
    expected = -log_probabilities.gather(-1, y.unsqueeze(-1)).mean()
    torch.testing.assert_close(model(x, y), expected)
    assert abs(expected.item() - math.log(64)) < 0.1


def test_only_matrices_decay() -> None:
    model = MicroGPT(MicroGPTConfig(**TINY))
    decay, plain = parameter_groups(model, 0.1)
    assert (decay["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {w.ndim for w in decay["params"]} == {2}
    assert {w.ndim for w in plain["params"]} == {1}
    counted = sum(w.numel() for group in (decay, plain) for w in group["params"])
    assert counted == model.parameter_count()


def test_dropout_acts_in_training_only() -> None:
    model = MicroGPT(MicroGPTConfig(**TINY, dropout=0.5))
    inputs = torch.randint(0, 64, (1, 16))
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers: expected at least 1, got 0"),
        ({"heads": 3}, r"width: expected a multiple of heads \(3\), got 32"),
        ({"dropout": 1.0}, r"dropout: expected a value in \[0, 1\), got 1.0"),
    ],
)
def test_bad_sizes(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MicroGPTConfig(**{**TINY, **change})


def test_more_tokens_than_positions() -> None:
    model = MicroGPT(MicroGPTConfig(**TINY))
    with pytest.raises(ValueError, match="inputs: expected at most 16 tokens, got 17"):
        model(torch.zeros(1, 17, dtype=torch.int64))
