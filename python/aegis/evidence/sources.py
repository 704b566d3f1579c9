"""Data sets in receipts: what is written of them, and how they are opened again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aegis.data.record_dataset import RecordDataset
from aegis.data.token_dataset import TokenDataset
from aegis.evidence.receipt_file import below

__all__ = ["describe_data", "open_data"]


def describe_data(name: str, dataset: Any, folder: Path) -> dict[str, Any]:
    """What a receipt in ``folder`` says of a data set.

    ``source`` is what opens a :class:`~aegis.TokenDataset` again: files in the folder go by their place in it, so that
    they may be moved together. It is None for other data sets. ``samples`` and ``fingerprint`` are None where there are
    none.
    """
    try:
        samples = len(dataset)
    except (TypeError, NotImplementedError):
        samples = None
    known = isinstance(dataset, TokenDataset | RecordDataset)
    return {
        "name": name,
        "kind": type(dataset).__name__,
        "samples": samples,
        "fingerprint": dataset.fingerprint() if known else None,
        "source": _source(dataset, folder) if type(dataset) is TokenDataset else None,
    }


def _source(dataset: TokenDataset, folder: Path) -> dict[str, Any]:
    first = dataset.files[0]
    formats = {file.format for file in dataset.files}
    dtype = np.dtype(first.dtype)
    return {
        "paths": [below(folder, Path(path)) or path for path in dataset.paths],
        "format": formats.pop() if len(formats) == 1 else "auto",
        "dtype": (dtype.newbyteorder() if first.swapped else dtype).str,
        "block_size": dataset.block_size,
        "stride": dataset.stride,
    }


def open_data(described: Mapping[str, Any], folder: Path) -> TokenDataset | None:
    """The data set again, as its files are now; None where the receipt does not say how.

    Raises:
        OSError, ValueError: a file is missing or is not what it was.
    """
    source = described["source"]
    if source is None:
        return None
    paths = [os.path.join(folder, path) for path in source["paths"]]
    return TokenDataset(
        paths, source["block_size"], format=source["format"], dtype=source["dtype"], stride=source["stride"]
    )
