"""``aegis pack``: text, JSON lines or token files into one aegis v1 file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from aegis.cli.terminal import print_section, readable_bytes
from aegis.data.formats import DTYPES, format_names, look, recognise
from aegis.data.pack import KINDS, Packed, pack
from aegis.data.paths import expand_paths
from aegis.data.text_tokenizers import TokenizerFile

__all__ = ["register", "run"]

_JSON_LINES = (".jsonl", ".ndjson")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "pack",
        help="turn text, JSON lines or token files into one token file",
        description="Turn text, JSON lines or token files into one aegis v1 file, with the boundaries of documents and "
        "a checksum for every MiB. Begin a pack that was killed again to go on where it was.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files or patterns, in their order")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    parser.add_argument(
        "--from",
        dest="kind",
        choices=KINDS,
        help="what the files are; default: jsonl by suffix, tokens where a format is recognised, else text",
    )
    parser.add_argument("--key", help="of the text in each line of JSON (default: text)")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json of Hugging Face, ranks of tiktoken or a model of sentencepiece; default: every byte is a "
        "token",
    )
    text.add_argument("--pattern", metavar="REGEX", help="that splits text for tiktoken, whose files do not contain it")
    text.add_argument("--bos", metavar="TOKEN", help="an id, or a token of the tokenizer, before each document")
    text.add_argument("--eos", metavar="TOKEN", help="the same, behind each document")
    tokens = parser.add_argument_group("token files")
    tokens.add_argument("--format", default="auto", choices=format_names(), help="default: recognise it")
    tokens.add_argument("--dtype", choices=DTYPES, help="of raw files, which do not say it themselves")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="record it, and refuse ids of N and above")
    parser.add_argument("--store-as", choices=DTYPES, help="default: the smallest dtype that holds the largest id")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one on each usable core)")
    parser.add_argument("--overwrite", action="store_true", help="replace the output where it exists")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pack, and say what was written."""
    try:
        packed = _pack(args)
    except (RuntimeError, ImportError) as error:  # a disk that is full, a package that is missing
        raise ValueError(str(error)) from error
    if not args.quiet:
        _print(packed)
    return 0


def _pack(args: argparse.Namespace) -> Packed:
    paths = expand_paths(args.files)
    kind = args.kind or _kind(paths, args)
    if args.pattern is not None and args.tokenizer is None:
        raise ValueError("--pattern: expected a --tokenizer of tiktoken beside it")
    return pack(
        paths,
        args.output,
        kind=kind,
        key=args.key or "text",
        tokenizer=TokenizerFile(os.path.abspath(args.tokenizer), args.pattern) if args.tokenizer else None,
        bos=_token(args.bos),
        eos=_token(args.eos),
        format=args.format,
        input_dtype=args.dtype,
        vocab_size=args.vocab_size,
        dtype=args.store_as,
        workers=args.workers if args.workers is not None else len(os.sched_getaffinity(0)),
        overwrite=args.overwrite,
        progress=False if args.quiet else None,
    )


def _kind(paths: list[str], args: argparse.Namespace) -> str:
    """What the files are, all alike."""
    if args.dtype or args.format != "auto":
        return "tokens"
    if args.key:
        return "jsonl"
    kinds = {_kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"the files are of different kinds ({', '.join(sorted(kinds))}): say which with --from")
    return kinds.pop()


def _kind_of(path: str) -> str:
    if Path(path).suffix in _JSON_LINES:
        return "jsonl"
    if os.path.isfile(path) and os.path.getsize(path) == 0:
        return "text"
    return "text" if recognise(look(path)) == "raw" else "tokens"


def _token(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _print(packed: Packed) -> None:
    file = packed.file
    rows = [
        ("tokens", f"{file.tokens:,} of {file.dtype} in {readable_bytes(file.size)}"),
        ("documents", "not recorded" if file.documents is None else f"{file.documents:,}"),
        ("vocabulary", "not known" if file.vocab_size is None else f"{file.vocab_size:,}"),
        ("largest id", f"{file.largest_id:,}"),
    ]
    if packed.reused:
        rows.append(("went on", f"{packed.reused:,} of {packed.chunks:,} chunks were there"))
    print_section(file.path, rows)
