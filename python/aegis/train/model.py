"""The Micro-GPT of PyTorch RFC-0036: a decoder-only transformer small enough to train on a laptop."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MicroGPT", "MicroGPTConfig"]


@dataclass(frozen=True)
class MicroGPTConfig:
    """Sizes of a :class:`MicroGPT`; the defaults are those of the RFC.

    Raises:
        ValueError: a size below 1, ``width`` not divisible by ``heads``, or a dropout outside [0, 1).
    """

    vocab_size: int
    block_size: int = 256
    layers: int = 6
    heads: int = 6
    width: int = 384
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of heads ({self.heads}), got {self.width}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: expected a value in [0, 1), got {self.dropout}")


class Attention(nn.Module):
    """Causal self-attention: (batch, tokens, width) to the same shape."""

    def __init__(self, config: MicroGPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        # (batch, tokens, 3 * width) -> three of (batch, heads, tokens, width / heads)
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return mixed


class Block(nn.Module):
    """One pre-norm layer: attention, then an MLP four times as wide."""

    def __init__(self, config: MicroGPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, bias=False)
        self.mlp_in = nn.Linear(config.width, 4 * config.width, bias=False)
        self.mlp_out = nn.Linear(4 * config.width, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = F.gelu(self.mlp_in(self.mlp_norm(x)))
        x = x + self.dropout(self.mlp_out(hidden))
        return x


class MicroGPT(nn.Module):
    """Decoder-only, pre-norm, learned positions, GELU, input and output embedding tied, no biases.

    Initialised from torch's global generator, as GPT-2 was: normal with deviation 0.02, projections onto the
    residual stream scaled down by the square root of their number.
    """

    def __init__(self, config: MicroGPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        residual = 0.02 / math.sqrt(2 * config.layers)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                onto_residual = name.endswith(("attention.out.weight", "mlp_out.weight"))
                nn.init.normal_(weight, std=residual if onto_residual else 0.02)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits of the next token, or with ``targets`` their mean cross entropy.

        Args:
            inputs: (batch, tokens) int64, ``tokens <= block_size``.
            targets: (batch, tokens) int64.

        Returns:
            (batch, tokens, vocab_size) logits; with ``targets`` a scalar in nats per token.

        Raises:
            ValueError: more tokens than the model has positions.
        """
        count = inputs.shape[1]
        if count > self.config.block_size:
            raise ValueError(f"inputs: expected at most {self.config.block_size} tokens, got {count}")
        x: Tensor = self.dropout(self.tokens(inputs) + self.positions.weight[:count])
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        if targets is not None:
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits

    def parameter_count(self, *, positions: bool = True) -> int:
        """Parameters in all, the tied embedding once; ``positions=False`` leaves the position table out,
        which is how nanoGPT and the RFC count (10.7 million at 256 byte tokens)."""
        total = sum(weight.numel() for weight in self.parameters())
        return total if positions else total - self.positions.weight.numel()


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Groups for AdamW: matrices decay, vectors (the norms' gains) do not."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
