"""Which of transformers' logits processors the fused sampler does by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Fused", "check_stateless", "fuse"]

# They count their calls, or keep a cache that grows by a token in each.
_STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")


class Fused(NamedTuple):
    """A list of processors, taken apart."""

    before: list[Any]
    """Those that have to run, in their order, before the sampler."""
    options: dict[str, Any]
    """What the sampler is given in place of the others."""


def fuse(processors: Sequence[Any], *, do_sample: bool) -> Fused:
    """Takes off the end of ``processors`` what the sampler does, as far as it does the same in the same order.

    The sampler's order is temperature, top-k, top-p, min-p, which is that of transformers. Ties at the k-th place are
    all kept, as there. A processor in another place, or with options of its own, runs as it is.
    """
    from transformers.generation import logits_process as hf

    rest = list(processors)
    options: dict[str, Any] = {"do_sample": do_sample}
    if do_sample:
        options["keep_ties"] = True
        if rest and type(rest[-1]) is hf.LogitNormalization:  # what the sampler draws from does not change
            rest.pop()
        for kind, attribute, option in (
            (hf.MinPLogitsWarper, "min_p", "min_p"),
            (hf.TopPLogitsWarper, "top_p", "top_p"),
            (hf.TopKLogitsWarper, "top_k", "top_k"),
            (hf.TemperatureLogitsWarper, "temperature", "temperature"),
        ):
            if rest and type(rest[-1]) is kind and _is_plain(rest[-1]):
                options[option] = getattr(rest.pop(), attribute)
    if len(rest) == 1 and type(rest[0]) is hf.RepetitionPenaltyLogitsProcessor and _counts_prompt(rest[0]):
        options["repetition_penalty"] = rest.pop().penalty
    return Fused(rest, options)


def check_stateless(processors: Iterable[Any]) -> None:
    """Raises ValueError for a processor of transformers that has to be called once for each token of a text. One that
    speculates asks about guesses, too, several at a time."""
    for processor in processors:
        if any(kind.__name__ in _STATEFUL for kind in type(processor).__mro__):
            name = "guidance_scale" if "Guidance" in type(processor).__name__ else "watermarking_config"
            raise ValueError(
                f"logits_processor: expected none that keeps a state, since a draft guesses, got "
                f"{type(processor).__name__} ({name}); without a draft it can be used"
            )


def _is_plain(warper: Any) -> bool:
    from transformers.generation.logits_process import TopKLogitsWarper

    # top_k of a TopKLogitsWarper is at least its min_tokens_to_keep already.
    keeps_one = isinstance(warper, TopKLogitsWarper) or getattr(warper, "min_tokens_to_keep", 1) == 1
    return keeps_one and getattr(warper, "filter_value", -math.inf) == -math.inf


def _counts_prompt(processor: Any) -> bool:
    return getattr(processor, "prompt_ignore_length", None) is None
