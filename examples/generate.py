"""Text from a language model through aegis.generate, without a download.

python examples/generate.py                          # trains the demo's Micro-GPT for a minute, unless it was
python examples/generate.py --checkpoint demo/checkpoint.pt --prompt "def "
python examples/generate.py --model ~/models/llama   # any causal language model saved by transformers
"""

import argparse
import subprocess
import sys
from pathlib import Path

import aegis
import torch
from aegis.train.checkpoint import load_checkpoint
from aegis.train.huggingface import to_transformers
from aegis.train.model import MicroGPT
from aegis.train.settings import Settings, micro_gpt


def trained(checkpoint: Path) -> MicroGPT:
    """The demo's model, whose tokens are bytes; trained here and now where the file is missing."""
    if not checkpoint.exists():
        options = ["--out", str(checkpoint.parent), "--steps", "500"]
        subprocess.run([sys.executable, "-m", "aegis", "train", *options], check=True)
    state = load_checkpoint(checkpoint)
    model = micro_gpt(Settings(**state["settings"]))
    model.load_state_dict(state["model"])
    return model


class Bytes:
    """A tokenizer for models whose tokens are bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("demo/checkpoint.pt"), help="of aegis train")
    parser.add_argument("--model", help="a folder that transformers has saved, instead")
    parser.add_argument("--prompt", default="import os\n\ndef ")
    parser.add_argument("--tokens", type=int, default=100, help="how many to add")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", default="auto", help="auto, eager, compiled or cuda-graph")
    args = parser.parse_args()

    if args.model:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(args.model).eval()
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    else:
        model = to_transformers(trained(args.checkpoint))
        tokenizer = Bytes()

    input_ids = torch.tensor([tokenizer.encode(args.prompt)])
    options = {"max_new_tokens": args.tokens, "pad_token_id": 0, "temperature": args.temperature, "top_k": 50}
    output = aegis.generate(model, input_ids, seed=args.seed, mode=args.mode, progress=True, **options)
    print(tokenizer.decode(output[0].tolist()))

    print("\nThe same model and prompt, greedy, beside model.generate:")
    aegis.bench_generate(model, input_ids, max_new_tokens=args.tokens, mode=args.mode)


if __name__ == "__main__":
    main()
