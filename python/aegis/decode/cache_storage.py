"""The buffers of a cache: made once, in one piece, and never moved."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aegis.arena import Arena
from aegis.decode.cache_plan import Shape

__all__ = ["Storage"]


class Storage:
    """Keys and values of every layer, (rows, heads, slots, size): on a CPU, cut from one arena.

    They are made when told to, by :meth:`reserve`, or when the first layer is asked for: as planned if that one is, and
    otherwise all like it. A layer that turns out different then gets memory of its own.

    Args:
        rows: of the cache, or of the buffers of each layer.
        slots: of each layer; 0 where it keeps nothing.
        planned: the shapes that the configuration tells. Tensor parallelism, for one, has fewer heads.
    """

    def __init__(self, rows: int | list[int], slots: list[int], planned: list[Shape]) -> None:
        self._rows = [rows] * len(slots) if isinstance(rows, int) else rows
        self._slots = slots
        self._planned = planned
        self._told = False
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def made(self) -> bool:
        return bool(self._buffers)

    def reserve(self, shapes: list[Shape], dtype: torch.dtype, device: torch.device) -> None:
        """Makes the buffers of all layers. Raises ValueError for a dtype that is not floating-point."""
        self._told = True
        self._make({i: shape for i, shape in enumerate(shapes) if self._slots[i]}, dtype, device)

    def take(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The buffers of a layer whose new keys and values, (batch, heads, tokens, size), are like these.

        Raises:
            ValueError: they do not fit the buffers that were made.
        """
        shape = (keys.shape[1], keys.shape[3], values.shape[3])
        if not self._buffers:
            as_planned = self._planned[layer] == shape
            shapes = {i: self._planned[i] if as_planned else shape for i, slots in enumerate(self._slots) if slots}
            self._make(shapes, keys.dtype, keys.device)
        if layer not in self._buffers or (not self._told and self._shape(layer) != shape):
            self._make({layer: shape}, keys.dtype, keys.device)
        mine = self._buffers[layer]
        if (self._shape(layer), mine[0].dtype, mine[0].device) != (shape, keys.dtype, keys.device):
            raise ValueError(
                f"layer {layer}: expected (heads, key size, value size) {self._shape(layer)}, {mine[0].dtype} on "
                f"{mine[0].device}, got {shape}, {keys.dtype} on {keys.device}"
            )
        return mine

    def get(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._buffers[layer]

    def adopt(self, other: Storage) -> None:
        """The same content as another, in memory of its own."""
        if not other._buffers:
            return
        first, _ = next(iter(other._buffers.values()))
        self._told = other._told
        self._make({layer: other._shape(layer) for layer in other._buffers}, first.dtype, first.device)
        for layer, mine in self._buffers.items():
            for buffer, theirs in zip(mine, other._buffers[layer], strict=True):
                buffer.copy_(theirs)

    def _shape(self, layer: int) -> Shape:
        keys, values = self._buffers[layer]
        return keys.shape[1], keys.shape[3], values.shape[3]

    def _make(self, shapes: dict[int, Shape], dtype: torch.dtype, device: torch.device) -> None:
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype: expected a floating-point torch.dtype, got {dtype!r}")
        extents = {
            layer: [(self._rows[layer], heads, self._slots[layer], size) for size in sizes]
            for layer, (heads, *sizes) in shapes.items()
        }
        arena = None
        if device.type == "cpu":
            pieces = [math.prod(extent) * dtype.itemsize for pair in extents.values() for extent in pair]
            arena = Arena(sum(-(-nbytes // 64) * 64 for nbytes in pieces))
        # Tensors made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            for layer, pair in extents.items():
                keys, values = (
                    arena.empty(extent, dtype) if arena else torch.zeros(extent, dtype=dtype, device=device)
                    for extent in pair
                )
                for buffer in (keys, values):  # CUDA graphs of compiled code need not copy them
                    torch._dynamo.mark_static_address(buffer)
                self._buffers[layer] = (keys, values)
