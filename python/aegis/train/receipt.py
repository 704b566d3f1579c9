"""The receipt of ``aegis train``, and its run done again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from aegis.data.loader import FlatArenaDataLoader
from aegis.evidence.chain import IntegrityChain
from aegis.evidence.receipt import Receipt
from aegis.evidence.receipt_file import read_receipt
from aegis.evidence.replay import Replay
from aegis.runtime.precision import tf32
from aegis.train.presets import PRESETS
from aegis.train.settings import Settings, make_dataset, make_loader, make_trainer
from aegis.train.trainer import Batch, Trainer, endless

__all__ = ["BATCHES", "LOSSES", "absorbed", "make_chains", "open_receipt", "replay"]

BATCHES, LOSSES = "batches", "losses"
_PROGRAM = "aegis train"
_MOST_WORKERS = 1024


def make_chains(wanted: bool) -> dict[str, IntegrityChain]:
    """One for the batches, which are the same on every machine, and one for the losses, which often are not."""
    return {name: IntegrityChain() for name in (BATCHES, LOSSES)} if wanted else {}


def absorbed(batches: Iterator[Batch], chain: IntegrityChain) -> Iterator[Batch]:
    """Batches of a loader that knows no chains, added to one as they pass."""
    for batch in batches:
        chain.add_batch(batch)
        yield batch


def open_receipt(
    path: Path,
    trainer: Trainer,
    settings: Settings,
    loader: DataLoader[Any],
    *,
    chains: Mapping[str, IntegrityChain],
    every: int | None,
    options: Mapping[str, Any],
) -> Receipt:
    """The receipt of a run that is about to begin, written once.

    Args:
        every: steps between the chains' values; by default as many as leave a thousand of them.
        options: what bears on the run and is no setting of it.

    Raises:
        OSError: it cannot be written.
    """
    datasets = {"train": loader.dataset}
    if settings.val_data:
        datasets["validation"] = make_dataset(settings.val_data, settings)
    return Receipt(
        path,
        configuration={"program": _PROGRAM, "settings": vars(settings), **options},
        seeds={"weights and order": settings.seed},
        datasets=datasets,
        chains=chains,
        every=every or max(1, settings.steps // 1000),
        first_step=trainer.step + 1,
        counters=lambda: {"steps": trainer.step},
    )


def replay(
    path: Path, steps: int, *, feed_only: bool = False, on_step: Callable[[int], None] = lambda step: None
) -> Replay:
    """Does the first steps of the run again as the receipt at ``path`` describes it, and compares its chains.

    The losses come out the same where machine, versions and thread count are those of the receipt.

    Args:
        steps: how many; at most those of the run.
        feed_only: only take the batches, without a model.

    Raises:
        OSError, ValueError: the receipt is not of a run of ``aegis train`` with chains from its first step on, its data
            is missing, or there are fewer steps.
    """
    record = read_receipt(path)
    settings, options = _configuration(record, path.parent)
    kept = record["steps"]
    if not kept["every"] <= steps <= kept["last"]:
        raise ValueError(f"replay: expected {kept['every']} to {kept['last']} steps, got {steps}")
    again = Replay(record, only=(BATCHES,) if feed_only else (BATCHES, LOSSES))
    own = settings.loader == "aegis"
    with ExitStack() as stack:
        if options["tf32"] is not None:
            stack.enter_context(tf32(options["tf32"]))
        stack.enter_context(_threads(record["host"]["torch_threads"]))
        trainer, loader = _set_up(settings, options, again.chains)
        if isinstance(loader, FlatArenaDataLoader):
            stack.enter_context(loader)
        batches = endless(loader) if own else absorbed(endless(loader), again.chains[BATCHES])
        for step in range(1, steps + 1):
            if feed_only:
                next(batches)
            else:
                trainer.advance(batches)
            again.step(step)
            on_step(step)
    return again


def _set_up(
    settings: Settings, options: Mapping[str, Any], chains: Mapping[str, IntegrityChain]
) -> tuple[Trainer, DataLoader[Any]]:
    device = torch.device(options["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("replay: expected a CUDA device, as the run had, got none")
    chain = chains[BATCHES] if settings.loader == "aegis" else None
    try:
        # Made even where it is not trained: torch's loader draws its order from the generator that made the weights.
        trainer = make_trainer(settings, device=device, compile=options["compile"], chain=chains.get(LOSSES))
        loader = make_loader(settings.loader, settings, num_workers=options["num_workers"], device=device, chain=chain)
    except (RuntimeError, MemoryError, OverflowError) as error:  # sizes beyond all memory
        raise ValueError(f"replay: the run cannot be set up again: {error}") from error
    return trainer, loader


@contextmanager
def _threads(wanted: Any) -> Iterator[None]:
    """As many threads of torch as the run had, for sums come out differently with another number of parts."""
    before = torch.get_num_threads()
    if type(wanted) is int and 1 <= wanted <= (os.cpu_count() or 1):
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _configuration(record: Mapping[str, Any], folder: Path) -> tuple[Settings, dict[str, Any]]:
    """What ran, from a receipt that anybody may have written."""
    found = record["configuration"]
    expected: dict[str, tuple[type, ...]] = {
        "program": (str,),
        "settings": (dict,),
        "device": (str,),
        "num_workers": (int,),
        "compile": (bool,),
        "tf32": (bool, type(None)),
    }
    if found.get("program") != _PROGRAM:
        raise ValueError(f"replay: expected a receipt of {_PROGRAM}, got one of {found.get('program')!r}")
    _check_types("configuration", found, expected)
    kinds = {"str": (str,), "int": (int,), "float": (float, int)}
    _check_types("configuration.settings", found["settings"], {f.name: kinds[str(f.type)] for f in fields(Settings)})
    settings = Settings(**found["settings"])
    if settings.preset not in PRESETS or settings.loader not in ("aegis", "torch"):
        raise ValueError(f"replay: expected a preset and a loader of {_PROGRAM}, got {settings}")
    if found["device"] not in ("cpu", "cuda"):
        raise ValueError(f"replay: expected the device cpu or cuda, got {found['device']!r}")
    if found["num_workers"] < 0 or found["num_workers"] > _MOST_WORKERS:
        raise ValueError(f"replay: expected 0 to {_MOST_WORKERS} workers, got {found['num_workers']}")
    sources = {described["name"]: described["source"] for described in record["data"]}
    validation = _one_file(sources, "validation", folder) if settings.val_data else ""
    return replace(settings, data=_one_file(sources, "train", folder), val_data=validation), found


def _one_file(sources: Mapping[str, Any], name: str, folder: Path) -> str:
    source = sources.get(name)
    if source is None or len(source["paths"]) != 1:
        raise ValueError(f"replay: expected one file of data called {name!r} in the receipt, got {source}")
    return str(folder / source["paths"][0])


def _check_types(place: str, found: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]) -> None:
    if found.keys() != expected.keys():
        raise ValueError(f"{place}: expected {', '.join(expected)}, got {', '.join(found)}")
    for name, kinds in expected.items():
        if type(found[name]) not in kinds:
            raise ValueError(f"{place}: expected {name} to be {kinds[0].__name__}, got {found[name]!r}")
