"""Greedy decoding by llama.cpp, the same model and prompt: what `aegis.generate` is measured against.

    python benchmarks/python/llama_cpp_peer.py [--python INTERPRETER] [--dtype float32 ...]

llama.cpp runs in a process of its own, under an interpreter that has llama-cpp-python, gguf and numpy; torch is not
needed there. The interpreter is named by an argument or by AEGIS_LLAMA_CPP_PYTHON, or is this one where llama_cpp can
be imported. The process reads a job as JSON from its standard input and writes the result as JSON to its standard
output; weights go through a folder of .npy files, out of which it makes a GGUF file.

It is not called llama_cpp.py: as a script's neighbour, a file of that name would be imported in place of the package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "AEGIS_LLAMA_CPP_PYTHON"
DTYPES = ("float32", "float16", "bfloat16")
TERNARY = "TQ2_0"
"""The layers' matrices in that type, the embedding and the output in float16."""


@dataclass
class Run:
    tokens: list[int]
    seconds_per_token: float
    """Median over turns of the mean over a turn's tokens, the prompt aside."""
    seconds_of_turns: list[float]
    version: str
    """Of llama-cpp-python."""


def interpreter(python: str | None = None) -> str | None:
    """What runs llama.cpp: `python`, or AEGIS_LLAMA_CPP_PYTHON, or this interpreter; None where it has no llama_cpp."""
    chosen = python or os.environ.get(VARIABLE)
    if chosen:
        return chosen
    return sys.executable if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf") else None


