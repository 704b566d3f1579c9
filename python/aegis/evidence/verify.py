"""Looks at everything in a receipt that can be looked at again."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aegis.evidence.receipt import LossDigest, file_sha256
from aegis.evidence.receipt_file import read_receipt, seal_of
from aegis.evidence.sources import open_data
from aegis.files import read_regular

__all__ = ["Check", "verify_receipt"]

_MOST_CSV = 1 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    ``passed`` is None where it could not be looked at from here; ``detail`` says what was found.
    """

    name: str
    passed: bool | None
    detail: str


def verify_receipt(path: str | os.PathLike[str], *, datasets: Mapping[str, Any] | None = None) -> list[Check]:
    """Checks a receipt against itself, its data and its artefacts. Nothing is run again: see :class:`Replay`.

    That all passes says that the files are still those that the receipt was written for, as far as SHA-256 and, for
    data, a fingerprint of sizes and edges can tell. It does not say that the run took place.

    Args:
        path: the receipt; artefacts, and data that lay beside it, are looked for in its folder.
        datasets: by the names that they have in the receipt, data sets that it cannot open itself.

    Raises:
        OSError, ValueError: the file is missing or no receipt.

    Cost: one pass over every artefact; of data two pages a file.
    """
    record = read_receipt(path)
    folder = Path(os.path.abspath(path)).parent
    checks = [
        _asked("seal", _seal, record),
        _asked("status", _status, record),
        _asked("losses", _losses, record),
        _asked("counters", _counters, record),
        _asked("precision", _precision, record),
        *(_asked(f"chain {name}", _chain, record, chain) for name, chain in record["chains"].items()),
    ]
    given = dict(datasets or {})
    for described in record["data"]:
        checks.append(_data(described, given.get(described["name"]), folder))
    for artefact in record["artefacts"]:
        checks.append(_asked(f"artefact {artefact['path']}", _artefact, artefact, folder))
    if record["losses"]["file"] is not None:
        checks.append(_asked(f"losses in {record['losses']['file']}", _losses_file, record, folder))
    return checks


class _Wrong(Exception):
    """What a check has found."""


def _asked(name: str, check: Callable[..., str], *arguments: Any) -> Check:
    try:
        return Check(name, True, check(*arguments))
    except (_Wrong, OSError, ValueError, csv.Error, RecursionError) as error:
        return Check(name, False, str(error))


def _seal(record: dict[str, Any]) -> str:
    found = seal_of(record)
    if found != record["sha256"]:
        raise _Wrong(f"the receipt was changed after it was written: expected SHA-256 {record['sha256']}, got {found}")
    return "the receipt is as it was written"


def _status(record: dict[str, Any]) -> str:
    if record["status"] == "running":
        raise _Wrong("the end of the run was never written: it goes on, or was killed")
    return f"{record['status']} after step {record['steps']['last']}"


def _losses(record: dict[str, Any]) -> str:
    steps, losses = record["steps"], record["losses"]
    count = steps["last"] - steps["first"] + 1
    if count < 0:
        raise _Wrong(f"expected the last step to be at least {steps['first'] - 1}, got {steps['last']}")
    if (losses["first"] is None or losses["last"] is None) != (count == 0) or (losses["first"] is None) != (
        losses["last"] is None
    ):
        raise _Wrong(f"expected a first and a last loss where there are steps and none else, got {count} steps")
    if count <= 1:
        digest = LossDigest()
        if count == 1:
            digest.add(steps["last"], float(losses["last"]))
        if digest.hexdigest() != losses["sha256"]:
            raise _Wrong("their digest is not that of the one loss there is" if count else "their digest is not empty")
    return f"{count:,} steps, the last with loss {losses['last']}"


def _counters(record: dict[str, Any]) -> str:
    start, end = record["counters"]["start"], record["counters"]["end"]
    if start.keys() != end.keys():
        raise _Wrong(f"expected the same counters at both ends, {', '.join(start.keys() ^ end.keys())} is at one")
    for name, value in start.items():
        if not (math.isfinite(value) and math.isfinite(end[name]) and value <= end[name]):
            raise _Wrong(f"expected {name} to grow, got {value} at the start and {end[name]} at the end")
    steps = record["steps"]["last"] - record["steps"]["first"] + 1
    if "steps" in start and end["steps"] - start["steps"] != steps:
        raise _Wrong(f"expected {steps} steps, got {start['steps']} at the start and {end['steps']} at the end")
    return f"{len(start)} counters, none of which fell"


