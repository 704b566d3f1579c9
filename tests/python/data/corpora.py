"""Token data sets of every layout, and where their rows come from."""

import aegis
import numpy as np


def corpus(folder, name, tokens, *, first=0, dtype="int32", seed=0):
    """A file of tokens that count up from ``first``, and offsets of its documents, of 0 to 40 tokens."""
    random = np.random.default_rng(seed)
    bounds = np.cumsum([0, *random.integers(0, 41, tokens // 20)])
    bounds = np.append(bounds[bounds < tokens], tokens)
    path = folder / f"{name}.bin"
    np.arange(first, first + tokens).astype(dtype).tofile(path)
    return path, bounds


def dataset(folder, name="a", tokens=1500, block=16, *, first=0, dtype="int32", **arguments):
    path, bounds = corpus(folder, name, tokens, first=first, dtype=dtype, seed=tokens)
    return aegis.TokenDataset(path, block, dtype=dtype, documents=[bounds], **arguments)


def mixture(folder, weights=(3, 1, 2), **arguments):
    """Three sources of unlike lengths, layouts and dtypes; a token tells which one it is of."""
    sources = [
        dataset(folder, "a", 1500, layout="packed"),
        dataset(folder, "b", 700, first=10_000, dtype="uint16"),
        dataset(folder, "c", 900, first=20_000, dtype="int64", layout="packed"),
    ]
    return aegis.TokenMixture(sources, weights, **arguments)


def rows(batch):
    """Each row's tokens as bytes."""
    inputs = batch["inputs"] if isinstance(batch, dict) else batch[0]
    return [row.numpy().tobytes() for row in inputs]


def sources_of(batch):
    """Of which source of :func:`mixture` each row is."""
    return (batch[0][:, 0] // 10_000).tolist()
