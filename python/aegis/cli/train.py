"""``aegis train``: the Micro-GPT on a token file, with the loop's cost measured step by step."""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

import aegis
from aegis.cli.run_options import add_data_options, run_device
from aegis.runtime.precision import tf32
from aegis.train.interruption import interruption
from aegis.train.presets import PRESETS

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from aegis.train.compare import Side
    from aegis.train.meter import StepRecord
    from aegis.train.settings import Settings
    from aegis.train.trainer import Trainer

__all__ = ["register", "run"]

_NAMES = {"aegis": "aegis.FlatArenaDataLoader", "torch": "torch.utils.data.DataLoader"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "train",
        help="train a small GPT through the loader and report what the data cost",
        description="Train the Micro-GPT on text (every byte a token) or on a token file. Writes the token "
        "files, a checkpoint, the loss curve (PNG, CSV) and a receipt; ends with a table, end-to-end tokens/s first.",
    )
    add_data_options(parser)

    model = parser.add_argument_group("training")
    sizes = ", ".join(f"{name}: {p.layers} layers, {p.width} wide" for name, p in PRESETS.items())
    model.add_argument("--preset", choices=PRESETS, help=f"{sizes} (default: micro on CUDA, small elsewhere)")
    model.add_argument("--steps", type=int)
    model.add_argument("--batch-size", type=int, help="windows in a batch")
    model.add_argument("--block-size", type=int, help="tokens in a window")
    model.add_argument("--lr", type=float, help="highest learning rate")
    model.add_argument("--seed", type=int, help="of the weights and of the order (default: 0)")
    model.add_argument("--eval-every", type=int, metavar="STEPS", help="default: a tenth of the steps")
    model.add_argument("--device", type=torch.device, help="default: cuda where there is one, else cpu")
    model.add_argument("--compile", action="store_true", help="run the model through torch.compile")
    model.add_argument(
        "--tf32",
        action=argparse.BooleanOptionalAction,
        help="TF32 in float32 arithmetic on CUDA (default: as is)",
    )

    loader = parser.add_argument_group("loader")
    loader.add_argument("--loader", choices=_NAMES, help="default: aegis")
    loader.add_argument(
        "--num-workers", type=int, default=1, help="filler threads, or torch's worker processes (default: 1)"
    )
    loader.add_argument(
        "--compare",
        action="store_true",
        help="train through torch's DataLoader as well, in the same order, and compare every loss bit by bit",
    )

    files = parser.add_argument_group("files")
    files.add_argument("--out", type=Path, default=Path("aegis-train"), metavar="DIR", help="default: aegis-train")
    files.add_argument("--resume", type=Path, metavar="FILE", help="go on from this checkpoint")
    files.add_argument(
        "--checkpoint-every", type=int, metavar="STEPS", help="default: only at the end, also an early one"
    )
    files.add_argument(
        "--chain",
        action="store_true",
        default=None,
        help="keep checksums of batches and losses in receipt.json, for aegis verify --replay",
    )
    files.add_argument("--chain-every", type=int, metavar="STEPS", help="default: a thousandth of the steps")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train as told: 0 when done, 1 when ``--compare`` found a difference, 128 + signal when one ended it early.

    Ctrl-C, SIGTERM and SIGHUP let the step under way end, and all files are written; the same one again ends at once.

    Raises:
        OSError, ValueError: bad input, before training starts or at the batch that shows it.
    """
    _check(args)
    device = run_device(args)
    settings, state = _settings(args, device)
    args.out.mkdir(parents=True, exist_ok=True)
    with nullcontext() if args.tf32 is None else tf32(args.tf32):
        if args.compare:
            return _compare(args, settings, device)
        return _train(args, settings, device, state)


def _check(args: argparse.Namespace) -> None:
    if args.num_workers < 0:
        raise ValueError(f"--num-workers: expected at least 0, got {args.num_workers}")
    for option in ("checkpoint_every", "chain_every"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise ValueError(f"--{option.replace('_', '-')}: expected at least 1, got {value}")
    if args.chain_every and not args.chain:
        raise ValueError("--chain-every: expected only together with --chain")
    if args.val_data and not args.data:
        raise ValueError("--val-data: expected only together with --data (text is split by itself)")
    if args.dtype and not args.data:
        raise ValueError("--dtype: expected only together with --data (text is uint8)")
    for option in ("resume", "loader", "checkpoint_every", "chain"):
        if args.compare and getattr(args, option) is not None:
            raise ValueError(f"--{option.replace('_', '-')}: expected no such option with --compare")


def _settings(args: argparse.Namespace, device: torch.device) -> tuple[Settings, dict[str, Any] | None]:
    """The settings, and the checkpoint to go on from, if any. Packs the text that was asked for."""
    from aegis.train.checkpoint import load_checkpoint
    from aegis.train.settings import Settings
    from aegis.train.text import pack_text

    names = Settings.__dataclass_fields__
    given = {name: getattr(args, name) for name in names}
    given["data"] = given["val_data"] = None
    state = load_checkpoint(args.resume) if args.resume else None
    if args.data:
        given["data"] = str(args.data)
        given["val_data"] = str(args.val_data) if args.val_data else ""
        print(f"data: {args.data}")
    elif args.text or state is None:
        packed = pack_text(args.out, args.text or ())
        given.update(data=str(packed.train), val_data=str(packed.validation), dtype="uint8")
        source = "--text" if args.text else "Python's standard library"
        print(f"text: {packed.documents:,} files of {source}, every byte a token")
        print(f"data: {packed.train_tokens:,} tokens in {packed.train}, to train on")
        print(f"      {packed.validation_tokens:,} tokens in {packed.validation}, to validate on")
    if state is None:
        given["preset"] = given["preset"] or ("micro" if device.type == "cuda" else "small")
        return Settings.resolve(given), None
    if state["settings"]["loader"] != "aegis":
        raise ValueError("--resume: expected a run through aegis, for torch's loader keeps no position")
    settings = Settings.resume(state["settings"], given)
    done = len(state["records"])
    if done >= settings.steps:
        raise ValueError(f"--steps: expected more than the {done} already done, got {settings.steps}")
    if args.chain and not state["chains"]:
        raise ValueError("--chain: expected with --resume only where the run began with it")
    return settings, state


def _train(args: argparse.Namespace, settings: Settings, device: torch.device, state: dict[str, Any] | None) -> int:
    from aegis.train.checkpoint import restore, save_checkpoint
    from aegis.train.receipt import BATCHES, LOSSES, absorbed, make_chains, open_receipt
    from aegis.train.settings import make_loader, make_trainer
    from aegis.train.trainer import endless, train

    own = settings.loader == "aegis"
    chains = make_chains(args.chain or bool(state and state["chains"]))
    audit = chains.get(BATCHES)
    trainer = make_trainer(settings, device=device, compile=args.compile, chain=chains.get(LOSSES))
    loader = make_loader(
        settings.loader, settings, num_workers=args.num_workers, device=device, chain=audit if own else None
    )
    batches = endless(loader) if own or audit is None else absorbed(endless(loader), audit)
    done = 0
    if state is not None:
        restore(trainer, state)
        loader.load_state_dict(state["loader"])  # type: ignore[attr-defined]
        for name, chain in chains.items():
            chain.restore(state["chains"][name])
        done = trainer.step
    _announce(trainer, settings, device, [settings.loader], args.num_workers)

    def save() -> None:
        position = loader.state_dict() if own else {}  # type: ignore[attr-defined]
        save_checkpoint(args.out / "checkpoint.pt", trainer, vars(settings), position, chains)

    options = {"device": device.type, "num_workers": args.num_workers, "compile": args.compile, "tf32": args.tf32}
    path = args.out / "receipt.json"
    receipt = open_receipt(path, trainer, settings, loader, chains=chains, every=args.chain_every, options=options)
    with _closing(loader), interruption() as stop, receipt:
        with _progress(settings.steps, done) as show:

            def on_step(record: StepRecord) -> None:
                show(record)
                receipt.step(record.step, record.loss)
                if args.checkpoint_every and trainer.step % args.checkpoint_every == 0:
                    save()
                    receipt.write()

            train(trainer, batches, on_step=on_step, stop=stop)
        status = stop.status  # later signals come too late
        save()
        _report({_NAMES[settings.loader]: trainer.records[done:]})
        _report_loader(loader)
        for file in _write_curves(args.out, trainer, settings):
            receipt.add_artefact(file, losses=file.suffix == ".csv")
        receipt.add_artefact(args.out / "checkpoint.pt")
        for file in map(Path, (settings.data, settings.val_data)):
            if file.parent == args.out and file.name in ("train.bin", "val.bin"):  # packed for this run
                receipt.add_artefact(file)
        if status:
            receipt.status = "interrupted"
    print(f"receipt: {path}")
    return status


def _compare(args: argparse.Namespace, settings: Settings, device: torch.device) -> int:
    from aegis.train.compare import Side, compare, first_difference
    from aegis.train.curve import write_csv
    from aegis.train.settings import make_loader, make_trainer
    from aegis.train.trainer import endless

    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    with ExitStack() as stack:
        sides: list[Side] = []
        for name in _NAMES:
            trainer = make_trainer(settings, device=device, compile=args.compile)
            workers = args.num_workers
            loader = make_loader(name, settings, num_workers=workers, device=device, torch_order=True)
            stack.enter_context(_closing(loader))
            sides.append(Side(name, trainer, endless(loader)))
        _announce(sides[0].trainer, settings, device, list(_NAMES), args.num_workers)
        stop = stack.enter_context(interruption())
        with _progress(settings.steps * len(sides), 0) as show:
            compare(sides, on_step=lambda side, record: show(record), stop=stop)
        status = stop.status
    ours, theirs = (side.trainer.records for side in sides)
    _report({_NAMES[side.name]: side.trainer.records for side in sides}, memory=False)
    for side in sides:
        path = args.out / f"loss-{side.name}.csv"
        write_csv(path, side.trainer.records)
        print(f"losses through {_NAMES[side.name]}: {path}")
    different = first_difference(ours, theirs)
    if different is not None:
        values = " and ".join(f"{side.name} {side.trainer.records[different].loss!r}" for side in sides)
        print(f"losses differ, first at step {different + 1}: {values}")
        return 1
    print(f"losses: bit-identical at all {len(ours):,} steps, validation included")
    return status


def _announce(trainer: Trainer, settings: Settings, device: torch.device, loaders: list[str], workers: int) -> None:
    parameters = sum(weight.numel() for weight in trainer.model.parameters())
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"model: Micro-GPT '{settings.preset}', {parameters / 1e6:.2f} M parameters, on {device}{threads}")
    kinds = {"aegis": "filler threads", "torch": "worker processes"}
    feeds = " and ".join(f"{_NAMES[name]} ({kinds[name]}: {workers})" for name in loaders)
    print(f"feed: {feeds}, batches of {settings.batch_size} x {settings.block_size} tokens")
    start = f" from step {trainer.step:,} on" if trainer.step else ""
    print(f"training {settings.steps:,} steps{start}; Ctrl-C ends early and keeps what there is", flush=True)


def _closing(loader: DataLoader[Any]) -> AbstractContextManager[object]:
    stack = ExitStack()
    if isinstance(loader, AbstractContextManager):
        stack.enter_context(loader)
    return stack


@contextmanager
def _progress(steps: int, done: int) -> Iterator[Callable[[StepRecord], None]]:
    """A bar on stderr with the loss, and rate and wait share over the last steps."""
    recent: deque[StepRecord] = deque(maxlen=50)
    with tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True, mininterval=0.5) as bar:

        def show(record: StepRecord) -> None:
            recent.append(record)
            seconds = sum(r.seconds for r in recent)
            rate = f"{sum(r.tokens for r in recent) / seconds:,.0f} tokens/s"
            share = f"waiting {sum(r.wait_seconds for r in recent) / seconds:.2%}"
            bar.set_postfix_str(f"loss {record.loss:.3f}, {rate}, {share}", refresh=False)
            bar.update()

        yield show


def _report(runs: dict[str, list[StepRecord]], *, memory: bool = True) -> None:
    from aegis.train.report import summarise, table

    if not all(runs.values()):
        print("no step was finished")
        return
    print(f"\n{table({name: summarise(records) for name, records in runs.items()}, memory=memory)}\n")


def _report_loader(loader: DataLoader[Any]) -> None:
    """What the loader says of its own work, where it says anything."""
    if not isinstance(loader, aegis.FlatArenaDataLoader) or not loader.path.startswith("native"):
        return
    stats = loader.stats()
    print(
        f"Loader: {stats.get('batches', 0):,.0f} batches in {stats.get('fill_seconds', 0.0):.3f} s of its threads; "
        f"{stats.get('native_allocations', 0):,.0f} native allocations after the ring's first round, "
        f"{stats.get('fresh_slots', 0):,.0f} slots beyond it.\n"
    )


def _write_curves(folder: Path, trainer: Trainer, settings: Settings) -> list[Path]:
    """The files written."""
    from aegis.train.curve import draw_curve, write_csv

    if not trainer.records:
        return []
    written = [folder / "loss.csv"]
    write_csv(written[0], trainer.records)
    print(f"loss curve, numbers: {folder / 'loss.csv'}")
    try:
        title = f"Micro-GPT '{settings.preset}' through {_NAMES[settings.loader]}"
        draw_curve(folder / "loss.png", trainer.records, title)
        written.append(folder / "loss.png")
        print(f"loss curve, picture: {folder / 'loss.png'}")
    except ModuleNotFoundError as error:
        hint = "pip install 'aegis-torch[demo]'"
        print(f"loss curve, picture: none, for {error.name} is not installed ({hint})")
    print(f"checkpoint: {folder / 'checkpoint.pt'}")
    return written
