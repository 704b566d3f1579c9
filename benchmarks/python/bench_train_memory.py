"""Peak memory of a whole training process, by the way its batches come; a Markdown table on stdout.

Each contender trains the same small GPT on the same token file in a process of its own, while this one adds up
/proc/PID/smaps_rollup over it and its workers. PSS shares a page fairly among the processes that map it, file
pages included; these the kernel can drop at any time, so the anonymous part (heap, arrays, rings) stands beside.

    python benchmarks/python/bench_train_memory.py [--gib 1] [--data FILE --dtype uint16] [--steps 50]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

INTERVAL = 0.05  # seconds between two looks at the memory
VOCABULARY = 256
CONTENDERS = {
    "array": "array in RAM, indexed per sample (nanoGPT)",
    "torch": "DataLoader, 4 worker processes",
    "aegis": "aegis.FlatArenaDataLoader, 1 filler thread",
}


def array_batches(args: argparse.Namespace) -> Iterator[list[object]]:
    """nanoGPT's ``get_batch`` over the whole file as one array."""
    import torch

    data = np.fromfile(args.data, args.dtype)
    while True:
        starts = torch.randint(len(data) - args.block_size, (args.batch_size,))
        rows = [torch.from_numpy(data[i : i + args.block_size + 1].astype(np.int64)) for i in starts]
        yield [torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])]


def loader_batches(args: argparse.Namespace) -> Iterator[list[object]]:
    """Disjoint windows, shuffled. (With every offset a window, torch's order alone takes 40 bytes a token.)"""
    import aegis
    from aegis.train.trainer import endless
    from torch.utils.data import DataLoader

    dataset = aegis.TokenDataset(args.data, args.block_size, dtype=args.dtype, stride=args.block_size)
    if args.child == "torch":
        return endless(DataLoader(dataset, args.batch_size, shuffle=True, num_workers=4, drop_last=True))
    return endless(
        aegis.FlatArenaDataLoader(dataset, args.batch_size, shuffle=True, seed=0, num_workers=1, drop_last=True)
    )


def child(args: argparse.Namespace) -> None:
    """Train, check every batch, and print the rate end to end."""
    import torch
    from aegis.train.model import MicroGPT, MicroGPTConfig
    from aegis.train.report import summarise
    from aegis.train.trainer import TrainConfig, Trainer

    def checked(batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        for inputs, targets in batches:
            assert inputs.shape == targets.shape == (args.batch_size, args.block_size)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            yield [inputs, targets]

    torch.manual_seed(0)
    config = MicroGPTConfig(VOCABULARY, args.block_size, layers=4, heads=4, width=128)
    train = TrainConfig(steps=args.steps, batch_size=args.batch_size)
    trainer = Trainer(MicroGPT(config), train, vocab_size=VOCABULARY, device=torch.device("cpu"))
    batches = checked(array_batches(args) if args.child == "array" else loader_batches(args))
    while trainer.step < args.steps:
        trainer.advance(batches)
    print(json.dumps({"tokens_per_second": summarise(trainer.records).tokens_per_second}))


def tree(pid: int) -> Iterator[int]:
    """``pid`` and its descendants."""
    yield pid
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for below in listing.read_text().split():
            yield from tree(int(below))


def memory(pid: int) -> dict[str, int]:
    """PSS and its anonymous part in bytes, summed over the process tree; processes that just ended count 0."""
    total = {"Pss": 0, "Pss_Anon": 0}
    try:
        for member in tree(pid):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in total:
                    total[name] += int(rest.split()[0]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total


def measure(contender: str, args: argparse.Namespace) -> list[str]:
    """One row: name, rate, peaks."""
    options = {name: getattr(args, name) for name in ("data", "dtype", "steps", "batch_size", "block_size")}
    command = [sys.executable, __file__, "--child", contender]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    peak = {"Pss": 0, "Pss_Anon": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while True:
            peak = {name: max(peak[name], size) for name, size in memory(process.pid).items()}
            try:
                process.wait(INTERVAL)
                break
            except subprocess.TimeoutExpired:
                continue
        answer = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{contender}: exit status {process.returncode}")
    rate = json.loads(answer)["tokens_per_second"]
    sizes = [f"{size / 2**20:,.0f} MiB" for size in peak.values()]
    return [CONTENDERS[contender], f"{rate:,.0f} tokens/s", *sizes]


def write_tokens(path: Path, gib: float) -> None:
    """``gib`` GiB of random ids below 256, stored as uint16."""
    random = np.random.default_rng(0)
    count = int(gib * 2**29)
    with path.open("wb") as file:
        for start in range(0, count, 1 << 24):
            random.integers(0, VOCABULARY, min(1 << 24, count - start), dtype=np.uint16).tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a raw token file with ids below 256 (default: random ids)")
    parser.add_argument("--dtype", default="uint16")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the random file")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    from aegis.train.report import markdown_table

    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            args.data = Path(folder, "tokens.bin")
            write_tokens(args.data, args.gib)
        size = os.stat(args.data).st_size / 2**20
        rows = [measure(contender, args) for contender in CONTENDERS]
    print(f"Training on {size:,.0f} MiB of {args.dtype} tokens, {args.steps} steps, peak of the process tree:\n")
    print(markdown_table(["batches from", "end to end", "PSS", "anonymous part"], rows))


if __name__ == "__main__":
    main()
