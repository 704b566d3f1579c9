"""End to end: a small GPT trained on real text, fed by each loader in turn, same weights and same order."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from aegis.train.compare import Side, compare, first_difference
from aegis.train.settings import Settings, make_loader, make_trainer
from aegis.train.text import pack_text
from aegis.train.trainer import endless
from harness import Table, main, median

CONTENDERS = {
    "DataLoader, 0 workers": ("torch", 0),
    "DataLoader, 2 workers": ("torch", 2),
    "aegis, 1 thread": ("aegis", 1),
}
# The smaller the model, the larger the loader's share of a step.
SIZES = {"4 layers, 128 wide, 128 tokens": ("small", 60), "the same, 16 tokens in a window": ("small", 300)}


def build(quick: bool) -> Table:
    """Training a GPT: tokens/s end to end, and the share of a step spent waiting for data."""
    warnings.simplefilter("ignore")
    table = Table("Training a GPT on this machine's CPU (end to end)")
    with tempfile.TemporaryDirectory() as folder:
        text = pack_text(Path(folder), ())
        for label, (preset, steps) in SIZES.items():
            settings = Settings.resolve(
                {
                    "data": str(text.train),
                    "val_data": "",
                    "dtype": "uint8",
                    "preset": preset,
                    "steps": 10 if quick else steps,
                    "block_size": 16 if "16 tokens" in label else None,
                }
            )
            rates, waits = measure(settings)
            for anchor in list(CONTENDERS)[:2]:
                ours = rates["aegis, 1 thread"]
                table.compared(f"{label}: tokens/s, every loss bit-identical", anchor, rates[anchor], ours, "tokens/s")
            for name, share in waits.items():
                table.figure(f"{label}: share of a step waiting for data, {name}", 100 * share, "%")
    return table


def measure(settings: Settings) -> tuple[dict[str, float], dict[str, float]]:
    """Median tokens/s of the steps, and the waiting share of the time, by contender."""
    cpu = torch.device("cpu")
    sides = []
    for name, (kind, workers) in CONTENDERS.items():
        trainer = make_trainer(settings, device=cpu)  # seeds torch: every side draws the same order
        side = Side(name, trainer, iter(()))
        with side.own_random_state():
            loader = make_loader(kind, settings, num_workers=workers, device=cpu, torch_order=True)
            side.batches = endless(loader)
            next(side.batches)  # start-up is measured elsewhere
        sides.append(side)
    compare(sides)
    for side in sides[1:]:
        assert first_difference(sides[0].trainer.records, side.trainer.records) is None, f"{side.name}: losses differ"
    rates, waits = {}, {}
    for side in sides:
        records = side.trainer.records[3:]
        rates[side.name] = median([record.tokens / record.seconds for record in records])
        waits[side.name] = sum(r.wait_seconds for r in records) / sum(r.seconds for r in records)
    return rates, waits


if __name__ == "__main__":
    main(build)
