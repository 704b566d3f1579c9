"""A language model and a small one that learns, beside it, to guess what it says: for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aegis
from aegis.train.checkpoint import load_checkpoint, save_checkpoint
from aegis.train.meter import StepRecord
from aegis.train.model import MicroGPT
from aegis.train.muon import MuonWithAdamW
from aegis.train.presets import PRESETS
from aegis.train.settings import Settings, make_dataset, make_loader, micro_gpt
from aegis.train.text import pack_text
from aegis.train.trainer import TrainConfig, Trainer, endless, train, validation_batches

__all__ = [
    "STEPS",
    "Agreement",
    "Pair",
    "agreement",
    "draft_steps",
    "load_pair",
    "make_pair",
    "pair_settings",
    "train_pair",
]

_TARGET, _DRAFT = "target", "draft"
"""The presets of the two; the settings name the target's and are otherwise of both."""
STEPS = PRESETS[_TARGET].steps
"""Of training, by default."""
_BATCHES = 4
"""Of validation text, to measure how the two agree."""


class Pair(nn.Module):
    """A target and its draft, trained together: the target on the text, the draft on what the target says there.

    The draft's loss is the divergence of its distribution from the target's at every position (Hinton et al. 2015; for
    drafts, Zhou et al. 2023). The target's logits are there anyhow, so that the draft adds its own passes alone; it
    sends no gradient back.

    Args:
        products: what matrices are multiplied in, by forward and so by backward; weights and losses stay float32.
    """

    def __init__(self, target: MicroGPT, draft: MicroGPT, *, products: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.target = target
        self.draft = draft
        self.products = products

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of both losses, in nats per token; inputs and targets (batch, tokens) int64."""
        with torch.autocast(inputs.device.type, self.products, enabled=self.products != torch.float32):
            target, draft = self.target(inputs), self.draft(inputs)
        target, draft = target.float(), draft.float()
        loss = F.cross_entropy(target.flatten(0, 1), targets.flatten())
        return loss + _divergence(target.detach(), draft)


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
    """Mean mass that the two distributions share at a temperature: guesses that sampling keeps."""


@torch.no_grad()
def agreement(pair: Pair, settings: Settings, *, temperature: float = 1.0) -> Agreement:
    """Measures a pair on the validation text of its settings: seconds. The temperature is that of the overlap."""
    sums = torch.zeros(3, dtype=torch.float64)
    batches = validation_batches(make_dataset(settings.val_data, settings), settings.batch_size, _BATCHES)
    for inputs, targets in batches:
        target, draft = pair.target(inputs), pair.draft(inputs)
        shared = torch.minimum((target / temperature).softmax(2), (draft / temperature).softmax(2)).sum(2)
        sums += torch.stack(
            [
                F.cross_entropy(target.flatten(0, 1), targets.flatten()),
                (target.argmax(2) == draft.argmax(2)).float().mean(),
                shared.mean(),
            ]
        )
    return Agreement(*(sums / len(batches)).tolist())


def pair_settings(folder: Path, *, steps: int = STEPS, seed: int = 0) -> Settings:
    """The demo's text in ``folder``, and sizes that two cores train in minutes."""
    packed = pack_text(folder.resolve())
    return Settings.resolve(
        {
            "data": str(packed.train),
            "val_data": str(packed.validation),
            "dtype": "uint8",
            "preset": _TARGET,
            "steps": steps,
            "eval_every": steps,
            "seed": seed,
        }
    )


def make_pair(settings: Settings) -> Pair:
    """Fresh models; the draft's preset is "draft"."""
    return Pair(micro_gpt(settings), micro_gpt(replace(settings, preset=_DRAFT)))


def draft_steps(settings: Settings) -> int:
    """Steps of the draft alone, after those of both. Each takes a third of the time, and what the draft learnt of a
    target that was still moving is soon out of date."""
    return max(1, settings.steps * 3 // 4)


def train_pair(path: Path, settings: Settings, *, on_step: Callable[[StepRecord], None] = lambda record: None) -> Pair:
    """Trains a pair on the CPU through aegis's loader and saves it in one checkpoint: both, then the draft alone.
    ``on_step`` gets the record of every step, whose loss is the sum of both models'; numbers begin anew for the draft.

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
        last=0.0,
    )
    pair = make_pair(settings)
    if aegis.cpu_isa() == "avx512_bf16":
        pair.products = torch.bfloat16  # 1.4 times the tokens a second there; elsewhere it is emulated, and slow

    def trainer(steps: int) -> Trainer:
        setup = replace(config, steps=steps)
        return Trainer(pair, setup, vocab_size=settings.vocab_size, device=device, optimizer=MuonWithAdamW)

    both = trainer(settings.steps)
    loader = make_loader("aegis", settings, num_workers=1, device=device)
    with loader:  # type: ignore[attr-defined]
        batches = endless(loader)
        train(both, batches, on_step=on_step)
        pair.target.requires_grad_(False)
        train(trainer(draft_steps(settings)), batches, on_step=on_step)
        pair.target.requires_grad_(True)
        save_checkpoint(path, both, asdict(settings), loader.state_dict())  # type: ignore[attr-defined]
    return pair.eval()


def load_pair(path: Path) -> tuple[Pair, Settings]:
    """What :func:`train_pair` saved. Its text is taken to lie beside it, in case both were moved.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is a checkpoint of something else, or of a pair of other sizes.
    """
    state = load_checkpoint(path)
    try:
        settings = Settings(**state["settings"])
        pair = make_pair(settings)
        pair.load_state_dict(state["model"])
    except (KeyError, RuntimeError, TypeError) as error:
        of_two = any(name.startswith("draft.") for name in state["model"])
        got = "a pair of other sizes (remove the file to train anew)" if of_two else "a checkpoint of another model"
        raise ValueError(f"{path}: expected a target and a draft as this version trains them, got {got}") from error
    folder = path.resolve().parent
    data, val_data = (str(folder / Path(name).name) for name in (settings.data, settings.val_data))
    return pair.eval(), replace(settings, data=data, val_data=val_data)
