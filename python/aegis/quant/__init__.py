"""Linear layers of few bits, and what puts them into a model."""

from __future__ import annotations

from aegis.quant.convert import SCHEMES, ConversionRefused, convert, freeze, revert
from aegis.quant.readers import install, read_bitnet, read_gguf
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
    "install",
    "read_bitnet",
    "read_gguf",
    "revert",
]
