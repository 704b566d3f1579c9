"""examples/generate.py as its reader runs it, on a model trained for two steps."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "generate.py"


def run(*arguments, cwd):
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_trains_generates_and_compares(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    options = ["--text", "text.txt", "--steps", "2", "--batch-size", "4", "--out", "out"]
    trained = run("-m", "aegis", "train", *options, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = run(EXAMPLE, "--checkpoint", "out/checkpoint.pt", "--prompt", "to be", "--tokens", 12, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("to be")
    assert "same tokens, 1 x 12 tokens" in result.stdout


def test_continues_with_a_saved_model(tmp_path):
    """A folder as transformers saves it: weights, config and tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(letters), max_position_embeddings=64, **sizes, **tokens)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    result = run(EXAMPLE, "--model", tmp_path, "--prompt", "to be", "--tokens", 12, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("to be")
    assert "same tokens, 1 x 12 tokens" in result.stdout
