"""What a run can show for itself afterwards."""

from aegis.evidence.chain import IntegrityChain
from aegis.evidence.receipt import LossDigest, Receipt
from aegis.evidence.receipt_file import read_receipt

__all__ = ["IntegrityChain", "LossDigest", "Receipt", "read_receipt"]
