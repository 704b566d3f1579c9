"""A target and its draft, trained together."""

from dataclasses import replace

import pytest
import torch
from aegis.train.checkpoint import load_checkpoint, save_checkpoint
from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.pair import Pair, agreement, draft_steps, load_pair, make_pair, pair_settings, train_pair
from aegis.train.presets import PRESETS
from aegis.train.settings import make_trainer
from aegis.train.trainer import Trainer


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
    for name in ("target", "draft"):
        sizes = {"layers": 1, "width": PRESETS[name].heads * 4, "block_size": 128, "batch_size": 4}
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], **sizes))
    return pair_settings(tmp_path / "out", steps=2)


def test_trained_pair_is_read_back(settings, tmp_path):
    path, steps = tmp_path / "out" / "checkpoint.pt", []
    pair = train_pair(path, settings, on_step=lambda record: steps.append(record.step))
    assert steps == [1, 2, 1]
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


def test_the_draft_goes_on_alone(settings, tmp_path, monkeypatch):
    """Its steps are others than those of both, and leave the target as it was."""
    seen = []

    class Recorded(Trainer):
        def advance(self, batches):
            record = super().advance(batches)
            seen.append({name: weight.clone() for name, weight in self.model.state_dict().items()})
            return record

    monkeypatch.setattr("aegis.train.pair.Trainer", Recorded)
    pair = train_pair(tmp_path / "pair.pt", replace(settings, steps=8))
    assert len(seen) == 8 + draft_steps(replace(settings, steps=8)) == 14
    for name, weight in pair.state_dict().items():
        assert torch.equal(weight, seen[7][name]) == name.startswith("target.")
    assert all(weight.requires_grad for weight in pair.parameters())


def test_text_is_looked_for_beside_the_checkpoint(settings, tmp_path):
    train_pair(tmp_path / "out" / "checkpoint.pt", settings)
    (tmp_path / "out").rename(tmp_path / "moved")
    pair, saved = load_pair(tmp_path / "moved" / "checkpoint.pt")
    assert saved.data == str(tmp_path / "moved" / "train.bin")
    assert agreement(pair, saved).loss > 0


def test_overlap_is_that_at_the_temperature(settings):
    torch.manual_seed(0)
    pair = make_pair(settings)
    cool, warm, hot = (agreement(pair, settings, temperature=t) for t in (0.01, 1.0, 100.0))
    assert cool.overlap < warm.overlap < hot.overlap
    assert cool.overlap == pytest.approx(cool.same, abs=0.1)
    assert hot.overlap == pytest.approx(1, abs=0.01)
    assert cool[:2] == warm[:2] == hot[:2]


def test_checkpoint_of_one_model_is_refused(settings, tmp_path):
    trainer = make_trainer(settings, device=torch.device("cpu"))
    save_checkpoint(tmp_path / "one.pt", trainer, vars(settings), {})
    with pytest.raises(ValueError, match=r"one\.pt: expected a target and a draft.*got a checkpoint of another model"):
        load_pair(tmp_path / "one.pt")


@pytest.mark.parametrize("change", ["sizes", "preset", "settings"])
def test_pair_of_another_version_is_refused(settings, tmp_path, monkeypatch, change):
    train_pair(tmp_path / "pair.pt", settings)
    if change == "sizes":
        monkeypatch.setitem(PRESETS, "draft", replace(PRESETS["draft"], layers=2))
    elif change == "preset":
        monkeypatch.delitem(PRESETS, "target")
    else:
        state = load_checkpoint(tmp_path / "pair.pt")
        state["settings"]["unheard_of"] = 1
        torch.save(state, tmp_path / "pair.pt")
    with pytest.raises(ValueError, match=r"pair\.pt: expected .*got a pair of other sizes \(remove the file"):
        load_pair(tmp_path / "pair.pt")


def test_bfloat16_products_train_float32_weights():
    pair = Pair(tiny(), tiny(1, width=8), products=torch.bfloat16)
    text = torch.randint(0, 16, (4, 9), generator=torch.Generator().manual_seed(0))
    loss = pair(text[:, :-1], text[:, 1:])
    assert loss.dtype == torch.float32
    exact = Pair(pair.target, pair.draft)(text[:, :-1], text[:, 1:])
    assert loss != exact
    torch.testing.assert_close(loss, exact, rtol=0.01, atol=0)
    loss.backward()
    assert {weight.grad.dtype for weight in pair.parameters()} == {torch.float32}


def test_the_draft_is_a_sixth_of_its_target(tmp_path):
    (tmp_path / "text.txt").write_text("text")
    settings = pair_settings(tmp_path, steps=1)
    pair = make_pair(settings)
    assert 6 <= pair.target.parameter_count() / pair.draft.parameter_count() < 7
