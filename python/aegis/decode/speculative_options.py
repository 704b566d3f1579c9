"""What the arguments of ``aegis.generate`` say about speculation."""

from __future__ import annotations

from typing import Any, NamedTuple

from aegis.decode.drafts import EarlyExit, PromptLookup
from aegis.decode.speculative import SpeculativeFastRunner

__all__ = ["Speculation", "asked_by_config", "asked_by_options"]

_DEFAULT_COUNT = 4


class Speculation(NamedTuple):
    """A draft and a number of guesses; None where not asked for."""

    draft: Any
    guesses: int | None
    overlap: bool = False

    def check(self, runner: Any, mode: str, draft_sampler: Any, cache: Any) -> None:
        """Raises ValueError for arguments that do not go together."""
        if self.draft is None:
            if self.overlap and runner is not None:
                raise ValueError("overlap: expected False beside a runner, which was made with it or without")
            if runner is None and (self.guesses is not None or draft_sampler is not None or self.overlap):
                name = "num_speculative_tokens" if self.guesses is not None else "draft_sampler"
                name = "overlap" if self.overlap else name
                raise ValueError(f"{name}: expected a draft beside it, got none")
            return
        if runner is not None:
            raise ValueError("runner: expected none beside a draft; a SpeculativeFastRunner has its own")
        if mode not in ("auto", "eager", "compiled"):
            raise ValueError(f"mode: expected 'auto', 'eager' or 'compiled' beside a draft, got {mode!r}")
        if cache is not None:
            raise ValueError("past_key_values: expected none beside a draft, whose runner has caches of its own")

    def runner(
        self,
        model: Any,
        rows: int,
        max_cache_len: int,
        sampler: Any,
        draft_sampler: Any,
        *,
        paged: bool,
        chunk: int,
        mode: Any,
    ) -> SpeculativeFastRunner:
        """A runner for one call, whose prompt is fed in pieces of ``chunk`` tokens."""
        return SpeculativeFastRunner(
            model,
            self.draft,
            _DEFAULT_COUNT if self.guesses is None else self.guesses,
            batch_size=rows,
            max_cache_len=max_cache_len,
            sampler=sampler,
            draft_sampler=draft_sampler,
            overlap=self.overlap,
            paged=paged,
            prefill_chunk=chunk if paged else None,
            mode=mode,
        )


def asked_by_options(options: dict[str, Any], draft: Any, count: int | None) -> Speculation:
    """Takes transformers' own names out of ``options``.

    Raises:
        ValueError: two drafts.
    """
    assistant = options.pop("assistant_model", None)
    lookup = options.pop("prompt_lookup_num_tokens", None)
    ngram = options.pop("max_matching_ngram_size", None)
    layers = options.pop("assistant_early_exit", None)
    assistant_count = options.pop("num_assistant_tokens", None)
    drafts = [
        draft,
        assistant,
        None if lookup is None else PromptLookup() if ngram is None else PromptLookup(ngram),
        None if layers is None else EarlyExit(layers),
    ]
    given = [one for one in drafts if one is not None]
    if len(given) > 1:
        raise ValueError(
            "draft: expected one of draft, assistant_model, prompt_lookup_num_tokens and assistant_early_exit"
        )
    counts = [number for number in (count, assistant_count, lookup) if number is not None]
    return Speculation(given[0] if given else None, counts[0] if counts else None)


def asked_by_config(config: Any, draft: Any, count: int | None) -> Speculation:
    """The same where a GenerationConfig of the user's says so."""
    if draft is not None:
        return Speculation(draft, count)
    names = ("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit")
    asked = asked_by_options({name: getattr(config, name, None) for name in names}, None, count)
    return asked
