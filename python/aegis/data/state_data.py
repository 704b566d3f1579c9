"""The part of a loader's state that is about its data: which files there were, and where a mixture was in them."""

from __future__ import annotations

from typing import Any

from aegis.data.mixture import MixtureBase, TokenMixture
from aegis.data.order import SeededSampler
from aegis.data.token_dataset import DIGEST, TokenDataset

__all__ = ["check_data", "data_state", "take_up"]

_OF_ROUNDS = {"weights": "weights", "lengths": "lengths", "samples": "given_samples"}
"""What may change in a mixture, by its name in a state: rounds are then counted anew."""


def _token_data(dataset: Any) -> tuple[TokenDataset, ...]:
    if isinstance(dataset, TokenMixture):
        return dataset.sources
    return (dataset,) if isinstance(dataset, TokenDataset) else ()


def data_state(sampler: SeededSampler) -> dict[str, Any]:
    """What a seeded loader saves beside its position: plain values, and always the same keys."""
    dataset: Any = sampler.data_source
    state: dict[str, Any] = {
        "files": [source.file_digests() for source in _token_data(dataset)],
        "epoch_samples": [[epoch, samples] for epoch, samples in sampler.shorter.items()],
        "mixture": None,
    }
    if isinstance(dataset, TokenMixture):
        base = dataset.base_or_begin(sampler.base)
        state["mixture"] = {
            "weights": dataset.weights,
            "lengths": dataset.lengths,
            "samples": dataset.given_samples,
            "epoch": base.epoch,
            "position": base.position,
            "starts": [list(start) for start in base.starts],
        }
    return state


def check_data(dataset: Any, expected: dict[str, Any], state: dict[str, Any], *, extend: bool) -> bool:
    """ValueError where ``state`` was saved with other data; whether that has grown since, which ``extend`` permits."""
    if all(state[name] == expected[name] for name in ("fingerprint", "samples")):
        return False
    sources, saved = _token_data(dataset), state.get("files")
    if saved is not None and len(saved) == len(sources) > 0:
        before = [len(digests) // DIGEST for digests in saved]
        for source, digests in zip(sources, saved, strict=True):
            _check_files(source, digests, extend=extend)
        if (
            extend
            and dataset.fingerprint(before if isinstance(dataset, TokenMixture) else before[0])
            == (state["fingerprint"])
        ):
            return True
        if not extend or [len(source.paths) for source in sources] == before:
            raise ValueError(
                "state: the files are what they were, but the samples made of them are not: expected the same "
                "block_size, stride, layout and dtype (and, of a mixture, sources that stop)"
            )
    for name in ("fingerprint", "samples"):
        if state[name] != expected[name]:
            raise ValueError(
                f"state: the data has changed: expected {name} {expected[name]!r} (this loader's), got {state[name]!r}"
            )
    return False


def _check_files(source: TokenDataset, saved: str, *, extend: bool) -> None:
    now, paths = source.file_digests(), source.paths
    before = len(saved) // DIGEST
    for at in range(min(before, len(paths))):
        if now[at * DIGEST : (at + 1) * DIGEST] != saved[at * DIGEST : (at + 1) * DIGEST]:
            raise ValueError(f"state: the data has changed: file {at}, {paths[at]}, is not what it was")
    if len(paths) < before:
        raise ValueError(
            f"state: the data has changed: expected {before} files, got {len(paths)}: the last are missing"
        )
    if len(paths) > before and not extend:
        raise ValueError(
            f"state: the data has changed: expected {before} files, got {len(paths)}, with {paths[before]} the first "
            "that is new: extend=True goes on with them"
        )


def take_up(sampler: SeededSampler, state: dict[str, Any], grown: bool) -> None:
    """Sets ``sampler`` to where ``state`` was saved. ValueError, and no change, where it has no such place."""
    dataset: Any = sampler.data_source
    epoch, position = state["epoch"], state["position"]
    base, shorter = None, {}
    if isinstance(dataset, TokenMixture):
        base = _base_of(dataset, state)
        samples = dataset.samples_in(epoch, base)
    else:
        shorter = _shorter(state.get("epoch_samples") or (), len(dataset))
        shorter = {at: own for at, own in shorter.items() if at == epoch}
        if grown and (position > 0 or state.get("started")):
            shorter.setdefault(epoch, state["samples"])
        samples = shorter.get(epoch, len(dataset))
    if position > samples:
        raise ValueError(f"state: expected position 0 to {samples}, got {position}")
    sampler.base, sampler.shorter, sampler.epoch = base, shorter, epoch


def _shorter(saved: Any, most: int) -> dict[int, int]:
    try:
        shorter = {int(at): int(own) for at, own in saved}
    except (TypeError, ValueError):
        raise ValueError(f"state: expected epoch_samples to be pairs of ints, got {saved!r}") from None
    for own in shorter.values():
        if not 0 < own <= most:
            raise ValueError(f"state: expected epoch_samples of 1 to {most}, got {own}")
    return shorter


def _base_of(mixture: TokenMixture, state: dict[str, Any]) -> MixtureBase:
    saved = state.get("mixture")
    if not isinstance(saved, dict):
        raise ValueError("state: expected that of a mixture, with the key 'mixture'")
    try:
        base = MixtureBase(saved["epoch"], saved["position"], tuple((pass_, had) for pass_, had in saved["starts"]))
        before = mixture.as_it_was(saved["weights"], saved["lengths"], saved["samples"])
        epoch, position = state["epoch"], state["position"]
        if (epoch, position) < (base.epoch, base.position):
            raise ValueError(f"weights were changed at sample {base.position} of epoch {base.epoch}, which is behind")
        before.order(base.epoch, base, seed=0, shuffle=False)  # checks where sources are
        starts = before.starts_at(epoch, base, position)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"state: not the state of such a mixture: {error}") from None
    if all(saved[name] == getattr(mixture, attribute) for name, attribute in _OF_ROUNDS.items()):
        return base
    return MixtureBase(epoch, position, mixture.renewed(starts, saved["lengths"]))
