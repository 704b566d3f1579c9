"""``aegis inspect``: what is in a token file, and whether something is wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aegis.cli.terminal import print_section, readable_bytes
from aegis.data.formats import DTYPES, TokenFile, describe, format_names
from aegis.data.token_dataset import open_store

__all__ = ["register", "run"]

_SHOWN = 12
_CHUNK = 1 << 22
_WIDER = {"uint8": "uint16", "uint16": "uint32", "uint32": "int64", "int32": "int64"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what is in a token file, and what is wrong with it",
        description="Say what is in each file: format, dtype, tokens, documents, first tokens, largest id and "
        "problems. Exit status 1 when a file has a problem or cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--format", default="auto", choices=format_names(), help="default: recognise it")
    parser.add_argument("--dtype", choices=DTYPES, help="of raw files, which do not say it themselves")
    parser.add_argument("--vocab-size", type=_positive, metavar="N", help="report ids of N and above")
    parser.add_argument(
        "--scan",
        type=_positive,
        default=100_000_000,
        metavar="N",
        help="look for the largest id in the first N tokens (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 if anything was wrong."""
    reports, failed = [], False
    for path in args.files:
        try:
            file = describe(path, args.format, args.dtype)
            reports.append(_report(file, args.scan, args.vocab_size))
        except (OSError, ValueError, RuntimeError) as error:
            print(f"aegis inspect: error: {error}", file=sys.stderr)
            failed = True
    if args.json:
        print(json.dumps(reports, indent=2))
    else:
        for report in reports:
            _print(report)
    return int(failed or any(report["problems"] for report in reports))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return value


def _report(file: TokenFile, scan: int, vocab_size: int | None) -> dict[str, Any]:
    store = open_store([file])
    tokens: NDArray[Any] = torch.utils.dlpack.from_dlpack(store.dlpack()).numpy()
    scanned = min(scan, len(tokens))
    chunks = [tokens[begin : min(begin + _CHUNK, scanned)] for begin in range(0, scanned, _CHUNK)]
    smallest = min(int(chunk.min()) for chunk in chunks)
    largest = max(int(chunk.max()) for chunk in chunks)
    report = asdict(file) | {
        "first_tokens": tokens[:_SHOWN].tolist(),
        "scanned": scanned,
        "smallest_id": smallest,
        "largest_id": largest,
        "problems": _problems(tokens[:scanned], smallest, largest, vocab_size),
    }
    store.verify_all()  # what was read from a file that was being cut short is not worth showing
    return report


def _problems(tokens: NDArray[Any], smallest: int, largest: int, vocab_size: int | None) -> list[str]:
    problems = []
    if smallest < 0:
        problems.append(f"ids below 0 (the smallest is {smallest}): wrong dtype, or ids that overflowed")
    if vocab_size is not None and largest >= vocab_size:
        problems.append(f"ids outside the vocabulary: expected 0 to {vocab_size - 1}, the largest is {largest}")
    head = tokens[: 1 << 16]
    wider = _WIDER.get(str(tokens.dtype))
    if wider and len(head) >= 64 and not head[1::2].any() and np.count_nonzero(head[::2]) > len(head) // 4:
        problems.append(f"every second id is 0: the tokens look like {wider} read as {tokens.dtype}")
    if largest == smallest and len(tokens) > 1:
        problems.append(f"every id is {largest}")
    return problems


def _print(report: dict[str, Any]) -> None:
    scanned, count = report["scanned"], report["tokens"]
    part = "" if scanned == count else f" (in the first {scanned:,} tokens)"
    order = ", other byte order" if report["swapped"] else ""
    documents = report["documents"]
    first = ", ".join(map(str, report["first_tokens"]))
    rows = [
        ("format", f"{report['format']}, tokens from byte {report['byte_offset']}"),
        ("dtype", report["dtype"] + order),
        ("tokens", f"{count:,} in {readable_bytes(report['size'])}"),
        ("documents", "not recorded in this format" if documents is None else f"{documents:,}"),
        ("first tokens", first + (", ..." if count > len(report["first_tokens"]) else "")),
        ("largest id", f"{report['largest_id']:,}{part}"),
        ("problems", "; ".join(report["problems"]) or "none"),
    ]
    print_section(report["path"], rows)
