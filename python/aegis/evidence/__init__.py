"""What a run can show for itself afterwards."""

from aegis.evidence.chain import IntegrityChain

__all__ = ["IntegrityChain"]
