"""PagedKVCache on a GPU: the tokens of Hugging Face's cache, eager and from captured steps."""

from __future__ import annotations

import aegis
import pytest
import tiny_models
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
FAMILIES = ["llama", "gemma3", "gpt2"]


@pytest.mark.parametrize("mode", ["eager", "cuda-graph"])
@pytest.mark.parametrize("family", FAMILIES)
def test_runner_gives_the_models_tokens_case10(family, mode):
    """Replays follow the block table: the tokens go over several pages, which are not the first of the pool."""
    model = tiny_models.make(family).cuda()
    ids = tiny_models.prompts(2, 21).cuda()
    want = model.generate(ids, max_new_tokens=30, do_sample=False)[:, 21:]
    cache = aegis.PagedKVCache(model.config, 2, 96, device="cuda")
    with aegis.CUDAGraphFastRunner(model, cache=cache, mode=mode, clone=True) as runner:
        for _ in range(2):
            tokens = [runner.prefill(ids), *(runner.step() for _ in range(29))]
            assert torch.equal(torch.stack(tokens, 1), want)
            assert cache.lengths.tolist() == cache.row_lengths == [50, 50]
            runner.reset()
            cache.table.allocate(7)  # a page of another, so that the rows get others


def test_speculation_and_forks_on_pages():
    model = tiny_models.make("llama").cuda()
    ids = tiny_models.prompts(2, 21).cuda()
    want = model.generate(ids, max_new_tokens=30, do_sample=False)
    draft = aegis.decode.PromptLookup()
    assert torch.equal(aegis.generate(model, ids, max_new_tokens=30, draft=draft, paged=True), want)
    cache = aegis.PagedKVCache(model.config, 2, 96)
    with torch.no_grad():
        model(ids[:1], past_key_values=cache)
        assert cache.fork(0) == 1
        got = model(ids[1:, :1].expand(2, 1), past_key_values=cache).logits
    assert torch.equal(got[0], got[1])
    assert cache.table.stats()["copied"] == 1
