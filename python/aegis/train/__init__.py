"""Training the Micro-GPT: what ``aegis train`` and ``make demo`` run, and a check of the loaders end to end.

Nothing else in aegis imports this package but what trains for evidence (soak, experiment), and it asks nothing of the
loaders but torch's own interface.
"""

from __future__ import annotations

from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.text import pack_text
from aegis.train.trainer import TrainConfig, Trainer

__all__ = ["MicroGPT", "MicroGPTConfig", "TrainConfig", "Trainer", "pack_text"]
