"""Linear layers of few bits, and what puts them into a model."""

from __future__ import annotations

from aegis.quant.convert import SCHEMES, ConversionRefused, convert, freeze, revert
from aegis.quant.report import LayerReport, Report
from aegis.quant.scheme import Scheme
from aegis.quant.ternary import TernaryLinear

__all__ = [
    "SCHEMES",
    "ConversionRefused",
    "LayerReport",
    "Report",
    "Scheme",
    "TernaryLinear",
    "convert",
    "freeze",
    "revert",
]
