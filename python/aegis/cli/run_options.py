"""Options that commands which train share: data (``aegis train``, too), model and machine (soak, experiment)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from aegis.train.presets import PRESETS

if TYPE_CHECKING:
    from aegis.train.settings import Settings

__all__ = ["add_data_options", "add_run_options", "run_device", "run_settings"]


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the group "data"."""
    data = parser.add_argument_group("data")
    source = data.add_mutually_exclusive_group()
    source.add_argument(
        "--text",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="text files or folders (default: the sources of Python's standard library)",
    )
    source.add_argument("--data", type=Path, metavar="FILE", help="a token file, in place of text")
    data.add_argument("--val-data", type=Path, metavar="FILE", help="tokens to validate on, with --data")
    data.add_argument("--dtype", help="of a raw --data file: uint8, uint16, uint32, int32 or int64")
    data.add_argument("--vocab-size", type=int, help="ids the model knows (default for uint8: 256)")


def add_run_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Add them; ``out`` is the default of ``--out``."""
    add_data_options(parser)

    model = parser.add_argument_group("model and machine")
    sizes = ", ".join(f"{name}: {p.layers} layers, {p.width} wide" for name, p in PRESETS.items())
    model.add_argument("--model", choices=PRESETS, help=f"{sizes} (default: micro on CUDA, small elsewhere)")
    model.add_argument("--batch-size", type=int, help="windows in a batch")
    model.add_argument("--block-size", type=int, help="tokens in a window")
    model.add_argument("--lr", type=float, help="learning rate, after 20 steps of warm-up")
    model.add_argument("--seed", type=int, help="of the weights and of the order (default: 0)")
    model.add_argument("--device", type=torch.device, help="default: cuda where there is one, else cpu")
    model.add_argument(
        "--num-workers", type=int, default=1, help="filler threads, or torch's worker processes (default: 1)"
    )
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help=f"default: {out}")


def run_device(args: argparse.Namespace) -> torch.device:
    """The device asked for, or the best there is."""
    return args.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run_settings(args: argparse.Namespace) -> Settings:
    """Settings from the options; packs the text that was asked for into ``--out``.

    Raises:
        OSError, ValueError: bad input.
    """
    from aegis.train.settings import Settings
    from aegis.train.text import pack_text

    if args.num_workers < 0:
        raise ValueError(f"--num-workers: expected at least 0, got {args.num_workers}")
    for option in ("val_data", "dtype"):
        if getattr(args, option) and not args.data:
            raise ValueError(f"--{option.replace('_', '-')}: expected only together with --data")
    names = ("vocab_size", "batch_size", "block_size", "lr", "seed", "dtype")
    given = {name: getattr(args, name) for name in names}
    given["preset"] = args.model or ("micro" if run_device(args).type == "cuda" else "small")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.data:
        given["data"], given["val_data"] = str(args.data), str(args.val_data or "")
    else:
        packed = pack_text(args.out, args.text or ())
        given.update(data=str(packed.train), val_data=str(packed.validation), dtype="uint8")
        source = "--text" if args.text else "Python's standard library"
        print(f"data: {packed.train_tokens:,} bytes of {source}, every byte a token")
    return Settings.resolve(given)
