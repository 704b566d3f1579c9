"""Muon for the matrices inside a transformer's layers, AdamW for all else, as one optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from aegis.train.trainer import TrainConfig

__all__ = ["MuonWithAdamW"]


class MuonWithAdamW:
    """Muon (Jordan et al. 2024) orthogonalises the update of a matrix, which takes several products of its size a step
    and makes more of a step: it pays where steps are few and batches are not tiny. Embeddings and norms are not for
    it. Its updates are scaled to the size of AdamW's (Liu et al. 2025), so that one rate serves both.

    Has what :class:`~aegis.train.trainer.Trainer` and checkpoints need of an optimizer.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        hidden: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if not weight.requires_grad:
                continue
            (hidden if "blocks." in name and weight.ndim == 2 else others).append(weight)
        self._muon = torch.optim.Muon(
            hidden, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self._adamw = torch.optim.AdamW(others, lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [*self._muon.param_groups, *self._adamw.param_groups]

    def step(self) -> None:
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._muon.zero_grad(set_to_none)
        self._adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.state_dict(), "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adamw.load_state_dict(state["adamw"])
