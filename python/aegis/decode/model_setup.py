"""What a model is changed to while it decodes, and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from aegis.decode.huggingface import aegis_attention
from aegis.decode.linears import skinny_linears

__all__ = ["set_up"]

_lock = threading.Lock()
_set_up: dict[nn.Module, tuple[ExitStack, int]] = {}
"""Models that are set up: what undoes it, and how many are inside. Guarded by the lock."""


@contextmanager
def set_up(model: nn.Module) -> Iterator[None]:
    """Inside, the model's attention is aegis's and its linear layers are SkinnyLinears.

    The first to enter changes the model and the last to leave changes it back, in whatever order they leave: threads
    and nested runners may share a model.
    """
    with _lock:
        undo, users = _set_up.get(model) or (_change(model), 0)
        _set_up[model] = (undo, users + 1)
    try:
        yield
    finally:
        with _lock:
            undo, users = _set_up.pop(model)
            if users > 1:
                _set_up[model] = (undo, users - 1)
            else:
                undo.close()


def _change(model: nn.Module) -> ExitStack:
    with ExitStack() as stack:
        stack.enter_context(aegis_attention(model))
        stack.enter_context(skinny_linears(model))
        return stack.pop_all()
