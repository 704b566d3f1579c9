"""The operator skinny_linear against torch's linear and against the bandwidth of memory, alone and in a language model.

The language models are Hugging Face's Llama with random weights, and run where `transformers` is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aegis
import torch
from harness import Table, interleave, main, median
from torch import Tensor
from torch.nn.functional import linear

SOURCE = Path(__file__).with_name("read_memory.cpp")
WAYS = range(4)  # of reading; the fastest counts


def reader() -> ctypes.CDLL:
    """read_memory.cpp, compiled for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/read_memory.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-w"]
        subprocess.run([os.environ.get("CXX", "g++"), *flags, "-o", library, str(SOURCE)], check=True)
        loaded = ctypes.CDLL(library)
    loaded.read_memory.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
    loaded.read_memory.restype = ctypes.c_uint64
    return loaded


def readers(weight: Tensor, threads: int, pool: ThreadPoolExecutor) -> dict[str, Callable[[], object]]:
    """Reads all of `weight`, a part in each thread."""
    read = reader().read_memory
    part = weight.numel() * weight.element_size() // threads // 4096 * 4096

    def run(way: int) -> None:
        starts = [weight.data_ptr() + i * part for i in range(threads)]
        others = [pool.submit(read, way, start, part) for start in starts[1:]]
        read(way, starts[0], part)
        for other in others:
            other.result()

    return {f"read {way}": lambda way=way: run(way) for way in WAYS}  # type: ignore[misc]


