"""The training that arms share: model, data, optimizer and schedule; nothing in it grows with the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import aegis
from aegis.evidence.arm import Arm
from aegis.evidence.chain import IntegrityChain
from aegis.evidence.rounding import round_weights_
from aegis.runtime.precision import set_tf32
from aegis.train.model import parameter_groups
from aegis.train.settings import Settings, make_dataset, make_loader, micro_gpt
from aegis.train.trainer import Batch, endless, validation_batches

__all__ = ["ArmTraining", "arm_loader", "check_data"]

_WARMUP_STEPS = 20
_VALIDATION_BATCHES = 8


def check_data(settings: Settings) -> None:
    """Raises OSError or ValueError where the data cannot be opened or does not make one batch."""
    windows = len(make_dataset(settings.data, settings))
    if windows < settings.batch_size:
        raise ValueError(
            f"batch_size: expected at most {windows}, the windows in {settings.data}, got {settings.batch_size}"
        )
    if settings.val_data and len(make_dataset(settings.val_data, settings)) == 0:
        raise ValueError(
            f"val_data: expected at least one window of {settings.block_size} tokens in {settings.val_data}"
        )


def arm_loader(arm: Arm, settings: Settings, *, workers: int, device: torch.device, order: Path | None) -> Any:
    """The arm's loader, shuffled by torch's generator, or in an order that was recorded.

    Args:
        order: a ``.npy`` file of the sample numbers of all batches, one after the other.
    """
    if order is None:
        return make_loader(arm.loader, settings, num_workers=workers, device=device, torch_order=True)
    kind = aegis.FlatArenaDataLoader if arm.loader == "aegis" else DataLoader
    return kind(
        make_dataset(settings.data, settings),
        batch_size=settings.batch_size,
        sampler=np.load(order, allow_pickle=False).tolist(),
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
    )


class ArmTraining:
    """AdamW on the Micro-GPT with dropout 0 and gradients clipped at 1.0; the rate rises over 20 steps, then stays.

    The same settings give the same first weights in every arm. No record of a step is kept.
    """

    def __init__(self, arm: Arm, settings: Settings, *, device: torch.device) -> None:
        arm.check(device)
        if device.type == "cuda":
            set_tf32(arm.tf32 == "on")
        self.arm = arm
        self.settings = settings
        self.device = device
        self.steps = 0
        torch.manual_seed(settings.seed)
        self.model = micro_gpt(settings).to(device)
        self._weights = list(self.model.parameters())
        self._optimizer = torch.optim.AdamW(
            parameter_groups(self.model, 0.1), lr=settings.lr, betas=(0.9, 0.95), fused=True
        )
        modes: dict[str, Any] = {"compiled": {}, "graphed": {"mode": "reduce-overhead"}}
        self._loss = torch.compile(self.model, **modes[arm.step]) if arm.step in modes else self.model
        self._generator = torch.Generator(device).manual_seed(settings.seed)
        if arm.master != "float32":
            round_weights_(self._weights, "nearest")
        self.chain = IntegrityChain()
        self._batch: Batch = ()
        self._batch_chain = IntegrityChain()

    def step(self, batches: Iterator[Batch]) -> tuple[int, float]:
        """Takes a batch and updates the weights once; the tokens in it, and its loss in nats per token.

        Raises:
            StopIteration: no batch is left.
            ValueError: a token id outside the vocabulary.
        """
        inputs, targets = next(batches)
        largest = max(int(inputs.max()), int(targets.max()))
        if largest >= self.settings.vocab_size:
            known = self.settings.vocab_size
            raise ValueError(f"vocab_size: expected ids below {known}, got {largest} in the data")
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.lr * min(1.0, (self.steps + 1) / _WARMUP_STEPS)
        if self.arm.step == "graphed":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # outputs of the step before may be written over
        with self._autocast():
            loss = self._loss(self._move(inputs), self._move(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._round()
        self.steps += 1
        self._batch = (inputs, targets)
        value = loss.item()
        if self.arm.audit == "on":
            self.chain.add(self.steps, value, (inputs, targets))
        return inputs.numel(), value

    def note_batch(self) -> None:
        """Adds the batch of the last step to a checksum of its own, and lets go of it; not part of the step."""
        self._batch_chain.add(self.steps, 0.0, self._batch)
        self._batch = ()

    @property
    def batch_checksum(self) -> str:
        return str(self._batch_chain)

    @torch.no_grad()
    def validation_loss(self) -> float | None:
        """Mean over the same few batches in every arm, in nats per token; None without validation data."""
        if not self.settings.val_data:
            return None
        dataset = make_dataset(self.settings.val_data, self.settings)
        losses: list[float] = []
        with self._autocast():
            for inputs, targets in validation_batches(dataset, self.settings.batch_size, _VALIDATION_BATCHES):
                losses.append(self.model(self._move(inputs), self._move(targets)).item())
        return sum(losses) / len(losses)

    def batches(self, loader: Any, *, recorded: bool) -> Iterator[Batch]:
        """Of one epoch after the other, or of the order recorded, once."""
        return iter(loader) if recorded else endless(loader)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.arm.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _round(self) -> None:
        if self.arm.master != "float32":
            round_weights_(self._weights, self.arm.master, self._generator)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)
