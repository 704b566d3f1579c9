"""A language model and a small one that learns, beside it, to guess what it says: for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aegis.train.checkpoint import load_checkpoint, save_checkpoint
from aegis.train.meter import StepRecord
from aegis.train.model import MicroGPT
from aegis.train.settings import VALIDATION_BATCHES, Settings, make_dataset, make_loader, micro_gpt
from aegis.train.text import pack_text
from aegis.train.trainer import TrainConfig, Trainer, endless, train, validation_batches

__all__ = ["STEPS", "Agreement", "Pair", "agreement", "load_pair", "make_pair", "pair_settings", "train_pair"]

STEPS = 2000
"""Of training, by default."""
_DRAFT = "draft"
"""The preset of the small model; the large one's is that of the settings."""


class Pair(nn.Module):
    """A target and its draft, trained together: the target on the text, the draft on what the target says there.

    The draft's loss is the divergence of its distribution from the target's at every position (Hinton et al. 2015; for
    drafts, Zhou et al. 2023). The target's logits are there anyhow, so that the draft adds its own passes alone; it
    sends no gradient back.
    """

    def __init__(self, target: MicroGPT, draft: MicroGPT) -> None:
        super().__init__()
        self.target = target
        self.draft = draft

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of both losses, in nats per token; inputs and targets (batch, tokens) int64."""
        logits = self.target(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + _divergence(logits.detach(), self.draft(inputs))


def _divergence(target: Tensor, draft: Tensor) -> Tensor:
    p, q = target.log_softmax(2), draft.log_softmax(2)
    return F.kl_div(q, p, reduction="none", log_target=True).sum(2).mean()


class Agreement(NamedTuple):
    """How the two go together, over positions of a text that neither was trained on."""

    loss: float
    """Of the target, in nats per token."""
    same: float
    """Share of positions where both think the same token the most likely: guesses that greedy decoding keeps."""
    overlap: float
    """Mean mass that the two distributions share: guesses that sampling at temperature 1 keeps."""


@torch.no_grad()
def agreement(pair: Pair, settings: Settings) -> Agreement:
    """Measures a pair on the validation text of its settings."""
    sums = torch.zeros(3, dtype=torch.float64)
    batches = validation_batches(make_dataset(settings.val_data, settings), settings.batch_size, VALIDATION_BATCHES)
    for inputs, targets in batches:
        target, draft = pair.target(inputs), pair.draft(inputs)
        shared = torch.minimum(target.softmax(2), draft.softmax(2)).sum(2)
        sums += torch.stack(
            [
                F.cross_entropy(target.flatten(0, 1), targets.flatten()),
                (target.argmax(2) == draft.argmax(2)).float().mean(),
                shared.mean(),
            ]
        )
    return Agreement(*(sums / len(batches)).tolist())


def pair_settings(folder: Path, *, steps: int = STEPS, seed: int = 0) -> Settings:
    """The demo's text in ``folder``, and sizes that two cores train in minutes: the RFC's Micro-GPT for a target, and
    small batches, since at this length of training the number of updates is what counts."""
    packed = pack_text(folder.resolve())
    return Settings.resolve(
        {
            "data": str(packed.train),
            "val_data": str(packed.validation),
            "dtype": "uint8",
            "preset": "micro",
            "block_size": 128,
            "batch_size": 4,
            "lr": 1e-3,
            "steps": steps,
            "eval_every": steps,
            "seed": seed,
        }
    )


def make_pair(settings: Settings) -> Pair:
    """Fresh models; the draft's preset is "draft"."""
    return Pair(micro_gpt(settings), micro_gpt(replace(settings, preset=_DRAFT)))


def train_pair(path: Path, settings: Settings, *, on_step: Callable[[StepRecord], None] = lambda record: None) -> Pair:
    """Trains a pair on the CPU through aegis's loader and saves it in one checkpoint.

    Raises:
        OSError, ValueError: as ``aegis train``.
    """
    torch.manual_seed(settings.seed)
    device = torch.device("cpu")
    config = TrainConfig(
        steps=settings.steps,
        batch_size=settings.batch_size,
        lr=settings.lr,
        seed=settings.seed,
        eval_every=settings.eval_every,
    )
    trainer = Trainer(make_pair(settings), config, vocab_size=settings.vocab_size, device=device)
    loader = make_loader("aegis", settings, num_workers=1, device=device)
    with loader:  # type: ignore[attr-defined]
        train(trainer, endless(loader), on_step=on_step)
        save_checkpoint(path, trainer, asdict(settings), loader.state_dict())  # type: ignore[attr-defined]
    pair = trainer.model
    assert isinstance(pair, Pair)
    return pair.eval()


def load_pair(path: Path) -> tuple[Pair, Settings]:
    """What :func:`train_pair` saved.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is a checkpoint of something else.
    """
    state = load_checkpoint(path)
    settings = Settings(**state["settings"])
    pair = make_pair(settings)
    try:
        pair.load_state_dict(state["model"])
    except RuntimeError as error:
        raise ValueError(f"{path}: expected a target and a draft, got a checkpoint of another model") from error
    return pair.eval(), settings
