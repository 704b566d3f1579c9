"""The same script run with torch's DataLoader and with ours, and everything that its user could notice compared."""

import random
import re
import sys
import warnings
from itertools import islice

import aegis
import numpy as np
import torch
from aegis.data.collate import InProcessCollate
from samples import Numbered, assert_same, large
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate, get_worker_info

LOADERS = (DataLoader, aegis.FlatArenaDataLoader)

NATIVE = ["tokens-0", "tokens-1", "tensors-0", "tensors-2", "records-1"]
ARENA = ["arena-0", "arena-1", "arena-2"]
WAYS = ["tokens-0", "tensors-0", "records-1", "arena-0", "arena-1", "torch-0"]
THREADED = ["tokens-1", "tensors-2", "records-1", "arena-1", "arena-2"]
INLINE = [way for way in WAYS if way.endswith("-0")]


def collated(samples):
    """As torch's own function: one of the user's, which our loader leaves to torch when it has no workers."""
    return default_collate(samples)


class Way:
    """Ten samples that come one of our ways, by the name of it and the number of workers."""

    def __init__(self, name, token_file):
        self.kind, workers = name.split("-")
        self.workers = int(workers)
        self.prefix = "native" if self.kind in ("tokens", "tensors", "records") else self.kind
        self.dataset = {
            "tokens": lambda: aegis.TokenDataset(token_file, 4990, dtype="uint16", stride=1),
            "tensors": lambda: TensorDataset(torch.arange(40.0).reshape(10, 4), torch.arange(10)),
            "records": lambda: aegis.RecordDataset({"x": np.arange(40).reshape(10, 4), "y": np.arange(10)}),
            "arena": lambda: Numbered(10, (3, 64, 64)),
            "torch": lambda: Numbered(10, (4,)),
        }[self.kind]()

    def __call__(self, loader_type, dataset=None, **arguments):
        arguments.setdefault("num_workers", self.workers)
        if self.kind == "torch" and "batch_size" not in arguments:
            arguments.setdefault("collate_fn", collated)
        loader = loader_type(self.dataset if dataset is None else dataset, **arguments)
        if isinstance(loader, aegis.FlatArenaDataLoader) and arguments.get("batch_size", 1) is not None:
            assert self.kind == "torch" or loader.path.startswith(self.prefix)
        return loader


def every_size_in_slots(monkeypatch):
    monkeypatch.setattr(InProcessCollate, "MIN_BYTES", 1)


class Map(Dataset):
    """``n`` samples made by ``make``: a tensor of 48 KB and the index, where nothing else is said."""

    def __init__(self, make=None, n=10):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return (large(i), i) if self.make is None else self.make(i)


class Stream(IterableDataset):
    """``n`` samples, each of them from every worker; a length only where one is given."""

    def __init__(self, n=5):
        self.n = n

    def __iter__(self):
        return iter([(large(i), i) for i in range(self.n)])


class Sized(Stream):
    def __init__(self, n=5, declared=5):
        super().__init__(n)
        self.declared = declared

    def __len__(self):
        return self.declared


def seeds(i):
    """What a worker's generators are seeded with, and what it is told of itself."""
    info = get_worker_info()
    drawn = (torch.initial_seed(), random.random(), np.random.random_sample())  # noqa: NPY002
    return (i, *drawn, info.id, info.num_workers, info.seed)


_NAMES = {
    "FlatArenaDataLoader": "DataLoader",
    "SingleProcessIter": "_SingleProcessDataLoaderIter",
    "MultiProcessIter": "_MultiProcessingDataLoaderIter",
}


def plain(text):
    """The lines of a text less those of a traceback that name code, with torch's class names for ours."""
    text = re.sub(r"\b(" + "|".join(_NAMES) + r")\b", lambda name: _NAMES[name[0]], text)
    text = re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"(pids?(?:\(s\))?) [\d, ]+\d", r"\1 N", text))
    return [line for line in text.splitlines() if not re.match(r'  File "|    ', line)]


def described(error):
    return type(error).__name__, type(error).__module__, plain(str(error))


def events(iterator, limit=40):
    """What each next() gives until the iteration ends: batches, and errors as they are described."""
    found = []
    while len(found) < limit:
        try:
            found.append(next(iterator))
        except StopIteration:
            found.append("end")
            return found
        except Exception as error:
            found.append(described(error))
    raise AssertionError("no end of iteration")


def epoch(loader):
    """The events of one epoch. Ends its workers: an iterator of torch's that has raised lies in a reference cycle, and
    collecting it waits 5 s for each."""
    iterator = iter(loader)
    found = events(iterator)
    if not loader.persistent_workers:
        end_workers(iterator)
    return found


def end_workers(iterator):
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def some(loader, count):
    return list(islice(loader, count))


def observed(loader_type, script):
    """What ``script(loader_type)`` returns or raises, its warnings, and the state that all generators are left in."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    seen = {"result": None, "error": None}
    unraisable, sys.unraisablehook = (
        sys.unraisablehook,
        lambda _: None,
    )  # torch's iterators fail in __del__ after errors
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                seen["result"] = script(loader_type)
            except Exception as error:
                seen["error"] = described(error)
    finally:
        sys.unraisablehook = unraisable
    seen["warnings"] = [(warning.category.__name__, plain(str(warning.message))) for warning in caught]
    seen["torch"] = torch.get_rng_state()
    seen["random"] = random.getstate()
    seen["numpy"] = np.random.get_state()  # noqa: NPY002
    return seen


def both(script):
    """Asserts that ``script`` is the same with both classes, and returns what it came to with torch's."""
    theirs, ours = (observed(loader_type, script) for loader_type in LOADERS)
    for name, value in theirs.items():
        try:
            assert_same(ours[name], value)
        except AssertionError as error:
            raise AssertionError(f"{name}: torch {value!r:.800}, ours {ours[name]!r:.800}") from error
    return theirs


def both_fail(script, kind, text):
    """The same, where the script ends in an error of this kind that holds this text."""
    found = both(script)["error"]
    assert found is not None, "no error"
    assert found[0] == kind
    assert text in "\n".join(found[2])


def both_warn(script, text):
    """The same, where the script warns of this."""
    found = both(script)
    assert found["error"] is None, found["error"]
    assert any(text in "\n".join(lines) for _, lines in found["warnings"]), found["warnings"]
    return found


def both_work(script):
    """The same, without error or warning; returns the result."""
    found = both(script)
    assert found["error"] is None, found["error"]
    assert found["warnings"] == []
    return found["result"]
