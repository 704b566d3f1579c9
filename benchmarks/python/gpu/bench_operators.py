"""The fused operators beside what they replace: sampling, FP8 and ternary linear layers.

The baselines always run. An operator that this aegis does not have is a row "not built yet"; one that it has, but
that has no entry in OURS, is a failed row: add the entry together with the operator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import aegis
import torch
from report import ABSENT, FAILED, Options, Row, p50_p99, seconds_of
from torch import Tensor


def run(options: Options) -> Iterator[Row]:
    for baseline, operator in ((sampling, "sample"), (float8, "float8_linear"), (ternary, "ternary_linear")):
        bench, rows = baseline(options)
        yield from rows
        if not hasattr(torch.ops.aegis, operator):
            yield Row(bench, f"aegis {operator}", status=ABSENT)
        elif operator not in OURS:
            note = f"no entry for it in {__name__}.OURS"
            yield Row(bench, f"aegis {operator}", status=FAILED, note=note)
        else:
            yield from OURS[operator](options)


def timed(options: Options, call: Callable[[], object]) -> dict[str, float]:
    return p50_p99(seconds_of(call, options, warm=5, times=10 if options.quick else 200))


def sampling(options: Options) -> tuple[str, list[Row]]:
    """Top-k 50, top-p 0.9 over 128,256 logits."""
    bench = "sampling: V = 128,256, top-k 50, top-p 0.9"
    vocab, k, p = (1000 if options.quick else 128_256), 50, 0.9
    rows = []
    for batch in (1, 32):
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(batch, vocab, generator=generator).to(options.device)

        def in_torch(logits: Tensor = logits) -> Tensor:
            values, ids = logits.topk(k)
            probabilities = values.softmax(-1)
            outside = probabilities.cumsum(-1) - probabilities > p
            draw = probabilities.masked_fill(outside, 0).multinomial(1)
            return ids.gather(-1, draw)

        rows.append(Row(bench, f"torch, topk first, batch {batch}", timed(options, in_torch)))
        if options.cuda and importlib.util.find_spec("flashinfer"):
            rows.append(flashinfer_row(options, bench, logits, k, p))
    return bench, rows


def flashinfer_row(options: Options, bench: str, logits: Tensor, k: int, p: float) -> Row:
    from flashinfer.sampling import top_k_top_p_sampling_from_logits

    name = f"FlashInfer, batch {logits.shape[0]}"
    try:
        return Row(bench, name, timed(options, lambda: top_k_top_p_sampling_from_logits(logits, k, p)))
    except Exception as error:  # it compiles its kernels when first called; not ours to fail for
        return Row(bench, name, status=ABSENT, note=f"{type(error).__name__}")


def float8(options: Options) -> tuple[str, list[Row]]:
    """A linear layer in bfloat16 and through torch's scaled matrix product."""
    size = 64 if options.quick else 4096
    bench = f"FP8: {size} x {size} linear"
    rows = []
    for batch in (16, 256):
        x = torch.randn(batch, size, device=options.device, dtype=torch.bfloat16)
        weight = torch.randn(size, size, device=options.device, dtype=torch.bfloat16)
        call = timed(options, lambda x=x, w=weight: torch.nn.functional.linear(x, w))
        rows.append(Row(bench, f"torch bfloat16, batch {batch}", call))
        if options.cuda and torch.cuda.get_device_capability(options.device) < (8, 9):
            continue
        x8, w8 = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
        rows.append(Row(bench, f"torch._scaled_mm, batch {batch}", timed(options, lambda x=x8, w=w8: scaled(x, w))))
    return bench, rows


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def ternary(options: Options) -> tuple[str, list[Row]]:
    """One row through a linear layer is bound by reading the weights: what the memory allows is the limit."""
    size = 64 if options.quick else 8192
    bench = f"ternary: {size} x {size} linear, one row"
    x = torch.randn(1, size, device=options.device, dtype=torch.bfloat16)
    weight = torch.randn(size, size, device=options.device, dtype=torch.bfloat16)
    rows = [Row(bench, "torch bfloat16", timed(options, lambda: torch.nn.functional.linear(x, weight)))]
    packed = torch.zeros(size * size // 4, dtype=torch.uint8, device=options.device)  # 2 bits a weight
    rows.append(Row(bench, "reading the packed weights", timed(options, lambda: packed.view(torch.int64).sum())))
    return bench, rows


def sample_rows(options: Options) -> Iterator[Row]:
    """The operator on the logits of :func:`sampling`, in memory made once."""
    vocab, k, p = (1000 if options.quick else 128_256), 50, 0.9
    for batch in (1, 32):
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(batch, vocab, generator=generator).to(options.device)
        settings = torch.tensor([[1.0, k, p, 0.0]], device=options.device)
        state = torch.zeros(batch, 4, dtype=torch.int64, device=options.device)
        state[:, 1] = torch.arange(batch, device=options.device)
        tokens = torch.empty(batch, dtype=torch.int64, device=options.device)

        def draw() -> None:
            torch.ops.aegis.sample.out(logits, settings, state, tokens=tokens)  # noqa: B023 (called in this round)

        kept = logits.topk(k)
        for _ in range(20):
            draw()
            assert (kept.indices == tokens[:, None]).any(1).all(), "a token outside of the top k"
        yield Row("sampling: V = 128,256, top-k 50, top-p 0.9", f"aegis sample, batch {batch}", timed(options, draw))


def float8_rows(options: Options) -> Iterator[Row]:
    """The layers of :func:`float8`, and one row, which is bound by reading the weights."""
    size = 64 if options.quick else 4096
    generator = torch.Generator().manual_seed(1)
    weight, scales = aegis.ops.float8_quantize(torch.randn(size, size, generator=generator).to(options.device))
    for batch in (1, 16, 256):
        x = torch.randn(batch, size, generator=generator).to(options.device, torch.bfloat16)
        got, want = aegis.ops.float8_linear(x, weight, scales), x @ (weight.float() * scales).to(x.dtype).t()
        assert (got - want).float().norm() < 0.05 * want.float().norm(), "float8_linear is off"
        call = timed(options, lambda x=x: aegis.ops.float8_linear(x, weight, scales))
        yield Row(f"FP8: {size} x {size} linear", f"aegis float8_linear, batch {batch}", call)


def ternary_rows(options: Options) -> Iterator[Row]:
    """The layer of :func:`ternary`, with the activations rounded to int8."""
    size = 64 if options.quick else 8192
    generator = torch.Generator().manual_seed(1)
    trits = torch.randint(-1, 2, (size, size), generator=generator).float()
    packed, scale = (part.to(options.device) for part in aegis.ops.pack_ternary(trits))
    x = torch.randn(1, size, generator=generator).to(options.device, torch.bfloat16)
    got = aegis.ops.ternary_linear(x, packed, scale)
    want = x.float() @ (aegis.ops.unpack_ternary(packed, scale, size)).t()
    assert (got - want).float().norm() < 0.05 * want.norm(), "ternary_linear is off"
    call = timed(options, lambda: aegis.ops.ternary_linear(x, packed, scale))
    yield Row(f"ternary: {size} x {size} linear, one row", "aegis ternary_linear", call)


# operator -> a function of the options that yields its rows; each checks its results before it measures.
OURS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "float8_linear": float8_rows,
    "sample": sample_rows,
    "ternary_linear": ternary_rows,
}
