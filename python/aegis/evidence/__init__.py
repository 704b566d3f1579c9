"""What a run can show for itself afterwards."""

from aegis.evidence.chain import IntegrityChain
from aegis.evidence.receipt import LossDigest, Receipt
from aegis.evidence.receipt_file import read_receipt
from aegis.evidence.replay import Replay
from aegis.evidence.verify import Check, verify_receipt

__all__ = ["Check", "IntegrityChain", "LossDigest", "Receipt", "Replay", "read_receipt", "verify_receipt"]
