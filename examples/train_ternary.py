"""Trains the Micro-GPT twice from the same start: with float layers, and BitNet-style with ternary ones.

    python examples/train_ternary.py [--steps 300] [TEXT]

Prints both losses, packs the ternary model into two bits a weight, and shows that the loss stays what it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import aegis
import torch
from aegis.train.model import MicroGPT, MicroGPTConfig
from torch import Tensor

BLOCK, BATCH = 64, 16


def batches(tokens: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(tokens) - BLOCK, (BATCH, 1), generator=generator)
        window = tokens[starts + torch.arange(BLOCK + 1)]
        yield window[:, :-1], window[:, 1:]


def train(tokens: Tensor, steps: int, ternary: bool) -> MicroGPT:
    torch.manual_seed(0)
    model = MicroGPT(MicroGPTConfig(vocab_size=256, block_size=BLOCK, layers=2, heads=4, width=128))
    if ternary:
        aegis.quant.convert(model, "ternary", train=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (inputs, targets) in zip(range(1, steps + 1), batches(tokens, seed=1), strict=False):
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps:
            print(f"{'ternary' if ternary else 'float':>7} step {step:4}: loss {loss.item():.3f}")
    return model


@torch.no_grad()
def loss_of(model: MicroGPT, tokens: Tensor) -> float:
    losses = [model(*batch) for _, batch in zip(range(8), batches(tokens, seed=2), strict=False)]
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, help="what to train on; without, this repository's own notes")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    path = arguments.text or Path(__file__).resolve().parents[1] / "docs/notes/design.md"
    tokens = torch.tensor(list(path.read_bytes()))

    dense = loss_of(train(tokens, arguments.steps, ternary=False), tokens)
    model = train(tokens, arguments.steps, ternary=True)
    training = loss_of(model, tokens)
    layers = [m for m in model.modules() if isinstance(m, aegis.quant.TernaryLinear)]
    before = sum(layer.weight.numel() * 4 for layer in layers)
    aegis.quant.freeze(model)
    after = sum(layer.packed.numel() * 4 for layer in layers)
    print(f"loss: float {dense:.3f}, ternary {training:.3f}, packed {loss_of(model, tokens):.3f}")
    print(f"its {len(layers)} linear layers: {before:,} bytes, then {after:,}")


if __name__ == "__main__":
    main()
