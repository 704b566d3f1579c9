"""What chains and a receipt cost a training run, end to end: steps with and without them, in one run."""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aegis.evidence import IntegrityChain
from aegis.evidence.drift import median_interval
from aegis.train.receipt import BATCHES, LOSSES, open_receipt
from aegis.train.settings import Settings, make_loader, make_trainer
from aegis.train.text import pack_text
from aegis.train.trainer import endless
from harness import Table, main

# The smaller the step, the larger what a record costs of it.
SIZES = {"4 layers, 128 wide, 128 tokens": ("small", None, 75), "the same, 16 tokens in a window": ("small", 16, 450)}
PLAIN, AUDITED = "without", "with chains and a receipt"
AGAIN = "without, a second time"
WITHIN = "within chains and receipt"
CLOCKS = {"time": time.perf_counter, "processor time of the process": time.process_time}


def build(quick: bool) -> Table:
    """Training with two chains, their values kept at every step in a receipt, against training without."""
    warnings.simplefilter("ignore")
    table = Table("Audited training on this machine's CPU (end to end)")
    with tempfile.TemporaryDirectory() as folder:
        text = pack_text(Path(folder), ())
        for label, (preset, block_size, rounds) in SIZES.items():
            given = {"data": str(text.train), "val_data": "", "dtype": "uint8", "preset": preset}
            settings = Settings.resolve({**given, "steps": 10**6, "block_size": block_size})
            taken = measure(settings, Path(folder), 10 if quick else rounds)
            for clock in CLOCKS:
                plain = taken[clock, PLAIN]
                pairs = {AUDITED: taken[clock, AUDITED] / plain, AGAIN: plain[::2] / plain[1::2]}
                for name, ratios in pairs.items():
                    middle, low, high = (100.0 * value for value in median_interval([ratios - 1.0]))
                    found = f"median {middle:+.2f} %, 95 % interval from {low:+.2f} % to"
                    what = f"{label}: {clock} of a step {name}, more than without: {found}"
                    if name == AUDITED and not quick:
                        table.limit(what, high, "%", 1)
                    else:
                        table.figure(what, high, "%")
            step = taken["time", PLAIN]
            share = 100.0 * np.median(taken["time", WITHIN]) / np.median(step)
            table.limit(f"{label}: time within chains and receipt, share of a step", float(share), "%", 1)
    table.notes.append(
        "One run, in which of every four steps two are audited and two are not, in random order: model, memory and "
        "moods of the machine are the same for all. A step lasts from asking for its batch to the end of its entry in "
        "the receipt. More than without: median of the ratios of steps of the same four, and its 95 % interval by "
        "order statistics, whose upper end the target is for; how narrow it is depends on the machine and who else "
        "uses it. Without, a second time: the two steps of a four that are not audited, which says what chance does. "
        "Time within: the median, over audited steps, from call to return of the chains and the receipt, in place."
    )
    return table


class Switch(IntegrityChain):
    """A chain that takes records only while it is on, and counts the seconds that they take."""

    on = True
    seconds = 0.0

    def add(self, *record: Any) -> None:
        if self.on:
            start = time.perf_counter()
            super().add(*record)
            self.seconds += time.perf_counter() - start


def measure(settings: Settings, folder: Path, rounds: int) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    """Seconds of steps by clock and contender; equal places are of the same four steps."""
    cpu = torch.device("cpu")
    chains = {BATCHES: Switch(), LOSSES: Switch()}
    trainer = make_trainer(settings, device=cpu, chain=chains[LOSSES])
    loader = make_loader("aegis", settings, num_workers=1, device=cpu, chain=chains[BATCHES])
    batches = endless(loader)
    options = {"device": "cpu", "num_workers": 1, "compile": False, "tf32": None}
    path = folder / "receipt.json"
    receipt = open_receipt(path, trainer, settings, loader, chains=chains, every=1, options=options)
    taken: dict[tuple[str, str], list[float]] = {(clock, name): [] for clock in CLOCKS for name in (PLAIN, AUDITED)}
    taken["time", WITHIN] = []
    audited = 0
    for name in shuffled(rounds + 2):
        for chain in chains.values():
            chain.on, chain.seconds = name == AUDITED, 0.0
        starts = [clock() for clock in CLOCKS.values()]
        record = trainer.advance(batches)
        if name == AUDITED:
            audited += 1
            begin = time.perf_counter()
            receipt.step(audited, record.loss)
            within = time.perf_counter() - begin + sum(chain.seconds for chain in chains.values())
            taken["time", WITHIN].append(within)
        for (clock, read), start in zip(CLOCKS.items(), starts, strict=True):
            taken[clock, name].append(read() - start)
    assert [chain.state()["records"] for chain in chains.values()] == [audited] * 2, "not every step was audited"
    return {key: np.array(seconds[4:]) for key, seconds in taken.items()}


def shuffled(rounds: int) -> Iterator[str]:
    """Each contender twice a round."""
    order, chance = [PLAIN, AUDITED] * 2, random.Random(0)
    for _ in range(rounds):
        chance.shuffle(order)
        yield from order


if __name__ == "__main__":
    main(build)
