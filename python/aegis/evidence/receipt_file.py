"""The receipt's file: what it must look like, and reading one that anybody may have written."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from aegis.files import read_regular

__all__ = ["ARTEFACT_HINT", "FORMAT", "VERSION", "below", "read_receipt", "seal", "seal_of"]

FORMAT = "aegis receipt"
VERSION = 1
ARTEFACT_HINT = "a file in the receipt's folder or below it"

_MOST_BYTES = 1 << 26
_STATUSES = ("running", "complete", "interrupted", "failed")

# A check takes a value and says what was expected, or nothing where the value is right.
Check = Callable[[Any], str | None]


def below(folder: Path, file: Path) -> str | None:
    """``file`` as seen from ``folder``, with "/" between its parts; None where it lies elsewhere. Both absolute."""
    try:
        return file.relative_to(folder).as_posix()
    except ValueError:
        return None


def seal_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of all of a receipt but its own key "sha256": of the JSON in ASCII, with sorted keys and no spaces."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with its SHA-256, by which an edit that did not mean to deceive is noticed."""
    return {**document, "sha256": seal_of(document)}


def read_receipt(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The receipt in a file, every value of it checked for its kind and range.

    That the parts agree with each other, with files and with the seal is for :func:`verify_receipt` to say.

    Raises:
        OSError: the file is missing, unreadable or no regular file.
        ValueError: it is no receipt of this version; names the place and what was expected there.
    """
    data = read_regular(Path(path), most=_MOST_BYTES)
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except RecursionError:
        raise ValueError(f"{path}: expected a receipt, got JSON that is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, or of an int beyond Python's limit
        raise ValueError(f"{path}: expected a receipt in JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a receipt of aegis, got something else")
    if document.get("version") != VERSION:
        raise ValueError(f"{path}: expected a receipt of version {VERSION}, got {document.get('version')!r}")
    wrong = _receipt(document)
    if wrong is not None:
        raise ValueError(f"{path}: {wrong}")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


# --- what is expected where --------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _count(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value < 2**63 else "a whole number from 0 on"


def _positive(value: Any) -> str | None:
    return None if type(value) is int and 1 <= value < 2**63 else "a whole number from 1 on"


def _word(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value < 2**64 else "a whole number of 64 bits"


def _integer(value: Any) -> str | None:
    return None if type(value) is int and -(2**63) <= value < 2**64 else "a whole number of 64 bits"


def _number(value: Any) -> str | None:
    fits = type(value) is float or (type(value) is int and abs(value) < 2**63)
    return None if fits else "a number"


def _matching(pattern: str, meaning: str) -> Check:
    expression = re.compile(pattern)
    return lambda value: None if isinstance(value, str) and expression.fullmatch(value) else meaning


def _one_of(*values: Any) -> Check:
    def check(value: Any) -> str | None:
        if type(value) in map(type, values) and value in values:
            return None
        return f"one of {', '.join(map(repr, values))}"

    return check


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _loss(value: Any) -> str | None:
    try:
        return None if isinstance(value, str) and repr(float(value)) == value else "a loss as text, such as '2.5'"
    except ValueError:
        return "a loss as text, such as '2.5'"


def _relative(value: Any) -> str | None:
    if isinstance(value, str) and value and "\0" not in value:
        path = PurePosixPath(value)
        if not path.is_absolute() and ".." not in path.parts and path.as_posix() == value and value != ".":
            return None
    return ARTEFACT_HINT


def _path(value: Any) -> str | None:
    return None if isinstance(value, str) and value and "\0" not in value else "a path"


def _at(place: str, wrong: str | None, value: Any) -> str | None:
    """``wrong`` with its place, and what came where a single value was looked at."""
    if wrong is None:
        return None
    if wrong.startswith("\n"):  # it already says where, below this place
        return f"\n{place}{'' if wrong[1] == '[' else '.'}{wrong[1:]}"
    shown = repr(value)
    return f"\n{place}: expected {wrong}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _object(**fields: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, dict) or value.keys() != fields.keys():
            return f"an object with {', '.join(fields)}"
        found = (_at(name, field(value[name]), value[name]) for name, field in fields.items())
        return next((wrong for wrong in found if wrong), None)

    return check


def _map(item: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return "an object"
        return next((wrong for name, one in value.items() if (wrong := _at(name, item(one), one))), None)

    return check


def _list(item: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list):
            return "a list"
        found = (_at(f"[{at}]", item(one), one) for at, one in enumerate(value))
        return next((wrong for wrong in found if wrong), None)

    return check


def _chain_state(value: Any) -> str | None:
    wrong = _state(value)
    if wrong is None and value["value"] >> value["bits"]:
        return _at("value", f"a number of {value['bits']} bits", value["value"])
    return wrong


def _marks(value: Any) -> str | None:
    wrong = _map(_hex_value)(value)
    if wrong is None and not all(_step.fullmatch(step) for step in value):
        return "an object with steps as its names"
    return wrong


_step = re.compile("[1-9][0-9]{0,18}")
_hex_value = _matching("[0-9a-f]{8}|[0-9a-f]{16}", "8 or 16 hex digits")
_sha256 = _matching("[0-9a-f]{64}", "64 hex digits")
_state = _object(bits=_one_of(32, 64), lanes=_one_of(True, False), value=_word, records=_count)
_dtype = _matching("[<>|][iu][1248]", "a dtype such as '<u2'")
_source = _object(paths=_list(_path), format=_text, dtype=_dtype, block_size=_positive, stride=_positive)
_fields = _object(
    format=_one_of(FORMAT),
    version=_one_of(VERSION),
    status=_one_of(*_STATUSES),
    written=_text,
    versions=_map(_text),
    host=_map(lambda value: None if value is None or isinstance(value, str) else _count(value)),
    configuration=_map(lambda value: None),
    seeds=_map(_integer),
    data=_list(
        _object(
            name=_text,
            kind=_text,
            samples=_or_none(_count),
            fingerprint=_or_none(_text),
            source=_or_none(_source),
        )
    ),
    precision=_object(start=_map(_text), end=_map(_text)),
    steps=_object(first=_positive, last=_count, every=_positive),
    losses=_object(first=_or_none(_loss), last=_or_none(_loss), sha256=_sha256, file=_or_none(_relative)),
    chains=_map(_object(start=_chain_state, end=_chain_state, marks=_marks)),
    counters=_object(start=_map(_number), end=_map(_number)),
    artefacts=_list(_object(path=_relative, bytes=_count, sha256=_sha256)),
    sha256=_sha256,
)


def _receipt(document: dict[str, Any]) -> str | None:
    wrong = _fields(document)
    if wrong is None:
        return None
    return wrong[1:] if wrong.startswith("\n") else f"expected {wrong}"
