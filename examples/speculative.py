"""A language model and its draft, trained here and now on the demo's text, and what the draft gains.

python examples/speculative.py                       # trains the pair for some minutes, unless it was
python examples/speculative.py --prompt "def " --temperature 0.8 --mode compiled
"""

import argparse
import time
from pathlib import Path

import aegis
import torch
from aegis.train.huggingface import to_transformers
from aegis.train.pair import STEPS, Pair, agreement, load_pair, pair_settings, train_pair
from tqdm import tqdm

GUESSES = 4


def trained(checkpoint: Path, steps: int) -> Pair:
    """The pair, whose tokens are bytes; trained where the file is missing."""
    if checkpoint.exists():
        return load_pair(checkpoint)[0]
    settings = pair_settings(checkpoint.parent, steps=steps)
    with tqdm(total=steps, unit="step", desc="training a target and its draft") as bar:
        pair = train_pair(checkpoint, settings, on_step=lambda record: bar.update())
    loss, same, overlap = agreement(pair, settings)
    print(f"the target's loss on unseen text: {loss:.2f} nats a byte; the draft agrees with it on {same:.0%} of the")
    print(f"likeliest bytes, and on {overlap:.0%} of the distribution")
    return pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("demo/pair/checkpoint.pt"))
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--prompt", default="import os\n\ndef ")
    parser.add_argument("--tokens", type=int, default=100, help="how many to add")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--mode", default="auto", help="auto, eager or compiled, of the target with and without a draft"
    )
    args = parser.parse_args()

    pair = trained(args.checkpoint, args.steps)
    target, draft = to_transformers(pair.target), to_transformers(pair.draft)
    prompt = torch.tensor([list(args.prompt.encode())])
    room = prompt.shape[1] + args.tokens
    runners = {
        "aegis.generate": aegis.CUDAGraphFastRunner(target, max_cache_len=room, mode=args.mode),
        "with the draft": aegis.SpeculativeFastRunner(target, draft, GUESSES, max_cache_len=room, mode=args.mode),
    }
    options = {"max_new_tokens": args.tokens, "pad_token_id": 0, "do_sample": args.temperature > 0}
    if args.temperature > 0:
        options |= {"temperature": args.temperature, "seed": args.seed}
    seconds = dict.fromkeys(runners, float("inf"))
    for turn in range(4):  # the first one warms up, or compiles
        for name, runner in runners.items():
            start = time.perf_counter()
            output = aegis.generate(target, prompt, runner=runner, **options)
            if turn > 0:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    print(bytes(output[0].tolist()).decode(errors="replace"))

    stats = runners["with the draft"].stats()
    print(f"\n{'':16}{'tokens/s':>10}")
    for name, best in seconds.items():
        print(f"{name:16}{args.tokens / best:10,.1f}")
    print(f"{stats['acceptance_rate']:.2f} of {GUESSES} guesses kept, {stats['tokens_per_pass']:.2f} tokens a pass")


if __name__ == "__main__":
    main()
