"""From settings to a data set, a loader and a trainer; checkpoints hold them, so that runs can go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

import aegis
from aegis.evidence.chain import IntegrityChain
from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.presets import PRESETS
from aegis.train.text import BYTE_VOCABULARY
from aegis.train.trainer import Batch, TrainConfig, Trainer, validation_batches

__all__ = ["Settings", "make_dataset", "make_loader", "make_trainer", "micro_gpt"]

VALIDATION_BATCHES = 8
_MAY_CHANGE = {"data", "val_data", "steps", "eval_every"}


@dataclass(frozen=True)
class Settings:
    """All that decides what is computed. Paths are strings, ``""`` where there is none (no validation)."""

    data: str
    val_data: str
    dtype: str  # "" lets the file say it
    vocab_size: int
    preset: str
    block_size: int
    batch_size: int
    steps: int
    lr: float
    seed: int
    eval_every: int
    loader: str

    @classmethod
    def resolve(cls, given: Mapping[str, Any]) -> Settings:
        """Fill what was not given (None) from the preset.

        Raises:
            ValueError: ids of more than one byte without ``vocab_size``.
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        preset = asdict(PRESETS[chosen["preset"]])
        chosen = {**preset, "val_data": "", "dtype": "", "seed": 0, "loader": "aegis", **chosen}
        if chosen["dtype"] == "uint8":
            chosen.setdefault("vocab_size", BYTE_VOCABULARY)
        if "vocab_size" not in chosen:
            raise ValueError("--vocab-size: expected a number for data that is not uint8, got none")
        chosen.setdefault("eval_every", max(1, chosen["steps"] // 10))
        return cls(**{name: chosen[name] for name in cls.__dataclass_fields__})

    @classmethod
    def resume(cls, saved: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
        """The saved settings, with what was given anew and may change: paths, steps, how often to evaluate.

        Raises:
            ValueError: another setting was given a value that differs from the saved one.
        """
        changed = {name: value for name, value in given.items() if value is not None and value != saved[name]}
        for name in changed.keys() - _MAY_CHANGE:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: expected {saved[name]} as in the checkpoint, got {changed[name]}")
        return cls(**{**saved, **changed})


def make_dataset(path: str, settings: Settings) -> aegis.TokenDataset:
    """Every window of ``block_size`` tokens and the token that follows, in the order of the file."""
    return aegis.TokenDataset(path, settings.block_size, dtype=settings.dtype or None, stride=1)


def make_loader(
    kind: str,
    settings: Settings,
    *,
    num_workers: int,
    device: torch.device,
    torch_order: bool = False,
    chain: IntegrityChain | None = None,
) -> DataLoader[Any]:
    """A shuffling loader over the training tokens.

    Args:
        kind: "aegis" or "torch".
        num_workers: filler threads (aegis) or worker processes (torch).
        torch_order: let aegis, too, draw the order from torch's global generator.
        chain: gets every batch, from aegis alone; torch's loader knows nothing of it.
    """
    options: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "shuffle": True,
        "drop_last": True,
        "num_workers": num_workers,
        "pin_memory": device.type == "cuda",
    }
    dataset = make_dataset(settings.data, settings)
    if kind == "torch":
        return DataLoader(dataset, **options)
    return aegis.FlatArenaDataLoader(dataset, seed=None if torch_order else settings.seed, chain=chain, **options)


def micro_gpt(settings: Settings) -> MicroGPT:
    """A model of the size that the settings say, with weights from torch's global generator."""
    preset = PRESETS[settings.preset]
    return MicroGPT(
        MicroGPTConfig(
            vocab_size=settings.vocab_size,
            block_size=settings.block_size,
            layers=preset.layers,
            heads=preset.heads,
            width=preset.width,
        )
    )


def make_trainer(
    settings: Settings, *, device: torch.device, compile: bool = False, chain: IntegrityChain | None = None
) -> Trainer:
    """A fresh model. Seeds torch's global generators first: the same settings give the same weights."""
    train = TrainConfig(
        steps=settings.steps,
        batch_size=settings.batch_size,
        lr=settings.lr,
        seed=settings.seed,
        eval_every=settings.eval_every,
    )
    validation: Iterable[Batch] = ()
    if settings.val_data:
        dataset = make_dataset(settings.val_data, settings)
        validation = validation_batches(dataset, settings.batch_size, VALIDATION_BATCHES)
    torch.manual_seed(settings.seed)
    return Trainer(
        micro_gpt(settings),
        train,
        vocab_size=settings.vocab_size,
        device=device,
        validation=list(validation),
        compile=compile,
        chain=chain,
    )
