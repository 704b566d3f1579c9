"""Where rows of telemetry go beside their file: a progress line, TensorBoard. Called by the writer's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tqdm import tqdm

from aegis.evidence.telemetry_row import Row

__all__ = ["ProgressLine", "Sink", "TensorBoard"]


class Sink(Protocol):
    """Takes rows in their order."""

    def rows(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


class ProgressLine:
    """A line on stderr with the loss, and rate and share of waiting over the last 50 steps."""

    def __init__(self, total: int | None) -> None:
        self._recent: deque[Row] = deque(maxlen=50)
        self._bar = tqdm(total=total, unit="step", dynamic_ncols=True, mininterval=0.0)

    def rows(self, rows: Sequence[Row]) -> None:
        self._recent.extend(rows)
        seconds = _sum(self._recent, "step_seconds") or 1e-9
        parts = [f"{_sum(self._recent, 'tokens') / seconds:,.0f} tokens/s"]
        parts.append(f"waiting {_sum(self._recent, 'wait_seconds') / seconds:.2%}")
        loss = rows[-1]["loss"]
        if loss is not None:
            parts.insert(0, f"loss {loss:.3f}")
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(len(rows))

    def close(self) -> None:
        self._bar.close()


class TensorBoard:
    """Scalars of every step, by torch.utils.tensorboard.

    Raises:
        ModuleNotFoundError: the package tensorboard is not installed.
    """

    _TAGS: ClassVar[dict[str, str]] = {
        "loss": "train/loss",
        "tokens_per_second": "train/tokens_per_second",
        "step_seconds": "time/step_seconds",
        "wait_seconds": "time/wait_seconds",
        "minor_faults": "process/minor_faults",
        "rss_anon_bytes": "process/rss_anon_bytes",
        "vm_data_bytes": "process/vm_data_bytes",
        "gpu_reserved_bytes": "gpu/reserved_bytes",
    }

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError(
                f"tensorboard: expected the package tensorboard to be installed (pip install tensorboard): {error}"
            ) from error
        self._writer: Any = SummaryWriter(folder)

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, tag in self._TAGS.items():
                value = row[name]
                if value is not None:
                    self._writer.add_scalar(tag, value, int(row["step"] or 0))

    def close(self) -> None:
        self._writer.close()


def _sum(rows: deque[Row], name: str) -> float:
    return sum(row[name] or 0.0 for row in rows)
