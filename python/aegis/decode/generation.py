"""``aegis.generate``: what ``model.generate`` does for greedy search and sampling, with a runner of aegis's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor

from aegis.decode.huggingface import check_model
from aegis.decode.processors import fuse
from aegis.decode.runner import PREFILL_CHUNK, CUDAGraphFastRunner
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler
from aegis.decode.stopping import Stopping

__all__ = ["generate"]

# Any of these means that the user wants to sample, without saying do_sample=True as well.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
# Inputs that transformers prepares, and that the runner makes by itself.
_PREPARED = ("position_ids", "cache_position", "logits_to_keep", "use_cache")


def generate(
    model: Any,
    input_ids: Tensor | None = None,
    *,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    seed: int | Sequence[int] | Tensor | None = None,
    mode: Literal["auto", "eager", "compiled", "cuda-graph"] = "auto",
    runner: CUDAGraphFastRunner | None = None,
    stop_sequences: Sequence[Sequence[int]] = (),
    callback: Callable[[Tensor], object] | None = None,
    progress: bool = False,
    **options: Any,
) -> Tensor:
    """Continues ``input_ids`` with a causal language model of transformers, as ``model.generate`` does, faster.

    Greedy tokens are those of ``model.generate``, up to float rounding between two nearly equal logits; sampled ones
    follow the same distribution. Can also be the ``custom_generate=`` of ``model.generate``.

    Args:
        model: a decoder-only model whose attention goes through transformers' AttentionInterface.
        input_ids: (B, L) int64. Rows are padded on the left; ``attention_mask`` tells where.
        seed: of the sampler: one for all rows or one for each. Without, it is drawn from torch's generator, so
            ``torch.manual_seed`` counts.
        mode: how a step runs; see :class:`~aegis.CUDAGraphFastRunner`.
        runner: one to use again, with what it has compiled or captured; it is reset first. Its mode and sizes count,
            and its cache is used.
        stop_sequences: token sequences after which a row is finished; they stay in the result.
        callback: called after each step with its tokens, (B,) int64 on the host. Its result is ignored.
        progress: shows a bar with tokens per second.
        **options: what else ``model.generate`` takes: ``attention_mask``, ``max_new_tokens``, ``eos_token_id``,
            ``top_k``, ``streamer``, ... Where temperature, top_k, top_p, min_p or seed is given, ``do_sample`` is True
            unless it is given too. ``past_key_values`` (``cache``) may be a :class:`~aegis.SlottedStaticCache` to
            decode into, or to go on from: ``input_ids`` then begins with the tokens it holds.

    Returns:
        (B, L + new tokens) int64: prompts and what follows. Finished rows are filled up with the padding token.

    Raises:
        ValueError: a model, a mode of generation (beams) or an output (scores) that aegis does not offer; a cache that
            is too small. The error names the argument.

    Cost: a prefill, then a step for each token. Nothing is allocated by aegis's own objects for a token.
    """
    if not hasattr(generation_config, "_eos_token_tensor"):  # called by a user, not yet by transformers
        check_model(model)
        wants_to_sample = seed is not None or any(options.get(name) is not None for name in _SAMPLING)
        if wants_to_sample and generation_config is None:
            options.setdefault("do_sample", True)
        given = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "generation_config": generation_config,
            "seed": seed,
            "mode": mode,
            "runner": runner,
            "stop_sequences": stop_sequences,
            "progress": progress,
        }
        options.update({name: value for name, value in given.items() if value is not None})
        return _prepared_by_transformers(model, input_ids, callback, options)

    assert input_ids is not None
    cache = options.pop("cache", None)
    cache = options.pop("past_key_values", None) if cache is None else cache
    attention_mask = options.pop("attention_mask", None)
    _refuse(generation_config, options)
    stopping = Stopping(generation_config, stopping_criteria, stop_sequences, len(input_ids))
    fused = fuse(logits_processor or (), do_sample=generation_config.do_sample)
    plain = FusedLogitsSampler(**fused.options, seed=seed)
    sampler = plain.after(fused.before) if fused.before else plain
    runner = _runner_for(model, runner, cache, sampler, len(input_ids), stopping.max_length, mode)
    chunk = generation_config.prefill_chunk_size or PREFILL_CHUNK
    return _decode(runner, input_ids, attention_mask, stopping, chunk, callback, progress)


def _prepared_by_transformers(
    model: Any, input_ids: Tensor | None, callback: Callable[[Tensor], object] | None, options: dict[str, Any]
) -> Tensor:
    """model.generate checks and completes the arguments, and calls back with what comes of that."""
    streamer = options.pop("streamer", None)

    def both(tokens: Tensor) -> None:
        streamer.put(tokens)
        if callback is not None:
            callback(tokens)

    if streamer is None:
        result: Tensor = model.generate(input_ids, custom_generate=generate, callback=callback, **options)
        return result
    if input_ids is not None:  # transformers does not hand a streamer to a custom_generate
        streamer.put(input_ids.cpu())
    result = model.generate(input_ids, custom_generate=generate, callback=both, **options)
    streamer.end()
    return result


def _refuse(generation_config: Any, options: dict[str, Any]) -> None:
    """Raises ValueError for what model.generate offers and this does not."""
    config = generation_config
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams: expected 1, got {config.num_beams}; beam search is model.generate's")
    if config.return_dict_in_generate:
        raise ValueError("return_dict_in_generate: expected False; aegis.generate returns tokens alone")
    if options.get("use_cache") is False:
        raise ValueError("use_cache: expected True, got False")
    others = sorted(name for name, value in options.items() if value is not None and name not in _PREPARED)
    if others:
        raise ValueError(f"{', '.join(others)}: expected no inputs but token ids and their mask")


def _runner_for(
    model: Any,
    runner: CUDAGraphFastRunner | None,
    cache: Any,
    sampler: FusedLogitsSampler | ProcessedSampler,
    rows: int,
    max_length: int,
    mode: Literal["auto", "eager", "compiled", "cuda-graph"],
) -> CUDAGraphFastRunner:
    from aegis.decode.cache import SlottedStaticCache

    if runner is not None:
        if runner.model is not model:
            raise ValueError("runner: expected one made for this model, got one for another")
        runner.reset()
        runner.use_sampler(sampler)
        return runner
    if not isinstance(cache, SlottedStaticCache):
        if cache is not None and cache.get_seq_length() > 0:
            raise ValueError(f"past_key_values: expected a SlottedStaticCache or an empty cache, got {type(cache)}")
        cache = None
    # The last token is never fed.
    return CUDAGraphFastRunner(
        model, batch_size=rows, max_cache_len=max(max_length - 1, 1), cache=cache, sampler=sampler, mode=mode
    )


def _decode(
    runner: CUDAGraphFastRunner,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    stopping: Stopping,
    chunk: int,
    callback: Callable[[Tensor], object] | None,
    progress: bool,
) -> Tensor:
    rows, length = input_ids.shape
    past = runner.cache.get_seq_length()
    if past >= length:
        raise ValueError(
            f"input_ids: expected more tokens than the cache holds, which is {past}, got {length}; cache.reset() "
            "forgets them"
        )
    if stopping.max_length - 1 > runner.cache.max_cache_len:
        raise ValueError(
            f"max_cache_len: expected room for {stopping.max_length - 1} tokens (max_length without the last, which is "
            f"not fed), got {runner.cache.max_cache_len}"
        )
    sequences = torch.full((rows, stopping.max_length), stopping.pad, dtype=torch.int64, device=input_ids.device)
    sequences[:, :length] = input_ids
    with ExitStack() as stack:
        stack.enter_context(runner)
        bar = stack.enter_context(_bar(stopping.max_length - length)) if progress else None
        history = input_ids
        tokens = runner.prefill(input_ids[:, past:], attention_mask, chunk=chunk, history=history)
        while True:
            host = tokens.tolist()
            if any(stopping.finished):
                host = [stopping.pad if done else t for t, done in zip(host, stopping.finished, strict=True)]
                tokens.copy_(torch.tensor(host))
            sequences[:, length] = tokens
            length += 1
            if callback is not None:
                callback(torch.tensor(host))
            if bar is not None:
                bar.update()
            history = sequences[:, :length]
            if stopping.step(host, history):
                return history
            tokens = runner.step(history=history)


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="token")
