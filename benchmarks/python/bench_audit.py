"""What chains and a receipt cost a training run, end to end: the same run with and without them, in turns."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

import torch
from aegis.evidence import IntegrityChain
from aegis.train.compare import Side, compare, first_difference
from aegis.train.receipt import BATCHES, LOSSES, make_chains, open_receipt
from aegis.train.settings import Settings, make_loader, make_trainer
from aegis.train.text import pack_text
from aegis.train.trainer import endless
from harness import Table, main, median

# The smaller the step, the larger what a record costs of it.
SIZES = {"4 layers, 128 wide, 128 tokens": ("small", None, 50), "the same, 16 tokens in a window": ("small", 16, 300)}
PLAIN, AGAIN, AUDITED = "without", "without, a second time", "with chains and a receipt"


def build(quick: bool) -> Table:
    """Training with two chains, their values kept at every step in a receipt, against training without."""
    warnings.simplefilter("ignore")
    table = Table("Audited training on this machine's CPU (end to end)")
    with tempfile.TemporaryDirectory() as folder:
        text = pack_text(Path(folder), ())
        for label, (preset, block_size, steps) in SIZES.items():
            given = {"data": str(text.train), "val_data": "", "dtype": "uint8", "preset": preset}
            settings = Settings.resolve({**given, "steps": 10 if quick else steps, "block_size": block_size})
            seconds = measure(settings, Path(folder))
            plain = median(seconds[PLAIN])
            for name in (AUDITED, AGAIN):
                differences = [one - other for one, other in zip(seconds[name], seconds[PLAIN], strict=True)]
                cost = 100 * median(differences) / plain
                if name == AUDITED and not quick:
                    table.limit(f"{label}: a step {name}, more than without", cost, "%", 1)
                else:
                    table.figure(f"{label}: a step {name}, more than without", cost, "%")
            inside = in_isolation(settings)
            table.limit(f"{label}: chains alone, share of a step", 100 * inside / plain, "%", 1)
    table.notes.append(
        "The runs take turns of one step, and their losses are bit-identical. More than without: the median of the "
        "differences between equal steps, over the median step; the second run without chains says how far two equal "
        "runs are apart on this machine. Chains alone: the median time of adding a batch and a loss, over the median "
        "step."
    )
    return table


def measure(settings: Settings, folder: Path) -> dict[str, list[float]]:
    """Seconds of each step by contender; the first three are left out."""
    cpu = torch.device("cpu")
    sides, receipts = [], {}
    for name in (PLAIN, AUDITED, AGAIN):
        chains = make_chains(name == AUDITED)
        trainer = make_trainer(settings, device=cpu, chain=chains.get(LOSSES))
        side = Side(name, trainer, iter(()))
        loader = make_loader("aegis", settings, num_workers=1, device=cpu, chain=chains.get(BATCHES))
        side.batches = endless(loader)
        if chains:
            options = {"device": "cpu", "num_workers": 1, "compile": False, "tf32": None}
            path = folder / "receipt.json"
            receipts[name] = open_receipt(path, trainer, settings, loader, chains=chains, every=1, options=options)
        sides.append(side)
    taken: dict[str, list[float]] = {side.name: [] for side in sides}

    def on_step(side: Side, record: object) -> None:
        start = time.perf_counter()
        if side.name in receipts:
            receipts[side.name].step(side.trainer.step, side.trainer.records[-1].loss)
        taken[side.name].append(side.trainer.records[-1].seconds + time.perf_counter() - start)

    compare(sides, turn=1, on_step=on_step)
    for side in sides[1:]:
        assert first_difference(sides[0].trainer.records, side.trainer.records) is None, f"{side.name}: losses differ"
    return {name: seconds[3:] for name, seconds in taken.items()}


def in_isolation(settings: Settings) -> float:
    """Seconds of adding a batch and a loss."""
    batch = list(torch.randint(0, 256, (2, settings.batch_size, settings.block_size)))
    chain, times = IntegrityChain(), []
    for step in range(300):
        start = time.perf_counter()
        chain.add_batch(batch)
        chain.add(step, 2.5)
        times.append(time.perf_counter() - start)
    return median(times)


if __name__ == "__main__":
    main(build)
