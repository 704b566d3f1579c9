"""``aegis.generate``: what ``model.generate`` does for greedy search and sampling, with a runner of aegis's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from aegis.decode.huggingface import check_model
from aegis.decode.kept_runners import Purpose, keep, length_to_keep, take
from aegis.decode.processors import fuse
from aegis.decode.runner import PREFILL_CHUNK, CUDAGraphFastRunner
from aegis.decode.sampler import FusedLogitsSampler, ProcessedSampler
from aegis.decode.speculative import SpeculativeFastRunner
from aegis.decode.speculative_generation import decode as decode_speculatively
from aegis.decode.speculative_options import asked_by_config, asked_by_options
from aegis.decode.stopping import Stopping

if TYPE_CHECKING:
    from aegis.decode.cache import SlottedStaticCache

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
    runner: CUDAGraphFastRunner | SpeculativeFastRunner | None = None,
    paged: bool = False,
    draft: Any = None,
    num_speculative_tokens: int | None = None,
    draft_sampler: FusedLogitsSampler | ProcessedSampler | None = None,
    overlap: bool = False,
    stop_sequences: Sequence[Sequence[int]] = (),
    callback: Callable[[Tensor], object] | None = None,
    progress: bool = False,
    **options: Any,
) -> Tensor:
    """Continues ``input_ids`` with a causal language model of transformers, as ``model.generate`` does, faster.

    Greedy tokens are those of ``model.generate``, up to float rounding between two nearly equal logits; sampled ones
    follow the same distribution. Can also be the ``custom_generate=`` of ``model.generate``, which then keeps some
    arguments to itself: a ``streamer`` gets the prompt alone, and ``assistant_model`` is without effect (``draft`` is
    not).

    Args:
        model: a decoder-only model whose attention goes through transformers' AttentionInterface.
        input_ids: (B, L) int64. Rows are padded on the left; ``attention_mask`` tells where.
        seed: of the sampler: one for all rows or one for each. Without, it is drawn from torch's generator, so
            ``torch.manual_seed`` counts.
        mode: how a step runs; see :class:`~aegis.CUDAGraphFastRunner`. What was made for ``"compiled"``, cache
            included, stays with the model, so that calls for as many rows, of about the same length, compile once;
            not beside ``past_key_values`` or ``draft_sampler``.
        runner: one to use again, with what it has compiled or captured; it is reset first. Its mode and sizes count,
            and its cache is used. One that speculates has its draft.
        paged: whether the cache that is made for the call is a :class:`~aegis.PagedKVCache`. Prompts of the batch that
            begin alike do not share pages.
        draft: what guesses tokens for the model to verify, several in one pass: see
            :class:`~aegis.SpeculativeFastRunner`. transformers' names say the same: ``assistant_model``,
            ``prompt_lookup_num_tokens``, ``assistant_early_exit``, ``num_assistant_tokens``. Logits processors are
            then asked about guesses, too: they must not depend on how often they are called.
        num_speculative_tokens: guesses for one pass, 4 if not given.
        draft_sampler: of the draft.
        overlap: drafts in a thread while the model verifies; see there when that gains.
        stop_sequences: token sequences after which a row is finished; they stay in the result.
        callback: called after each step with its tokens, (B,) int64 on the host. Its result is ignored.
        progress: shows a bar with tokens per second.
        **options: what else ``model.generate`` takes: ``attention_mask``, ``max_new_tokens``, ``eos_token_id``,
            ``top_k``, ``streamer``, ... Where temperature, top_k, top_p, min_p or seed is given, ``do_sample`` is True
            unless it, or a ``generation_config``, is given too. ``past_key_values`` (``cache``) may be a
            :class:`~aegis.SlottedStaticCache` or a :class:`~aegis.PagedKVCache` to decode into, or to go on from:
            ``input_ids`` then begins with the tokens it holds.

    Returns:
        (B, L + new tokens) int64: prompts and what follows. Finished rows are filled up with the padding token.

    Raises:
        ValueError: a model, a mode of generation (beams) or an output (scores) that aegis does not offer; a cache that
            is too small. The error names the argument.

    Cost: a prefill, then a step for each token. Nothing is allocated by aegis's own objects for a token.
    """
    if not hasattr(generation_config, "_eos_token_tensor"):  # called by a user, not yet by transformers
        check_model(model)
        if input_ids is None:
            input_ids = options.pop("inputs", None)
        _check_call(input_ids, callback, options)
        wants_to_sample = seed is not None or any(options.get(name) is not None for name in _SAMPLING)
        if wants_to_sample and generation_config is None:
            options.setdefault("do_sample", True)
        asked = asked_by_options(options, draft, num_speculative_tokens)
        given = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "generation_config": generation_config,
            "seed": seed,
            "mode": mode,
            "runner": runner,
            "paged": paged or None,
            "draft": asked.draft,
            "num_speculative_tokens": asked.guesses,
            "draft_sampler": draft_sampler,
            "overlap": overlap or None,
            "stop_sequences": stop_sequences,
            "progress": progress,
        }
        options.update({name: value for name, value in given.items() if value is not None})
        return _prepared_by_transformers(model, input_ids, callback, options)

    assert input_ids is not None
    _check_ids(input_ids)
    input_ids = input_ids.to(torch.int64)
    cache = options.pop("cache", None)
    cache = options.pop("past_key_values", None) if cache is None else cache
    attention_mask = options.pop("attention_mask", None)
    _refuse(generation_config, options)
    rows, length = input_ids.shape
    stopping = Stopping(generation_config, stopping_criteria, stop_sequences, rows)
    longest = max(stopping.max_length, length + 1)  # a token is picked before any criterion is asked
    fused = fuse(logits_processor or (), do_sample=generation_config.do_sample)
    plain = FusedLogitsSampler(**fused.options, seed=seed)
    sampler = plain.after(fused.before) if fused.before else plain
    room = longest - 1  # the last token is never fed
    chunk = generation_config.prefill_chunk_size or PREFILL_CHUNK
    asked = asked_by_config(generation_config, draft, num_speculative_tokens)._replace(overlap=overlap)
    usable = _usable(cache)
    asked.check(runner, mode, draft_sampler, usable)
    purpose = None
    if runner is not None:
        if paged:
            raise ValueError("paged: expected False beside a runner, which was made with a cache")
        _check_runner(runner, model, usable)
    elif mode == "compiled" and usable is None and draft_sampler is None:
        purpose = Purpose.of(model, rows, chunk if paged else None, asked)
        runner = take(model, purpose, room)
        room = length_to_keep(model, room)
    again = runner is not None
    if runner is None and asked.draft is not None:
        runner = asked.runner(model, rows, room, sampler, draft_sampler, paged=paged, chunk=chunk, mode=mode)
    elif runner is None:
        if usable is None and paged:
            usable = _paged(model, rows, room, chunk)
        runner = CUDAGraphFastRunner(
            model, batch_size=rows, max_cache_len=room, cache=usable, sampler=sampler, mode=mode
        )
    if isinstance(callback, _Streaming):
        callback.streamer.put(input_ids.cpu())
    with runner, _bar(longest - length) if progress else nullcontext() as bar:
        if again:
            runner.reset()
            runner.use_sampler(sampler)
        rest = (input_ids, attention_mask, stopping, longest, chunk, callback, bar)
        if isinstance(runner, SpeculativeFastRunner):
            sequences = decode_speculatively(runner, *rest)
        else:
            sequences = _decode(runner, *rest)
    if purpose is not None:
        keep(model, purpose, runner)
    return sequences


class _Streaming:
    """The callback of a call with a streamer, which transformers does not hand to a custom_generate."""

    def __init__(self, streamer: Any, callback: Callable[[Tensor], object] | None) -> None:
        self.streamer = streamer
        self.callback = callback

    def __call__(self, tokens: Tensor) -> None:
        self.streamer.put(tokens)
        if self.callback is not None:
            self.callback(tokens)


def _check_call(input_ids: Tensor | None, callback: object, options: dict[str, Any]) -> None:
    """Raises for what transformers would find out late, in words of its own, or not at all."""
    if options.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds: expected none, but token ids as input_ids")
    if input_ids is not None:
        _check_ids(input_ids)
    mask = options.get("attention_mask")
    if mask is not None and input_ids is not None and getattr(mask, "shape", None) != input_ids.shape:
        got = list(mask.shape) if isinstance(mask, Tensor) else mask
        raise ValueError(f"attention_mask: expected shape {list(input_ids.shape)}, that of input_ids, got {got}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {callback!r}")


def _check_ids(input_ids: Any) -> None:
    if isinstance(input_ids, Tensor):
        if input_ids.ndim == 2 and 0 not in input_ids.shape and input_ids.dtype in (torch.int64, torch.int32):
            return
        got = f"{input_ids.dtype} of shape {list(input_ids.shape)}"
    else:
        got = type(input_ids).__name__
    raise ValueError(f"input_ids: expected an int64 tensor (batch, length) of at least 1 row and 1 token, got {got}")


def _prepared_by_transformers(
    model: Any, input_ids: Tensor | None, callback: Callable[[Tensor], object] | None, options: dict[str, Any]
) -> Tensor:
    """model.generate checks and completes the arguments, and calls back with what comes of that."""
    from transformers import StopStringCriteria

    tokenizer, strings = options.pop("tokenizer", None), options.get("stop_strings")
    if tokenizer is not None and strings:  # transformers hands no tokenizer on to where it would make this itself
        criterion = StopStringCriteria(tokenizer, options.pop("stop_strings"))
        options["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), criterion]
    streamer = options.pop("streamer", None)
    if streamer is not None:
        callback = _Streaming(streamer, callback)
    result: Tensor = model.generate(input_ids, custom_generate=generate, callback=callback, **options)
    if streamer is not None:
        streamer.end()
    return result


def _refuse(generation_config: Any, options: dict[str, Any]) -> None:
    """Raises ValueError for what model.generate offers and this does not."""
    config = generation_config
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams: expected 1, got {config.num_beams}; beam search is model.generate's")
    kind = config.get_generation_mode()
    assisted = kind == "assisted_generation" and not getattr(config, "use_mtp", False)
    if kind not in ("greedy_search", "sample") and not assisted:
        raise ValueError(f"generation_config: expected greedy search or sampling, got settings of {kind.value}")
    if config.return_dict_in_generate:
        raise ValueError("return_dict_in_generate: expected False; aegis.generate returns tokens alone")
    if options.get("use_cache") is False:
        raise ValueError("use_cache: expected True, got False")
    if not options.get("mm_encoder_outputs"):  # empty, where the model could also have taken images
        options.pop("mm_encoder_outputs", None)
    others = sorted(name for name, value in options.items() if value is not None and name not in _PREPARED)
    if others:
        raise ValueError(f"{', '.join(others)}: expected no inputs but token ids and their mask")


def _usable(cache: Any) -> SlottedStaticCache | None:
    """``cache`` where it is aegis's; None where it is another's and empty, as transformers makes them."""
    from aegis.decode.cache import SlottedStaticCache

    if isinstance(cache, SlottedStaticCache):
        return cache
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(f"past_key_values: expected a SlottedStaticCache or an empty cache, got {type(cache)}")
    return None


def _paged(model: Any, rows: int, room: int, chunk: int) -> SlottedStaticCache:
    from aegis.decode.paged_cache import PagedKVCache

    return PagedKVCache(model.config, rows, room, prefill_chunk=chunk, device=model.device)


def _check_runner(runner: Any, model: Any, usable: Any) -> None:
    if not isinstance(runner, (CUDAGraphFastRunner, SpeculativeFastRunner)):
        raise ValueError(f"runner: expected a CUDAGraphFastRunner or a SpeculativeFastRunner, got {runner!r}")
    if runner.model is not model:
        raise ValueError("runner: expected one made for this model, got one for another")
    if usable is not None and usable is not runner.cache:
        raise ValueError("past_key_values: expected none beside a runner, which has a cache of its own")


def _decode(
    runner: CUDAGraphFastRunner,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    stopping: Stopping,
    longest: int,
    chunk: int,
    callback: Callable[[Tensor], object] | None,
    bar: Any,
) -> Tensor:
    rows, length = input_ids.shape
    past = runner.cache.common_length(rows)
    if past >= length:
        raise ValueError(
            f"input_ids: expected more tokens than the cache holds, which is {past}, got {length}; cache.reset() "
            "forgets them"
        )
    if longest - 1 > runner.cache.max_cache_len:
        raise ValueError(
            f"max_cache_len: expected room for {longest - 1} tokens (max_length without the last, which is "
            f"not fed), got {runner.cache.max_cache_len}"
        )
    sequences = torch.full((rows, longest), stopping.pad, dtype=torch.int64, device=input_ids.device)
    sequences[:, :length] = input_ids
    tokens = runner.prefill(input_ids[:, past:], attention_mask, chunk=chunk, history=input_ids)
    while True:
        host = tokens.tolist()
        if stopping.fills and any(stopping.finished):
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
            return history.contiguous()
        tokens = runner.step(history=history)


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="token")
