"""What a run was, in one JSON file: written when it begins, and again when it ends, however it ends."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from aegis.evidence.chain import IntegrityChain
from aegis.evidence.environment import counters, host, versions
from aegis.evidence.receipt_file import ARTEFACT_HINT, FORMAT, VERSION, below, seal
from aegis.evidence.sources import describe_data
from aegis.files import atomic_file, open_regular
from aegis.runtime.precision import precision

__all__ = ["LossDigest", "Receipt", "file_sha256"]

_STATUSES = ("running", "complete", "interrupted", "failed")


class LossDigest:
    """SHA-256 over the steps and losses of a run: of each the step as int64 and the loss as float64, lowest byte
    first. It depends on every bit of every loss."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, step: int, loss: float) -> None:
        """One more step, an int64, and its loss, a float64."""
        self._hash.update(struct.pack("<qd", step, loss))

    def hexdigest(self) -> str:
        """64 hex digits, of what was added so far."""
        return self._hash.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits. Cost: one pass over the file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Receipt:
    """Records a training run as it goes, and writes what it was to ``path``.

    The file says which versions, machine, data, configuration and seeds made the run, what its chains held along the
    way, what its losses were as a digest, and which files came out of it. ``aegis verify`` reads it back and checks
    what can be checked again. It is a record for people who want to know whether two runs were the same and whether
    files are still those of the run. It proves nothing against its author: all of it, the SHA-256 of the whole
    included, can be made anew by whoever can run the code, and chains are no cryptographic functions.

    The file is written once at construction, with status "running", so that a folder that cannot be written to is an
    error before the first step, and a run that was killed leaves that behind. Each writing replaces the file as a whole
    or not at all.

    As a context manager, it writes on leaving the block: "complete", "interrupted" after KeyboardInterrupt or "failed"
    after any other exception, unless ``status`` was set to something else.

    Args:
        path: the JSON file; its folder must exist. Artefacts lie in that folder or below it.
        configuration: all that decides what is computed, as JSON values.
        seeds: numbers by name.
        datasets: data sets by name: a :class:`~aegis.TokenDataset` or a :class:`~aegis.RecordDataset`, which have
            fingerprints, or anything with a length.
        chains: :class:`IntegrityChain` objects by name, where there are any, as they are before the first step.
        every: steps from one kept chain value to the next. Whoever compares two runs learns where they parted to within
            that many steps; each value is about 30 bytes of JSON.
        first_step: number of the first step; that of a resumed run is not 1.
        counters: asked at the start and at every writing for numbers that only grow, to stand beside those of the
            process; always with the same names.

    Raises:
        OSError: the file cannot be written.
        ValueError: configuration or seeds hold something that JSON cannot, or a number is below 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        configuration: Mapping[str, Any],
        seeds: Mapping[str, int] | None = None,
        datasets: Mapping[str, Any] | None = None,
        chains: Mapping[str, IntegrityChain] | None = None,
        every: int = 100,
        first_step: int = 1,
        counters: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        every, first_step = operator.index(every), operator.index(first_step)
        for name, number in (("every", every), ("first_step", first_step)):
            if number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")
        self.path = Path(os.path.abspath(path))
        self.status = "running"
        self._every = every
        self._first = first_step
        self._last = first_step - 1
        self._chains = dict(chains or {})
        self._marks: dict[str, dict[str, str]] = {name: {} for name in self._chains}
        self._losses = LossDigest()
        self._first_loss: float | None = None
        self._last_loss: float | None = None
        self._artefacts: dict[str, dict[str, Any]] = {}
        self._losses_file: str | None = None
        self._fixed = {
            "versions": versions(),
            "host": host(),
            "configuration": _plain("configuration", dict(configuration)),
            "seeds": _plain("seeds", dict(seeds or {})),
            "data": [describe_data(name, data, self.path.parent) for name, data in (datasets or {}).items()],
        }
        self._precision = precision()
        self._chains_at_start = {name: chain.state() for name, chain in self._chains.items()}
        self._more_counters = counters
        self._counters_at_start = self._counters()
        self.write()

    def step(self, step: int, loss: Any) -> None:
        """Takes note of a finished step, after its batch and loss were added to the chains.

        Where the number is a multiple of ``every``, keeps the chains' values; a chain with a background thread is
        waited for then.

        Args:
            step: its number.
            loss: a number, or a tensor or array that is one.

        Raises:
            ValueError: ``step`` is not one more than the last.
        """
        if step != self._last + 1:
            raise ValueError(f"step: expected {self._last + 1}, got {step}")
        loss = float(loss)
        self._last = operator.index(step)
        self._losses.add(step, loss)
        self._last_loss = loss
        if self._first_loss is None:
            self._first_loss = loss
        if step % self._every == 0:
            self._mark()

    def add_artefact(self, path: str | os.PathLike[str], *, losses: bool = False) -> None:
        """Takes the size and the SHA-256 of a file as it is now. Added again, it replaces what was taken before.

        Its path is what has to lie in the folder: links are followed, here and by ``aegis verify``.

        Args:
            losses: it is a CSV file with columns ``step`` and ``loss``, by which the digest of the losses can be made
                again.

        Raises:
            OSError: no such file.
            ValueError: it does not lie in the receipt's folder or below.
        """
        file = Path(os.path.abspath(path))
        name = below(self.path.parent, file)
        if name is None:
            raise ValueError(f"path: expected {ARTEFACT_HINT} ({self.path.parent}), got {file}")
        size = file.stat().st_size
        if losses:
            self._losses_file = name
        self._artefacts[name] = {"path": name, "bytes": size, "sha256": file_sha256(file)}

    def write(self, status: str | None = None) -> None:
        """Writes the file as things stand; can be called at any time, and after an error again.

        Args:
            status: "running", "complete", "interrupted" or "failed"; None leaves ``self.status`` as it is.

        Raises:
            OSError: the disk is full, or the folder cannot be written to any more. What stood there before still does.
        """
        if status is not None:
            self.status = status
        if self.status not in _STATUSES:
            raise ValueError(f"status: expected one of {', '.join(_STATUSES)}, got {self.status!r}")
        text = json.dumps(seal(self._document()), indent=1, allow_nan=False)
        with atomic_file(self.path) as file:
            file.write(text.encode() + b"\n")

    def __enter__(self) -> Receipt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status == "running":
            interrupted = isinstance(error, KeyboardInterrupt)
            self.status = "complete" if error is None else "interrupted" if interrupted else "failed"
        try:
            self.write()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"the receipt {self.path} could not be written either: {second}")

    def _mark(self) -> None:
        for name, chain in self._chains.items():
            self._marks[name][str(self._last)] = str(chain)

    def _counters(self) -> dict[str, float]:
        both = {**counters(), **self._more_counters()}
        for name, value in both.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"counters: expected finite numbers, got {name} {value!r}")
        return both

    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "status": self.status,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            **self._fixed,
            "precision": {"start": self._precision, "end": precision()},
            "steps": {"first": self._first, "last": self._last, "every": self._every},
            "losses": {
                "first": None if self._first_loss is None else repr(self._first_loss),
                "last": None if self._last_loss is None else repr(self._last_loss),
                "sha256": self._losses.hexdigest(),
                "file": self._losses_file,
            },
            "chains": {
                name: {"start": self._chains_at_start[name], "end": chain.state(), "marks": self._marks[name]}
                for name, chain in self._chains.items()
            },
            "counters": {"start": self._counters_at_start, "end": self._counters()},
            "artefacts": list(self._artefacts.values()),
        }


def _plain(name: str, value: dict[str, Any]) -> Any:
    """``value`` as it comes back from JSON."""
    try:
        plain = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected values that JSON can hold: {error}") from error
    if name == "seeds" and not all(type(seed) is int and -(2**63) <= seed < 2**64 for seed in plain.values()):
        raise ValueError(f"seeds: expected whole numbers of 64 bits, got {value!r}")
    return plain
