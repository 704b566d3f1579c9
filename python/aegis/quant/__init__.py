"""Linear layers of few bits, and what puts them into a model."""

from __future__ import annotations

from aegis.quant.convert import SCHEMES, ConversionRefused, convert, freeze, revert
from aegis.quant.float8 import Float8Linear
from aegis.quant.float8_checkpoints import load_float8, read_float8, write_float8
from aegis.quant.readers import install, read_bitnet, read_gguf
from aegis.quant.report import LayerReport, Report
from aegis.quant.scheme import Scheme
from aegis.quant.ternary import TernaryLinear

__all__ = [
    "SCHEMES",
    "ConversionRefused",
    "Float8Linear",
    "LayerReport",
    "Report",
    "Scheme",
    "TernaryLinear",
    "convert",
    "freeze",
    "install",
    "load_float8",
    "read_bitnet",
    "read_float8",
    "read_gguf",
    "revert",
    "write_float8",
]
