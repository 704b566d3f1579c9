"""Compiled runners that one call of ``aegis.generate`` leaves to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from aegis.decode.runner import CUDAGraphFastRunner
from aegis.decode.speculative import SpeculativeFastRunner
from aegis.decode.speculative_options import Speculation

__all__ = ["Purpose", "keep", "length_to_keep", "take"]

Runner = CUDAGraphFastRunner | SpeculativeFastRunner

# Of a model: with a draft and without, say. Each has a cache.
_MOST = 2
_SHORTEST = 256
_NAME = "_aegis_kept_runners"
_lock = threading.Lock()


class Purpose(NamedTuple):
    """What a runner was made for, but the length of its cache. Another call of the same purpose may have it."""

    rows: int
    paged_chunk: int | None
    speculation: Speculation
    placed: tuple[tuple[torch.dtype, torch.device], ...]

    @classmethod
    def of(cls, model: Any, rows: int, paged_chunk: int | None, speculation: Speculation) -> Purpose:
        """Of a call for ``model``; ``paged_chunk`` is how its prompts are fed to a paged cache, None without one."""
        models = [one for one in (model, speculation.draft) if isinstance(one, torch.nn.Module)]
        placed: tuple[Any, ...] = tuple((one.dtype, one.device) for one in models)
        return cls(rows, paged_chunk, speculation, placed)


class _Kept:
    """A model's runners, the last used last. They lie in the model, since they hold it: what holds it from elsewhere
    would keep it alive. Copies and pickles of the model have nothing there."""

    def __init__(self) -> None:
        self.runners: list[tuple[Purpose, Runner]] = []

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return object, ()


def length_to_keep(model: Any, length: int) -> int:
    """A length of cache that serves longer texts, too: at least ``length``, and no more than the model's positions
    where ``length`` is not."""
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    rounded: int = max(_SHORTEST, 1 << (length - 1).bit_length())
    return rounded if most is None else max(length, min(rounded, most))


def take(model: Any, purpose: Purpose, length: int) -> Runner | None:
    """A runner of this purpose for rows of ``length`` tokens, which no one else has now. None where there is none."""
    with _lock:
        kept = vars(model).get(_NAME)
        runners = kept.runners if isinstance(kept, _Kept) else []
        for at, (other, runner) in enumerate(runners):
            if other == purpose and _serves(runner, model):
                del runners[at]
                return runner if runner.cache.max_cache_len >= length else None
    return None


def _serves(runner: Runner, model: Any) -> bool:
    """A model may have been copied, or be given another configuration."""
    return runner.model is model and runner.cache.config is model.config.get_text_config(decoder=True)


def keep(model: Any, purpose: Purpose, runner: Runner) -> None:
    """For the next call, as long as the model lives. The oldest gives way."""
    with _lock:
        kept = vars(model).get(_NAME)
        if not isinstance(kept, _Kept):
            kept = vars(model)[_NAME] = _Kept()
        kept.runners = [*kept.runners[-(_MOST - 1) :], (purpose, runner)]
