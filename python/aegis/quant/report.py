"""What ``convert`` did to each layer, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LayerReport", "Report"]


@dataclass(frozen=True)
class LayerReport:
    """One linear layer of a model."""

    name: str
    """Its path in the model; further paths of the same module are not listed."""
    shape: tuple[int, int]
    """(out_features, in_features)."""
    dtype: torch.dtype
    bytes_before: int
    """Of its parameters and buffers."""
    bytes_after: int
    """The same where the layer was left as it is."""
    relative_error: float | None
    """``|W - W'| / |W|`` of the weights, in Frobenius norms; None where nothing was converted."""
    reason: str
    """Why the layer was left as it is; empty where it was converted."""

    @property
    def converted(self) -> bool:
        """Whether the layer was converted."""
        return not self.reason


@dataclass(frozen=True)
class Report:
    """All linear layers of a model, in its order. ``str()`` of it is a table."""

    scheme: str
    layers: tuple[LayerReport, ...]

    @property
    def converted(self) -> tuple[LayerReport, ...]:
        """Those layers that were."""
        return tuple(layer for layer in self.layers if layer.converted)

    @property
    def bytes_before(self) -> int:
        """Of all layers."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Of all layers."""
        return sum(layer.bytes_after for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "shape", "dtype", "bytes", "after", "error", "")]
        for layer in self.layers:
            rows.append(
                (
                    layer.name,
                    f"{layer.shape[0]} × {layer.shape[1]}",
                    str(layer.dtype).removeprefix("torch."),
                    f"{layer.bytes_before:,}",
                    f"{layer.bytes_after:,}",
                    "" if layer.relative_error is None else f"{layer.relative_error:.3g}",
                    "converted" if layer.converted else layer.reason,
                )
            )
        total = f"{len(self.converted)} of {len(self.layers)} layers to {self.scheme}"
        rows.append((total, "", "", f"{self.bytes_before:,}", f"{self.bytes_after:,}", "", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        right = (1, 3, 4, 5)
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
