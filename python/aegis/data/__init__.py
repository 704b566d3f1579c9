"""Data sets over token files, and the formats they read."""

from __future__ import annotations

from aegis.data.formats import TokenFile, register_format
from aegis.data.token_dataset import TokenDataset

__all__ = ["TokenDataset", "TokenFile", "register_format"]
