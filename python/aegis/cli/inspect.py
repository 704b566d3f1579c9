"""``aegis inspect``: what is in a token file, and whether something is wrong with it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aegis import _C
from aegis.cli.terminal import print_section, readable_bytes
from aegis.data.formats import DTYPES, TokenFile, describe, document_offsets, format_names
from aegis.data.paths import expand_paths
from aegis.data.token_dataset import open_store
from aegis.data.token_formats import aegis_v1

__all__ = ["register", "run"]

_SHOWN = 12
_SCANNED = 100_000_000
_NO_LIMIT = 2**63 - 1
_WIDER = {"uint8": "uint16", "uint16": "uint32", "uint32": "int64", "int32": "int64"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what is in a token file, and what is wrong with it",
        description="Say what is in each file: format, dtype, tokens, documents, first tokens, largest id and "
        "problems. Exit status 1 when a file has a problem or cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, patterns or folders of litData")
    parser.add_argument("--format", default="auto", choices=format_names(), help="default: recognise it")
    parser.add_argument("--dtype", choices=DTYPES, help="of raw files, which do not say it themselves")
    parser.add_argument("--vocab-size", type=_positive, metavar="N", help="look for ids of N and above, in all tokens")
    parser.add_argument(
        "--scan",
        type=_positive,
        metavar="N",
        help=f"look at the first N tokens only (default: {_SCANNED}, or all with --vocab-size)",
    )
    parser.add_argument("--verify", action="store_true", help="read all of an aegis file and check every checksum")
    parser.add_argument("--json", action="store_true", help="print a JSON list, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 if anything was wrong."""
    reports, failed = [], False
    for path in _paths(args.files):
        try:
            file = describe(path, args.format, args.dtype)
            reports.append(_report(file, args.scan, args.vocab_size, args.verify))
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


def _paths(given: list[str]) -> list[str]:
    """The files named, as far as they can be found: those that cannot are told of when they are opened."""
    paths = []
    for path in given:
        try:
            paths += expand_paths(path)
        except (OSError, ValueError):
            paths.append(path)
    return paths


def _report(file: TokenFile, scan: int | None, vocab_size: int | None, verify: bool) -> dict[str, Any]:
    store = open_store([file])
    tokens: NDArray[Any] = torch.utils.dlpack.from_dlpack(store.dlpack()).numpy()
    scanned = min(scan or (_SCANNED if vocab_size is None else file.tokens), file.tokens)
    threads = len(os.sched_getaffinity(0))
    smallest, largest, outside = _C.scan_ids(store, 0, 0, scanned, min(vocab_size or _NO_LIMIT, _NO_LIMIT), threads)
    report = asdict(file) | {
        "largest_id_recorded": file.largest_id,
        "first_tokens": tokens[:_SHOWN].tolist(),
        "scanned": scanned,
        "smallest_id": smallest,
        "largest_id": largest,
        "shortest_document": None,
        "longest_document": None,
        "checksums": None if file.format != "aegis" else "not checked",
    }
    problems = _problems(tokens[:scanned], smallest, largest)
    if outside >= 0 and vocab_size is not None:
        problems.append(
            f"ids outside the vocabulary: expected 0 to {vocab_size - 1}, got {tokens[outside]} at token {outside}"
        )
    if scanned == file.tokens and file.largest_id not in (None, largest):
        problems.append(f"the largest id is {largest}, but the header says {file.largest_id}")
    offsets = document_offsets(file)
    if offsets is not None:
        lengths = np.diff(offsets)
        report |= {"shortest_document": int(lengths.min()), "longest_document": int(lengths.max())}
    if verify and file.format == "aegis":
        aegis_v1.verify(file.path, threads)
        report["checksums"] = "as they should be"
    store.verify_all()  # what was read from a file that was being cut short is not worth showing
    return report | {"problems": problems}


def _problems(tokens: NDArray[Any], smallest: int, largest: int) -> list[str]:
    problems = []
    if smallest < 0:
        problems.append(f"ids below 0 (the smallest is {smallest}): wrong dtype, or ids that overflowed")
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
    lengths = f", of {report['shortest_document']:,} to {report['longest_document']:,} tokens" if documents else ""
    first = ", ".join(map(str, report["first_tokens"]))
    rows = [
        ("format", f"{report['format']}, tokens from byte {report['byte_offset']}"),
        ("dtype", report["dtype"] + order),
        ("tokens", f"{count:,} in {readable_bytes(report['size'])}"),
        ("documents", "not recorded in this format" if documents is None else f"{documents:,}{lengths}"),
        ("first tokens", first + (", ..." if count > len(report["first_tokens"]) else "")),
        ("largest id", f"{report['largest_id']:,}{part}"),
        ("problems", "; ".join(report["problems"]) or "none"),
    ]
    if report["format"] == "aegis":
        vocabulary = "not recorded" if report["vocab_size"] is None else f"{report['vocab_size']:,}"
        rows[-1:-1] = [
            ("vocabulary", vocabulary),
            ("tokenizer", "not recorded" if report["tokenizer"] is None else f"SHA-256 {report['tokenizer']}"),
            ("checksums", report["checksums"]),
        ]
    print_section(report["path"], rows)
