"""A run done again, held against its receipt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aegis.evidence.chain import IntegrityChain

__all__ = ["Replay"]


class Replay:
    """Compares the chains of a run that is done again with the values in a receipt, as it goes.

    Args:
        record: the receipt, from :func:`read_receipt`.
        only: names of the chains that are made again; None means all.

    Raises:
        ValueError: the receipt has no chain of such a name, or none at all, or is of a run that did not begin at
            its first step.
    """

    def __init__(self, record: Mapping[str, Any], *, only: tuple[str, ...] | None = None) -> None:
        kept = record["chains"]
        names = tuple(kept) if only is None else only
        if not kept or not set(names) <= kept.keys():
            raise ValueError(f"receipt: expected the chains {', '.join(names) or 'to compare'}, got {list(kept)}")
        if record["steps"]["first"] != 1:
            first = record["steps"]["first"]
            raise ValueError(f"receipt: expected a run from step 1 on, got one that was resumed at step {first}")
        self.chains = {name: _chain_at(kept[name]["start"]) for name in names}
        """What the run adds its batches and losses to, by the names in the receipt."""
        self.compared = {name: 0 for name in names}
        """Up to which step each chain was compared."""
        self._marks = {name: kept[name]["marks"] for name in names}
        self._different: dict[str, str] = {}

    def step(self, step: int) -> None:
        """Compares, where the receipt kept values of this step. Called as :meth:`Receipt.step` was."""
        for name, chain in self.chains.items():
            want = self._marks[name].get(str(step))
            if want is None or name in self._different:
                continue
            if str(chain) == want:
                self.compared[name] = step
                continue
            before = self.compared[name]
            where = f"at step {step}" if before == step - 1 else f"between steps {before + 1} and {step}"
            self._different[name] = f"the first difference is {where}: expected {want}, got {chain}"

    def difference(self, name: str) -> str | None:
        """The first step at which a chain differs, or the steps between which that lies; None while it agrees."""
        return self._different.get(name)


def _chain_at(state: Mapping[str, Any]) -> IntegrityChain:
    chain = IntegrityChain(bits=state["bits"], lanes=state["lanes"])
    chain.restore(state)
    return chain