def _precision(record: dict[str, Any]) -> str:
    start, end = record["precision"]["start"], record["precision"]["end"]
    if start != end:
        raise _Wrong(f"the settings changed while the run went on, from {start} to {end}")
    return ", ".join(f"{name} {value}" for name, value in start.items() if value != "none") or "no setting"


def _chain(record: dict[str, Any], chain: dict[str, Any]) -> str:
    steps, start, end, marks = record["steps"], chain["start"], chain["end"], chain["marks"]
    for name in ("bits", "lanes"):
        if start[name] != end[name]:
            raise _Wrong(f"expected one kind of chain, got {name} {start[name]} at the start, {end[name]} at the end")
    if start["records"] > end["records"]:
        raise _Wrong(f"expected records to grow, got {start['records']} at the start, {end['records']} at the end")
    if start["records"] == end["records"] and start["value"] != end["value"]:
        raise _Wrong("its value changed without a record")
    every = steps["every"]
    wanted = range(-(-steps["first"] // every) * every, steps["last"] + 1, every)
    found = list(map(int, marks))
    if len(found) != len(wanted) or any(a != b for a, b in zip(found, wanted, strict=True)):
        raise _Wrong(f"expected a value every {every} steps from {wanted.start} to {steps['last']}, in order")
    for step, value in marks.items():
        if len(value) != start["bits"] // 4:
            raise _Wrong(f"expected a value of {start['bits']} bits at step {step}, got {value}")
    return f"{end['records'] - start['records']:,} records, {len(marks):,} values kept"


def _artefact(artefact: dict[str, Any], folder: Path) -> str:
    path = folder / artefact["path"]
    size = path.stat().st_size
    if size != artefact["bytes"]:
        raise _Wrong(f"expected {artefact['bytes']:,} bytes, got {size:,}")
    found = file_sha256(path)
    if found != artefact["sha256"]:
        raise _Wrong(f"expected SHA-256 {artefact['sha256']}, got {found}")
    return f"{size:,} bytes, SHA-256 {found[:16]}..."


def _losses_file(record: dict[str, Any], folder: Path) -> str:
    steps, digest, last = record["steps"], LossDigest(), record["steps"]["first"] - 1
    for step, loss in _csv_losses(folder / record["losses"]["file"]):
        if steps["first"] <= step <= steps["last"]:
            digest.add(step, loss)
            last = step
    if digest.hexdigest() != record["losses"]["sha256"]:
        raise _Wrong(f"the digest of steps {steps['first']} to {last} is not the receipt's")
    return "the digest is that of the receipt"


def _csv_losses(path: Path) -> Iterator[tuple[int, float]]:
    rows = csv.DictReader(io.StringIO(read_regular(path, most=_MOST_CSV).decode(), newline=""))
    if not {"step", "loss"} <= set(rows.fieldnames or ()):
        raise _Wrong(f"expected columns step and loss, got {rows.fieldnames}")
    for row in rows:
        try:
            step, loss = int(row["step"]), float(row["loss"] or "nan")
        except (TypeError, ValueError) as error:
            raise _Wrong(f"line {rows.line_num}: expected numbers: {error}") from None
        if not 0 <= step < 2**63:
            raise _Wrong(f"line {rows.line_num}: expected a step, got {step}")
        yield step, loss


def _data(described: dict[str, Any], given: Any, folder: Path) -> Check:
    name = f"data {described['name']}"
    try:
        dataset = open_data(described, folder) if given is None else given
        if dataset is None:
            return Check(name, None, f"a receipt cannot open a {described['kind']}; its fingerprint was not compared")
        for key, value in (("samples", len(dataset)), ("fingerprint", dataset.fingerprint())):
            if value != described[key]:
                return Check(name, False, f"the data has changed: expected {key} {described[key]}, got {value}")
    except (OSError, ValueError, RuntimeError, TypeError) as error:  # TypeError: a path that C++ cannot take
        return Check(name, False, str(error))
    return Check(name, True, f"fingerprint {described['fingerprint']}, of sizes and of the ends of each file")
