"""What every process of a torchrun in test_ranks.py does; writes what it saw as JSON.

torchrun rank_script.py MODE FOLDER
"""

import json
import os
import sys
from pathlib import Path

import aegis
import corpora
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def train(batches, wrap):
    """The first token of each row seen."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for x, _ in batches:
        model(x / 30_000).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(x[:, 0].tolist())
    return seen


def save_and_resume(folder):
    data = corpora.mixture(folder / os.environ["RANK"], samples=61)
    loader = aegis.FlatArenaDataLoader(data, 4, shuffle=True, seed=3, num_workers=1)
    dist.init_process_group("gloo")  # the loader was made before
    result = {"length": len(loader)}
    iterator = iter(loader)
    result["head"] = train((next(iterator) for _ in range(4)), DistributedDataParallel)
    dcp.save({"loader": loader}, checkpoint_id=folder / "checkpoint")
    result["rest"] = train(iterator, DistributedDataParallel)
    resumed = aegis.FlatArenaDataLoader(data, 2, shuffle=True, seed=3)
    dcp.load({"loader": resumed}, checkpoint_id=folder / "checkpoint")
    result["resumed"] = train(resumed, lambda model: fully_shard(model))
    return result


def differ(folder):
    """What this rank hears of data, then of weights, that differ between ranks, and of a file cut short on rank 1."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cut = corpora.dataset(folder, "cut")
    if rank == 1:
        os.truncate(cut.paths[0], 100)
    mixed = aegis.FlatArenaDataLoader(corpora.mixture(folder, (3, 1, 2 + rank)), 4, seed=3)
    loaders = [
        aegis.FlatArenaDataLoader(corpora.dataset(folder, "other", tokens=1500 + 200 * rank), 4, seed=3),
        mixed,
        mixed,
        aegis.FlatArenaDataLoader(cut, 4, seed=3),
    ]
    errors = []
    for loader in loaders:
        try:
            iter(loader)
        except (ValueError, RuntimeError) as error:
            errors.append(str(error))
    return {"errors": errors}


if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, folder = sys.argv[1], Path(sys.argv[2])
    rank = os.environ["RANK"]
    (folder / rank).mkdir()
    result = save_and_resume(folder) if mode == "save_and_resume" else differ(folder / rank)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
