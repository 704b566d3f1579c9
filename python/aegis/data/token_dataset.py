import os

import torch
from torch.utils.data import Dataset

from aegis import _C


class TokenDataset(Dataset):
    def __init__(self, path, block_size, *, dtype="uint16", stride=None):
        n = os.path.getsize(path) // torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        self.store = _C.TokenStore([(path, dtype, 0, n, False)])
        self.block_size = block_size
        self.windows = _C.TokenWindows(self.store, block_size, stride or block_size)
        self.arena = torch.utils.dlpack.from_dlpack(self.store.dlpack())
        self.tail_tokens = self.windows.tail_tokens

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        o = self.windows.offset(i)
        x, y = torch.ops.aegis.extract_batch(self.arena, torch.tensor([o]), self.block_size)
        return x[0], y[0]

    def fingerprint(self):
        return "x"
