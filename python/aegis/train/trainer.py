"""The training loop: warm-up and cosine decay, one measured step at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from aegis.evidence.chain import IntegrityChain
from aegis.train.meter import Meter, StepRecord
from aegis.train.model import parameter_groups

__all__ = ["Batch", "Optimizer", "TrainConfig", "Trainer", "adamw", "endless", "train", "validation_batches"]

Batch = Sequence[Tensor]  # [inputs, targets], each (batch, block_size) int64


@dataclass(frozen=True)
class TrainConfig:
    """What shapes the losses, apart from model and data; all of it is kept in checkpoints.

    The learning rate rises linearly over the first tenth of the steps (100 at most), then falls along a
    cosine to ``last`` of ``lr``.

    Raises:
        ValueError: a count below 1, a rate that is not positive, or ``last`` outside [0, 1].
    """

    steps: int
    batch_size: int
    lr: float = 1e-3
    seed: int = 0
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    eval_every: int = 100
    last: float = 0.1

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.lr > 0.0:
            raise ValueError(f"lr: expected a positive rate, got {self.lr}")
        if not 0.0 <= self.last <= 1.0:
            raise ValueError(f"last: expected a share in [0, 1], got {self.last}")

    def learning_rate(self, step: int) -> float:
        """The rate of update number ``step``, counted from 0."""
        warmup = min(100, self.steps // 10)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, self.steps - warmup))
        return self.lr * (self.last + (1.0 - self.last) * 0.5 * (1.0 + math.cos(math.pi * done)))


class Optimizer(Protocol):
    """What a trainer asks of one."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    def step(self) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """The optimizer of ``aegis train``."""
    return torch.optim.AdamW(parameter_groups(model, config.weight_decay), lr=config.lr, betas=(0.9, 0.95), fused=True)


class Trainer:
    """A model with its optimizer, its place in the schedule and the record of every step so far.

    Args:
        model: called as ``model(inputs, targets)``, returns the mean loss; moved to ``device``.
        vocab_size: ids at or above it are an error that says so, before the model sees them.
        validation: batches on the CPU; their mean loss is taken every ``config.eval_every`` steps.
        compile: run the model through ``torch.compile``.
        chain: gets the number and the loss of every step.
        optimizer: makes that of the model, which is on the device by then.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        vocab_size: int,
        device: torch.device,
        validation: Sequence[Batch] = (),
        compile: bool = False,
        chain: IntegrityChain | None = None,
        optimizer: Callable[[nn.Module, TrainConfig], Optimizer] = adamw,
    ) -> None:
        self.model = model.to(device)
        self.config = config
        self.vocab_size = vocab_size
        self.device = device
        self.validation = validation
        self.chain = chain
        self.records: list[StepRecord] = []
        self.optimizer = optimizer(model, config)
        self._loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(model) if compile else model
        self._meter = Meter()

    @property
    def step(self) -> int:
        """Updates done."""
        return len(self.records)

    def advance(self, batches: Iterator[Batch]) -> StepRecord:
        """Take one batch and do one update; the record of it is kept and returned.

        Raises:
            ValueError: a token id outside the vocabulary; the weights are as they were.
        """
        lr = self.config.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._meter.start()
        inputs, targets = self._meter.next(batches)
        self._check_ids(inputs, targets)
        loss = self._loss(self._move(inputs), self._move(targets))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if self.chain is not None:
            self.chain.add(self.step + 1, value)
        record = self._meter.stop(step=self.step + 1, tokens=inputs.numel(), loss=value, lr=lr)
        self.records.append(record)
        if self.validation and (self.step % self.config.eval_every == 0 or self.step == self.config.steps):
            record.val_loss = self.evaluate()
        return record

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation batches, in nats per token."""
        self.model.eval()
        losses = [self._loss(self._move(x), self._move(y)).item() for x, y in self.validation]
        self.model.train()
        return sum(losses) / len(losses)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _check_ids(self, inputs: Tensor, targets: Tensor) -> None:
        largest = max(int(inputs.max()), int(targets.max()))
        if largest >= self.vocab_size:
            raise ValueError(f"vocab_size: expected ids below {self.vocab_size}, got {largest} in the data")


def train(
    trainer: Trainer,
    batches: Iterator[Batch],
    *,
    on_step: Callable[[StepRecord], None] = lambda record: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Advance until ``config.steps`` are done, or until ``stop()`` says so between two steps."""
    while trainer.step < trainer.config.steps and not stop():
        on_step(trainer.advance(batches))


def endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    """The batches of one epoch after another; each epoch is a new ``iter(loader)``.

    Raises:
        ValueError: an epoch without a batch.
    """
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise ValueError("data: expected at least one batch an epoch, got none (batch_size too large?)")


class Windows(Protocol):
    """A map-style data set of (inputs, targets)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Tensor, ...]: ...


def validation_batches(dataset: Windows, batch_size: int, count: int) -> list[Batch]:
    """At most ``count`` batches of windows spread evenly over ``dataset``: the same ones in every run."""
    windows = min(len(dataset), batch_size * count)
    picked = [dataset[i * len(dataset) // windows] for i in range(windows)]
    return [
        [torch.stack(part) for part in zip(*picked[start : start + batch_size], strict=True)]
        for start in range(0, windows, batch_size)
    ]
