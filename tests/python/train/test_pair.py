"""A target and its draft, trained together."""

from dataclasses import replace

import pytest
import torch
from aegis.train.checkpoint import save_checkpoint
from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.pair import Pair, agreement, load_pair, make_pair, pair_settings, train_pair
from aegis.train.presets import PRESETS
from aegis.train.settings import make_trainer


def tiny(seed=0, width=16):
    torch.manual_seed(seed)
    return MicroGPT(MicroGPTConfig(vocab_size=16, block_size=8, layers=1, heads=2, width=width))


def test_the_draft_learns_from_the_target_and_teaches_it_nothing():
    pair = Pair(tiny(), tiny(1, width=8))
    alone = tiny()
    text = torch.randint(0, 16, (4, 9))
    inputs, targets = text[:, :-1], text[:, 1:]
    loss = pair(inputs, targets)
    p, q = pair.target(inputs).softmax(2), pair.draft(inputs).softmax(2)
    divergence = (p * (p / q).log()).sum(2).mean()
    torch.testing.assert_close(loss, alone(inputs, targets) + divergence)
    loss.backward()
    alone(inputs, targets).backward()
    for mine, theirs in zip(pair.target.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert all(weight.grad is not None and weight.grad.any() for weight in pair.draft.parameters())


def test_a_draft_comes_to_agree():
    pair = Pair(tiny(), tiny(1, width=8))
    optimizer = torch.optim.Adam(pair.parameters(), 1e-2)
    text = torch.arange(9).repeat(4, 1)
    for _ in range(60):
        optimizer.zero_grad()
        loss = pair(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss < 0.5
    inputs = text[:, :-1]
    assert torch.equal(pair.target(inputs).argmax(2), pair.draft(inputs).argmax(2))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    (tmp_path / "text.py").write_text("x = [1, 2, 3]\n" * 300)
    monkeypatch.setattr("aegis.train.text.standard_library", lambda: [tmp_path / "text.py"])
    for name in ("micro", "draft"):
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], layers=1, width=PRESETS[name].heads * 4))
    return pair_settings(tmp_path / "out", steps=2)


def test_trained_pair_is_read_back(settings, tmp_path):
    path, steps = tmp_path / "out" / "checkpoint.pt", []
    pair = train_pair(path, settings, on_step=lambda record: steps.append(record.step))
    assert steps == [1, 2]
    again, saved = load_pair(path)
    assert saved == settings
    assert not again.training
    for name, weight in pair.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    found = agreement(again, settings)
    assert 0 < found.loss < 8
    assert 0 <= found.same <= 1
    assert 0 < found.overlap <= 1
    same = agreement(Pair(again.target, again.target), settings)
    assert same.same == 1
    assert same.overlap == pytest.approx(1)


def test_checkpoint_of_one_model_is_refused(settings, tmp_path):
    trainer = make_trainer(settings, device=torch.device("cpu"))
    save_checkpoint(tmp_path / "one.pt", trainer, vars(settings), {})
    with pytest.raises(ValueError, match=r"one\.pt: expected a target and a draft, got a checkpoint of another model"):
        load_pair(tmp_path / "one.pt")


def test_the_draft_is_a_sixth_of_its_target(tmp_path):
    (tmp_path / "text.txt").write_text("text")
    settings = pair_settings(tmp_path, steps=1)
    pair = make_pair(settings)
    assert 6 <= pair.target.parameter_count() / pair.draft.parameter_count() < 7
