"""Data sets over token files and records, and the formats they read."""

from __future__ import annotations

from aegis.data import token_formats
from aegis.data.formats import TokenFile, document_offsets, register_format
from aegis.data.record_dataset import RecordDataset
from aegis.data.token_dataset import TokenDataset

__all__ = ["RecordDataset", "TokenDataset", "TokenFile", "document_offsets", "register_format", "token_formats"]
