"""Data sets of every kind of sample, and how two batches are compared."""

from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from dataclasses import dataclass

import aegis
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Record:
    image: torch.Tensor
    label: int


class Marked(torch.Tensor):
    """A subclass, as torchvision's tv_tensors are."""


def large(i, dtype=torch.float32, shape=(3, 64, 64)):
    """48 KB as float32: more than travels inside a message."""
    n = torch.Size(shape).numel()
    return (torch.arange(n) % 100 + i).reshape(shape).to(dtype)


def shared(i):
    return large(i).share_memory_()


SAMPLES = {
    "tensor": large,
    "small": lambda i: large(i, shape=(4,)),
    "scalar": lambda i: torch.tensor(float(i)),
    "int": lambda i: i,
    "float": lambda i: i / 7,
    "str": str,
    "bytes": lambda i: bytes([i]) * 50_000,
    "tuple": lambda i: (large(i), i),
    "two": lambda i: (large(i), large(i + 1, torch.int16), large(i, torch.uint8)),
    "list": lambda i: [large(i), [i, str(i)]],
    "named": lambda i: Pair(large(i), i),
    "dict": lambda i: {"image": large(i), "inner": {"label": i, "name": str(i), "mask": large(i) > 50}},
    "ordered": lambda i: OrderedDict(b=large(i), a=i),
    "default": lambda i: defaultdict(int, a=large(i)),
    "userdict": lambda i: UserDict(a=large(i), b=i),
    "userlist": lambda i: UserList([large(i), i]),
    "array": lambda i: large(i).numpy(),
    "arrays": lambda i: {"x": large(i).numpy().astype(np.float64), "y": np.int32(i), "z": np.bool_(i % 2)},
    "uint8": lambda i: large(i, torch.uint8),
    "bool": lambda i: large(i, torch.bool),
    "int64": lambda i: large(i, torch.int64),
    "uint16": lambda i: large(i, torch.uint16),
    "half": lambda i: large(i, torch.float16),
    "bfloat": lambda i: large(i, torch.bfloat16),
    "double": lambda i: large(i, torch.float64),
    "complex": lambda i: large(i, torch.complex64),
    "conjugate": lambda i: torch.complex(large(i), large(i)).conj(),
    "float8": lambda i: large(i % 4, torch.float8_e4m3fn),
    "permuted": lambda i: large(i, shape=(64, 64, 3)).permute(2, 0, 1),
    "channels_last": lambda i: large(i, shape=(2, 3, 32, 64)).contiguous(memory_format=torch.channels_last),
    "small_permuted": lambda i: large(i, shape=(5, 2, 2)).permute(2, 0, 1),
    "small_channels_last": lambda i: large(i, shape=(2, 3, 2, 4)).contiguous(memory_format=torch.channels_last),
    "expanded": lambda i: large(i, shape=(1, 64)).expand(200, 64),
    "empty": lambda i: torch.empty(0, 3),
    "many_dims": lambda i: large(i, shape=(2, 2, 2, 2, 2, 2, 2, 2, 64)),
    "subclass": lambda i: large(i).as_subclass(Marked),
    "shared": shared,
    "mixed": lambda i: large(i, torch.float64 if i % 2 else torch.float32),
    "gradless": lambda i: large(i).requires_grad_(i % 4 == 5),
}

WRONG = {
    "none": lambda i: None,
    "ragged": lambda i: large(i, shape=(3, 64, 60 + i % 4)),
    "ragged_last": lambda i: large(i, shape=(3, 64, 60 - i % 4)),
    "sparse": lambda i: large(i).to_sparse(),
    "record": lambda i: Record(large(i), i),
    "set": lambda i: {i},
    "lengths": lambda i: [large(i)] * (1 + i % 2),
    "object": lambda i: np.array([None, i]),
}


class Samples(Dataset):
    """Four samples of each kind, one kind after the other: with batch_size=4 each batch is of one kind."""

    def __init__(self, kinds):
        self.kinds = list(kinds)

    def __len__(self):
        return 4 * len(self.kinds)

    def __getitem__(self, i):
        return (SAMPLES | WRONG)[self.kinds[i // 4]](i)


class Numbered(Dataset):
    """n tensors of 192 KB that hold their own index."""

    def __init__(self, n, shape=(3, 128, 128)):
        self.n, self.shape = n, shape

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full(self.shape, float(i)), i


class NumberedStream(IterableDataset):
    """The same, each worker its share."""

    def __init__(self, n):
        self.samples = Numbered(n)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.samples[i] for i in range(first, len(self.samples), step))


def assert_same(one, other):
    """Types, structure, values and layout agree."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert (one.device, one.requires_grad, one.is_leaf) == (other.device, other.requires_grad, other.is_leaf)
        real = [torch.view_as_real(x) if x.is_complex() else x for x in (one.detach(), other.detach())]
        assert torch.equal(*(torch.empty(x.shape, dtype=x.dtype).copy_(x).view(-1).view(torch.uint8) for x in real))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.flags.writeable, one.strides) == (other.dtype, other.flags.writeable, other.strides)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict | UserDict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | UserList):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, Record):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


def outcomes(loader):
    """What each next() of one epoch gives: batches, and errors by type and by the first and last line of their text."""
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            lines = str(error).strip().splitlines()
            found.append((type(error), lines[0], lines[-1]))


def assert_both_same(dataset, **arguments):
    """Two epochs by torch's class and by ours from the same seed, and what is drawn from the generator afterwards."""
    found = []
    for loader_type in (DataLoader, aegis.FlatArenaDataLoader):
        torch.manual_seed(7)
        loader = loader_type(dataset, **arguments)
        found.append([*loader, *loader, torch.rand(2)])
    theirs, ours = found
    assert_same(ours, theirs)
