from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch
from aegis.train.compare import Side, compare, first_difference
from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.settings import Settings, make_loader, make_trainer
from aegis.train.trainer import Batch, TrainConfig, Trainer, endless, train, validation_batches
from torch.utils.data import DataLoader, TensorDataset

CPU = torch.device("cpu")


def small_trainer(dropout: float = 0.0, **config: float) -> Trainer:
    torch.manual_seed(3)
    model = MicroGPT(MicroGPTConfig(vocab_size=16, block_size=8, layers=1, heads=2, width=16, dropout=dropout))
    defaults = {"steps": 10, "batch_size": 4, "lr": 1e-2}
    return Trainer(model, TrainConfig(**{**defaults, **config}), vocab_size=16, device=CPU)


def random_batches(count: int, seed: int = 0, vocabulary: int = 16) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        window = torch.randint(0, vocabulary, (4, 9), generator=generator)
        yield [window[:, :-1], window[:, 1:]]


def losses(trainer: Trainer) -> list[float]:
    return [record.loss for record in trainer.records]


@pytest.mark.parametrize("kind", ["aegis", "torch"])
def test_the_loss_falls_through_either_loader(settings: Callable[..., Settings], kind: str) -> None:
    chosen = settings(loader=kind)
    trainer = make_trainer(chosen, device=CPU)
    loader = make_loader(kind, chosen, num_workers=0, device=CPU)
    train(trainer, endless(loader))
    assert trainer.step == 40
    assert abs(trainer.records[0].loss - math.log(256)) < 0.3
    assert trainer.records[-1].loss < 3.0
    assert trainer.records[-1].val_loss < 3.0
    assert all(record.tokens == 8 * 32 for record in trainer.records)


@pytest.mark.parametrize("workers", [0, 1])
def test_both_loaders_give_the_same_losses_bit_for_bit(settings: Callable[..., Settings], workers: int) -> None:
    chosen = settings(steps=25, eval_every=10)
    sides = []
    for kind in ("aegis", "torch"):
        trainer = make_trainer(chosen, device=CPU)
        loader = make_loader(kind, chosen, num_workers=workers, device=CPU, torch_order=True)
        sides.append(Side(kind, trainer, endless(loader)))
    compare(sides, turn=4)
    assert [side.trainer.step for side in sides] == [25, 25]
    assert first_difference(sides[0].trainer.records, sides[1].trainer.records) is None
    assert len(set(losses(sides[0].trainer))) > 20


def test_compare_keeps_each_sides_random_state_apart() -> None:
    alone = small_trainer(dropout=0.3)
    state = torch.get_rng_state()
    train(alone, random_batches(10))
    torch.set_rng_state(state)
    sides = [Side(name, small_trainer(dropout=0.3), random_batches(10)) for name in "ab"]
    outside = torch.get_rng_state()
    compare(sides, turn=3)
    assert losses(sides[0].trainer) == losses(sides[1].trainer) == losses(alone)
    assert torch.equal(torch.get_rng_state(), outside)


def test_first_difference_names_the_first_and_sees_a_missing_step() -> None:
    left, right = small_trainer(), small_trainer()
    train(left, random_batches(10))
    train(right, (batch for part in (random_batches(4), random_batches(6, seed=9)) for batch in part))
    assert first_difference(left.records, right.records) == 4
    assert first_difference(left.records, left.records[:7]) == 7
    assert first_difference(left.records, left.records) is None


def test_stop_is_asked_between_steps() -> None:
    trainer = small_trainer()
    train(trainer, random_batches(10), stop=lambda: trainer.step == 3)
    assert [record.step for record in trainer.records] == [1, 2, 3]


def test_gradients_are_clipped_to_norm_one() -> None:
    trainer = small_trainer(grad_clip=1.0)
    seen = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(math.sqrt(sum(w.grad.square().sum() for w in trainer.model.parameters())))
    )
    for group in trainer.optimizer.param_groups:
        for weight in group["params"]:
            weight.register_hook(lambda gradient: gradient * 1e4)
    trainer.advance(random_batches(1))
    assert seen == [pytest.approx(1.0, rel=1e-4)]


def test_schedule_rises_linearly_then_falls_to_a_tenth() -> None:
    config = TrainConfig(steps=1000, batch_size=1, lr=2.0)
    rates = [config.learning_rate(step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.02)
    assert rates[99] == pytest.approx(2.0) == max(rates)
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] == pytest.approx(0.2, rel=1e-3)
    assert TrainConfig(steps=1, batch_size=1, lr=2.0).learning_rate(0) == 2.0
    assert TrainConfig(steps=1000, batch_size=1, lr=2.0, last=0.0).learning_rate(1000) == 0.0
    assert TrainConfig(steps=1000, batch_size=1, lr=2.0, last=1.0).learning_rate(1000) == 2.0


def test_validation_windows_are_spread_and_always_the_same() -> None:
    data = TensorDataset(torch.arange(1000).unsqueeze(1), torch.arange(1, 1001).unsqueeze(1))
    batches = validation_batches(data, batch_size=4, count=3)
    assert [batch[0].shape for batch in batches] == [(4, 1)] * 3
    inputs = torch.cat([batch[0] for batch in batches]).flatten().tolist()
    assert inputs == [i * 1000 // 12 for i in range(12)]
    few = validation_batches(TensorDataset(torch.arange(5), torch.arange(5)), batch_size=4, count=3)
    assert [len(batch[0]) for batch in few] == [4, 1]


def test_endless_starts_a_new_epoch_and_refuses_an_empty_one() -> None:
    data = TensorDataset(torch.arange(6))
    loader = DataLoader(data, batch_size=4, drop_last=True)
    assert [batch[0].tolist() for batch in islice(endless(loader), 3)] == [[0, 1, 2, 3]] * 3
    with pytest.raises(ValueError, match="data: expected at least one batch an epoch, got none"):
        next(endless(DataLoader(data, batch_size=7, drop_last=True)))


def test_ids_outside_the_vocabulary_are_refused_and_the_weights_stay() -> None:
    trainer = small_trainer()
    before = [weight.clone() for weight in trainer.model.parameters()]
    with pytest.raises(ValueError, match=r"vocab_size: expected ids below 16, got \d+ in the data"):
        trainer.advance(random_batches(1, vocabulary=500))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.step == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"batch_size": -1}, "batch_size: expected at least 1, got -1"),
        ({"lr": 0.0}, "lr: expected a positive rate, got 0.0"),
        ({"lr": math.nan}, "lr: expected a positive rate, got nan"),
    ],
)
def test_bad_config(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{"steps": 1, "batch_size": 1, **change})
