"""Linear layers of few bits, and what puts them into a model."""

from __future__ import annotations

from aegis.quant.convert import SCHEMES, ConversionRefused, convert, revert
from aegis.quant.report import LayerReport, Report
from aegis.quant.scheme import Scheme

__all__ = ["SCHEMES", "ConversionRefused", "LayerReport", "Report", "Scheme", "convert", "revert"]
