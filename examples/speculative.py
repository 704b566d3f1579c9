"""A language model and its draft, trained here and now on the demo's text, and what the draft gains.

python examples/speculative.py                       # trains the pair for about 18 minutes, unless it was
python examples/speculative.py --prompt "def " --temperature 0.5
python examples/speculative.py --mode eager          # compiles nothing: slower text, but at once

What it writes looks like Python and means nothing: the model saw 1.6 MB of text. With --temperature 0 (greedy) so small
a model soon repeats itself, and guesses are then easier than they should be.
"""

import argparse
import time
from pathlib import Path

import aegis
import torch
from aegis.train.huggingface import to_transformers
from aegis.train.pair import STEPS, Pair, agreement, draft_steps, load_pair, pair_settings, train_pair
from aegis.train.settings import Settings
from tqdm import tqdm


def trained(checkpoint: Path, steps: int) -> tuple[Pair, Settings]:
    """The pair, whose tokens are bytes; trained where the file is missing."""
    if checkpoint.exists():
        return load_pair(checkpoint)
    settings = pair_settings(checkpoint.parent, steps=steps)
    with tqdm(total=steps + draft_steps(settings), unit="step", desc="training a target and its draft") as bar:

        def show(record):
            bar.set_postfix_str(f"loss {record.loss:.2f}", refresh=False)
            bar.update()

        return train_pair(checkpoint, settings, on_step=show), settings


def describe(checkpoint: Path, pair: Pair, settings: Settings, temperature: float) -> None:
    large, small = (model.parameter_count() / 1e6 for model in (pair.target, pair.draft))
    print(f"{checkpoint}: {large:.1f} million parameters and a draft of {small:.1f}, after {settings.steps:,} steps")
    if Path(settings.val_data).exists():
        heat = temperature or 1.0
        loss, same, overlap = agreement(pair, settings, temperature=heat)
        print(f"on unseen text: {loss:.2f} nats a byte; the draft agrees on {same:.0%} of the likeliest bytes, and on")
        print(f"{overlap:.0%} of the distribution at temperature {heat:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("demo/pair/checkpoint.pt"))
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training, where it is missing (default: {STEPS})")
    parser.add_argument("--prompt", default="import os\n\ndef ")
    parser.add_argument("--tokens", type=int, default=200, help="how many to add (default: 200)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default: 0.7)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guesses", type=int, default=4, help="of the draft, for one pass of the target (default: 4)")
    parser.add_argument(
        "--mode", default="compiled", choices=["eager", "compiled"], help="of all passes (default: compiled)"
    )
    args = parser.parse_args()
    if args.temperature < 0:
        parser.error(f"--temperature: expected 0 or more, got {args.temperature}")
    if args.guesses < 1:
        parser.error(f"--guesses: expected at least 1, got {args.guesses}")

    try:
        pair, settings = trained(args.checkpoint, args.steps)
    except ValueError as error:
        parser.error(str(error))
    prompt = torch.tensor([list(args.prompt.encode())], dtype=torch.int64)
    room, positions = prompt.shape[1] + args.tokens, pair.target.config.block_size
    if prompt.shape[1] < 1 or args.tokens < 1 or room > positions:
        parser.error(
            f"expected a prompt and tokens, together at most the {positions} bytes that the model has positions for, "
            f"got {prompt.shape[1]} and {args.tokens}"
        )
    describe(args.checkpoint, pair, settings, args.temperature)

    target, draft = to_transformers(pair.target), to_transformers(pair.draft)
    # With room for guesses behind the last token all passes are whole ones; what a model has no positions for is none.
    room = min(room + args.guesses, positions)
    runners = {
        "aegis.generate": aegis.CUDAGraphFastRunner(target, max_cache_len=room, mode=args.mode),
        "with the draft": aegis.SpeculativeFastRunner(target, draft, args.guesses, max_cache_len=room, mode=args.mode),
    }
    options = {"max_new_tokens": args.tokens, "pad_token_id": 0, "do_sample": args.temperature > 0}
    if args.temperature > 0:
        options |= {"temperature": args.temperature, "top_k": 0, "seed": args.seed}
    if args.mode == "compiled":
        print("compiling (about a minute; seconds where it was done before) ...", flush=True)
    seconds = dict.fromkeys(runners, float("inf"))
    for turn in range(4):  # the first one warms up, or compiles
        for name, runner in runners.items():
            start = time.perf_counter()
            output = aegis.generate(target, prompt, runner=runner, **options)
            if turn > 0:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    print(f"\n{bytes(output[0].tolist()).decode(errors='replace')}\n")

    plain = seconds["aegis.generate"]
    print(f"{'':16}{'tokens/s':>10}{'speed-up':>10}")
    for name, best in seconds.items():
        print(f"{name:16}{args.tokens / best:10,.0f}{plain / best:9.2f}x")
    stats = runners["with the draft"].stats()
    print(
        f"{stats['acceptance_rate']:.2f} of {args.guesses} guesses kept, {stats['tokens_per_pass']:.2f} tokens a pass"
    )


if __name__ == "__main__":
    main()