def greedy(
    model: Any,
    prompt: list[int],
    tokens: int,
    *,
    dtype: str | None = None,
    threads: int = 2,
    turns: int = 3,
    python: str | None = None,
) -> Run:
    """The `tokens` most likely ids after `prompt`, one after the other, by llama.cpp.

    Args:
        model: a LlamaForCausalLM without biases and without scaling of rotary positions.
        tokens: at least 2.
        dtype: of the weight matrices and of the cache in llama.cpp: one of DTYPES or TERNARY, by default the model's.
            The cache of a bfloat16 model and of a ternary one is float16, llama.cpp's default.
        turns: how often; each begins with an empty cache and the prompt, which is not timed.

    Raises:
        RuntimeError: no interpreter has llama_cpp, or its process failed.
        ValueError: an argument that is none of these.
    """
    chosen = interpreter(python)
    if chosen is None:
        raise RuntimeError(f"llama_cpp: not importable, and {VARIABLE} names no interpreter that has it")
    dtype = dtype or str(model.dtype).removeprefix("torch.")
    if dtype not in (*DTYPES, TERNARY):
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype}")
    if tokens < 2:
        raise ValueError(f"tokens: expected at least 2, got {tokens}")
    with tempfile.TemporaryDirectory() as folder:
        save_weights(model, dtype, Path(folder))
        job = {
            "folder": folder,
            "shape": shape_of(model.config),
            "dtype": dtype,
            "prompt": prompt,
            "tokens": tokens,
            "threads": threads,
            "turns": turns,
        }
        # -P keeps this folder's files from being imported in place of packages.
        done = subprocess.run(
            [chosen, "-P", str(Path(__file__).resolve()), "--job"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp: its process ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def shape_of(config: Any) -> dict[str, Any]:
    """What GGUF tells of a Llama model."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise ValueError(f"model: expected a Llama without biases, got {config.model_type}")
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"model: expected rotary positions without scaling, got {rope}")
    return {
        "context": config.max_position_embeddings,
        "width": config.hidden_size,
        "layers": config.num_hidden_layers,
        "hidden": config.intermediate_size,
        "heads": config.num_attention_heads,
        "key_heads": config.num_key_value_heads,
        "head_size": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "epsilon": config.rms_norm_eps,
        "rope_base": rope.get("rope_theta") or config.rope_theta,
        "vocabulary": config.vocab_size,
    }


def gguf_names(layers: int) -> dict[str, str]:
    """Hugging Face's names of tensors to GGUF's."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for layer in range(layers):
        for theirs, ours in (
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ):
            names[f"model.layers.{layer}.{theirs}.weight"] = f"blk.{layer}.{ours}.weight"
    return names


def save_weights(model: Any, dtype: str, folder: Path) -> None:
    """One .npy file for each tensor, by its name in GGUF; bfloat16 as its bits. Norms are float32, as GGUF has them."""
    import torch

    state = model.state_dict()
    for theirs, ours in gguf_names(model.config.num_hidden_layers).items():
        tensor = state[theirs].detach().cpu()
        if dtype == TERNARY:
            kept = torch.float32 if ours.startswith("blk.") else torch.float16
        else:
            kept = getattr(torch, dtype)
        tensor = tensor.to(kept) if tensor.ndim == 2 else tensor.float()
        bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        np.save(folder / f"{ours}.npy", bits.contiguous().numpy(), allow_pickle=False)


# --- the process that has llama_cpp ---------------------------------------------------------------------------------


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in llama.cpp's order: it rotates neighbours, where Hugging Face rotates element
    i with i + half, so each head's halves are interleaved."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, folder: Path, shape: dict[str, Any], dtype: str) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["hidden"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["key_heads"])
    writer.add_key_length(shape["head_size"])
    writer.add_value_length(shape["head_size"])
    writer.add_layer_norm_rms_eps(shape["epsilon"])
    writer.add_rope_dimension_count(shape["head_size"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_vocab_size(shape["vocabulary"])
    # Ids go in and out; the words behind them are never asked for.
    count = shape["vocabulary"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<{i}>" for i in range(3, count))])
    writer.add_token_scores([0.0] * count)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *([kinds.NORMAL] * (count - 3))])
    for name in gguf_names(shape["layers"]).values():
        tensor = np.load(folder / f"{name}.npy", allow_pickle=False)
        if ".attn_q." in name or ".attn_k." in name:
            tensor = interleaved(tensor, shape["heads" if ".attn_q." in name else "key_heads"])
        if tensor.ndim == 2 and dtype == "bfloat16":
            bits = np.ascontiguousarray(tensor).view(np.uint8)
            writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
        elif tensor.ndim == 2 and dtype == TERNARY and name.startswith("blk."):
            kind = gguf.GGMLQuantizationType[TERNARY]
            writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job: see `greedy`."""
    import llama_cpp

    folder, shape = Path(job["folder"]), job["shape"]
    write_gguf(folder / "model.gguf", folder, shape, job["dtype"])
    cache_type = llama_cpp.GGML_TYPE_F32 if job["dtype"] == "float32" else llama_cpp.GGML_TYPE_F16
    model = llama_cpp.Llama(
        str(folder / "model.gguf"),
        n_ctx=len(job["prompt"]) + job["tokens"],
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        type_k=cache_type,
        type_v=cache_type,
        verbose=False,
    )

    def best() -> int:
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(shape["vocabulary"],)).argmax())

    seconds = []
    for _ in range(job["turns"]):
        model.reset()
        model.eval(job["prompt"])
        tokens = [best()]
        start = time.perf_counter()
        while len(tokens) < job["tokens"]:
            model.eval(tokens[-1:])
            tokens.append(best())
        seconds.append((time.perf_counter() - start) / (job["tokens"] - 1))
    return {
        "tokens": tokens,
        "seconds_per_token": statistics.median(seconds),
        "seconds_of_turns": seconds,
        "version": llama_cpp.__version__,
    }


# --- by itself: whether it chooses the tokens that Hugging Face does --------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help=f"an interpreter that has llama_cpp and gguf (or {VARIABLE})")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--job", action="store_true", help="read a job from the standard input")
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(decode(json.load(sys.stdin))))
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    config = LlamaConfig(
        num_hidden_layers=6, hidden_size=384, intermediate_size=1024, num_attention_heads=6, num_key_value_heads=6,
        vocab_size=32_000, eos_token_id=None,
    )  # fmt: skip
    prompt = torch.randint(3, 32_000, (1, 8), generator=torch.Generator().manual_seed(1))
    for dtype in arguments.dtype:
        model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
        start = time.perf_counter()
        result = model.generate(prompt, do_sample=False, max_new_tokens=arguments.tokens, pad_token_id=0)
        seconds = (time.perf_counter() - start) / arguments.tokens
        theirs = result[0, prompt.shape[1] :].tolist()
        run = greedy(model, prompt[0].tolist(), arguments.tokens, threads=arguments.threads, python=arguments.python)
        same = next((i for i, (a, b) in enumerate(zip(theirs, run.tokens, strict=True)) if a != b), len(theirs))
        print(
            f"{dtype}: {same} of {len(theirs)} tokens as Hugging Face's generate; a token takes llama.cpp "
            f"(llama-cpp-python {run.version}) {run.seconds_per_token * 1e3:.2f} ms, generate {seconds * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main()
