"""Packed documents that do not see each other: a small transformer, trained on rows of several documents.

python examples/documents.py            # FlexAttention on a GPU, a boolean mask on a CPU
python examples/documents.py --steps 200 --threads 2
"""

import argparse
import tempfile
from pathlib import Path

import aegis
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

VOCABULARY, BLOCK, BOS = 64, 128, 0


def write_documents(path: Path) -> None:
    """Documents that begin with BOS and count upwards, each in steps of its own."""
    random = np.random.default_rng(0)
    lengths, steps = random.integers(5, 80, 2000), random.integers(1, 5, 2000)
    documents = [1 + step * np.arange(n) % (VOCABULARY - 1) for n, step in zip(lengths, steps, strict=True)]
    np.concatenate([[BOS, *tokens] for tokens in documents]).astype(np.uint16).tofile(path)


def attend(q: Tensor, k: Tensor, v: Tensor, document_ids: Tensor) -> Tensor:
    """Causal attention within documents; position_ids alone would not keep them apart."""
    if q.is_cuda:

        def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & (document_ids[b, i] == document_ids[b, j])

        rows, tokens = document_ids.shape
        mask = create_block_mask(same_document, rows, None, tokens, tokens, device=q.device)
        return flex_attention(q, k, v, block_mask=mask)
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same.tril())


class Model(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(BLOCK, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, batch: aegis.TokenBatch) -> Tensor:
        x = self.tokens(batch.inputs) + self.positions(batch.position_ids)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        x = x + self.out(attend(q, k, v, batch.document_ids).transpose(1, 2).flatten(2))
        return self.head(x + self.mlp(x))


def losses(model: Model, batch: aegis.TokenBatch) -> Tensor:
    """(B, T) of each token; 0 where the next one is another document's, whose target is -100."""
    return F.cross_entropy(model(batch).transpose(1, 2), batch.targets, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1, help="that write batches")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.bin"
        write_documents(path)
        dataset = aegis.TokenDataset(
            path, BLOCK, dtype="uint16", bos_id=BOS, layout="packed", fields=("document_ids", "position_ids")
        )
        print(dataset)
        torch.manual_seed(0)
        model = Model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        loader = aegis.FlatArenaDataLoader(dataset, 16, shuffle=True, seed=0, num_workers=args.threads, drop_last=True)
        step = 0
        while step < args.steps:
            for batch in loader:
                batch = batch.to(device)
                loss = losses(model, batch).sum() / (batch.targets != -100).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == 1 or step % 50 == 0 or step == args.steps:
                    print(f"step {step}: loss {loss.item():.3f}")
                if step == args.steps:
                    break
        loader.close()

    # What the second document of a row costs does not depend on the first.
    with torch.no_grad():
        before = losses(model, batch)
        first, second = batch.document_ids == 0, batch.document_ids == 1
        batch.inputs[first] = torch.randint(1, VOCABULARY, batch.inputs[first].shape, device=device)
        after = losses(model, batch)
    print(f"document 1 rewritten: its loss moved by {(after - before)[first].abs().max():.3f} at most,")
    print(f"that of document 2 by {(after - before)[second].abs().max():.3g}")


if __name__ == "__main__":
    main()
