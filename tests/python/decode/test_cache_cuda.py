"""SlottedStaticCache on a GPU: the same tokens as Hugging Face's cache, eager and as a captured graph."""

from __future__ import annotations

import aegis
import pytest
import tiny_models
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
FAMILIES = ["llama", "gemma3", "gpt2"]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_equals_dynamic_cache(family, batch):
    model = tiny_models.make(family).cuda()
    ids, mask = (t.cuda() for t in tiny_models.padded(batch))
    cache = aegis.SlottedStaticCache(model.config, batch, 64)
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 24}
    got = model.generate(ids, past_key_values=cache, **options)
    assert torch.equal(got, model.generate(ids, **options))
    assert cache.lengths.is_cuda
    assert cache.lengths.tolist() == cache.row_lengths == [33] * batch


@pytest.mark.parametrize("family", FAMILIES)
def test_replays_of_a_captured_step_follow_the_length_case10_case11(family):
    model = tiny_models.make(family).cuda()
    ids = tiny_models.padded(1, 30)[0].cuda()
    options = {"dtype": torch.float32, "device": "cuda"}
    cache = aegis.SlottedStaticCache(model.config, 1, 64, **options)
    token = ids[:, :1].clone()
    with torch.no_grad():
        want = model(ids, past_key_values=transformers.DynamicCache(config=model.config)).logits
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), cache.step():
            model(token, past_key_values=cache)  # nothing is set up inside the capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(token, past_key_values=cache).logits
        cache.reset()
        model(ids[:, :10], past_key_values=cache)
        for i in range(10, 30):
            token.copy_(ids[:, i : i + 1])
            with cache.step():
                graph.replay()
            torch.testing.assert_close(logits[:, 0], want[:, i], rtol=1e-3, atol=1e-4)
    assert cache.lengths.tolist() == cache.row_lengths == [30]