def operands(rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
    got, exact = aegis.ops.skinny_linear(x, weight), linear(x.double(), weight.double())
    size = linear(x.double().abs(), weight.double().abs())
    rounding = 0 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert ((got.double() - exact).abs() <= k * 2.0**-23 * size + rounding * exact.abs() + rounding).all()
    return x, weight


def against_torch(rows: int, n: int, k: int, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """Milliseconds of torch and of aegis."""
    x, weight = operands(rows, n, k, dtype)
    with torch.no_grad():
        seconds = interleave(
            {"torch": lambda: linear(x, weight), "aegis": lambda: aegis.ops.skinny_linear(x, weight)}, rounds, burst=3
        )
    return median(seconds["torch"]) * 1e3, median(seconds["aegis"]) * 1e3


def against_memory(n: int, k: int, dtype: torch.dtype, threads: int, rounds: int) -> tuple[float, float]:
    """GB/s of the fastest way of reading the weights, and of aegis."""
    x, weight = operands(1, n, k, dtype)
    torch.set_num_threads(threads)
    with torch.no_grad(), ThreadPoolExecutor(threads) as pool:
        contenders = readers(weight, threads, pool) | {"aegis": lambda: aegis.ops.skinny_linear(x, weight)}
        seconds = interleave(contenders, rounds, burst=3)
    torch.set_num_threads(1)
    speed = {name: weight.numel() * weight.element_size() / median(times) / 1e9 for name, times in seconds.items()}
    return max(speed[f"read {way}"] for way in WAYS), speed["aegis"]


@contextmanager
def skinny_layers() -> Iterator[None]:
    """Within: every torch.nn.Linear calls the operator where it has few rows."""
    theirs = torch.nn.Linear.forward

    def ours(self: torch.nn.Linear, x: Tensor) -> Tensor:
        if x.numel() > 8 * x.shape[-1]:
            return theirs(self, x)
        return aegis.ops.skinny_linear(x, self.weight, self.bias)

    torch.nn.Linear.forward = ours  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Linear.forward = theirs  # type: ignore[method-assign]


def llama(layers: int, width: int, hidden: int, dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=hidden,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        vocab_size=32_000,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def generation(model: Any, tokens: int, rounds: int) -> tuple[float, float, bool]:
    """Milliseconds a token of the model as it is and with skinny layers; whether they chose the same tokens."""
    prompt = torch.randint(0, 32_000, (1, 8), generator=torch.Generator().manual_seed(1))

    def generate() -> Tensor:
        result: Tensor = model.generate(prompt, do_sample=False, max_new_tokens=tokens, pad_token_id=0)
        return result

    def generate_skinny() -> Tensor:
        with skinny_layers():
            return generate()

    same = torch.equal(generate(), generate_skinny())
    seconds = interleave({"torch": generate, "aegis": generate_skinny}, rounds, burst=1, warmup=0)
    return median(seconds["torch"]) * 1e3 / tokens, median(seconds["aegis"]) * 1e3 / tokens, same


def language_models(table: Table, quick: bool) -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(2)
    for what, layers, width, hidden, dtype, at_least in (
        ("6 layers, 384 wide", 6, 384, 1024, torch.float32, 2.0),
        ("6 layers, 384 wide", 6, 384, 1024, torch.bfloat16, None),
        ("8 layers, 1,024 wide", 8, 1024, 2816, torch.float32, 2.0),
    ):
        if quick and layers > 6:
            continue
        model = llama(layers, width, hidden, dtype)
        theirs, ours, same = generation(model, tokens=8 if quick else 48, rounds=1 if quick else 5)
        assert same or dtype != torch.float32, "the two chose different tokens"
        name = f"`generate`, a token, {what}, {dtype_name(dtype)}, 2 threads, {'same' if same else 'other'} tokens"
        if at_least is None:
            table.compared(name, "nn.Linear", theirs, ours, "ms")
        else:
            table.ratio(name, "nn.Linear", theirs, ours, "ms", at_least)
    table.notes.append(
        "`generate` is Hugging Face's, greedy and eager, with random weights and a vocabulary of 32,000; the only "
        "change is what nn.Linear calls. What the bfloat16 model chooses may differ: both sides round sums to 8 bits, "
        "from different float32 sums."
    )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def build(quick: bool) -> Table:
    """skinny_linear against torch, memory, and in language models."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rounds = 3 if quick else 20
    table = Table("skinny_linear from Python (isolated, then in a language model)")
    float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16

    theirs, ours = against_torch(1, 4096, 4096, float32, rounds)
    table.ratio("4096 × 4096, float32, 1 row, 1 thread", "torch's linear", theirs, ours, "ms", 1.2)
    torch.set_num_threads(2)
    theirs, ours = against_torch(1, 32_000, 384, float32, rounds)
    table.ratio("32,000 × 384, float32, 1 row, 2 threads", "torch's linear", theirs, ours, "ms", 4)
    torch.set_num_threads(1)
    for dtype in (float32, bfloat16, float16):
        for rows in (1, 8):
            if (dtype, rows) != (float32, 1):
                theirs, ours = against_torch(rows, 4096, 4096, dtype, rounds)
                what = f"4096 × 4096, {dtype_name(dtype)}, {rows} row{'s' * (rows > 1)}, 1 thread"
                table.compared(what, "torch's linear", theirs, ours, "ms")
    for n, k, dtype, threads in (
        (4096, 4096, float32, 1),
        (32_000, 384, float32, 1),
        (32_000, 384, float32, 2),
        (8192, 4096, bfloat16, 1),
        (8192, 4096, float16, 1),
    ):
        read, ours = against_memory(n, k, dtype, threads, rounds)
        what = f"{n:,} × {k}, {dtype_name(dtype)}, 1 row, {threads} thread{'s' * (threads > 1)}"
        table.rate(what, "reading the weights", read, ours, "GB/s", 0.8)
    table.notes.append(
        "Reading: the fastest of four loops that only read (read_memory.cpp), on the same memory, in turn with the "
        "operator. The weights are larger than the caches."
    )
    if importlib.util.find_spec("transformers"):
        language_models(table, quick)
    else:
        table.notes.append("`generate` was left out: transformers is not installed.")
    return table


if __name__ == "__main__":
    main(build)
