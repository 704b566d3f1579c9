"""A model is changed while somebody decodes with it, and changed back by the last who does."""

import threading

import aegis
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models  # noqa: E402

GREEDY = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


def state(model):
    return model.config._attn_implementation, {type(module) for module in model.modules()}, torch.is_grad_enabled()


def test_runners_may_leave_in_any_order():
    model, ids = tiny_models.make("llama"), tiny_models.prompts(1)
    before, want = state(model), model.generate(ids, **GREEDY)
    first, second = (aegis.CUDAGraphFastRunner(model, max_cache_len=64, clone=True) for _ in range(2))
    first.__enter__()
    second.__enter__()
    assert torch.equal(aegis.generate(model, ids, **GREEDY), want)
    first.__exit__()
    assert state(model) != before
    assert torch.equal(model.generate(ids, **GREEDY), want)
    got = [second.prefill(ids), *(second.step() for _ in range(15))]
    second.__exit__()
    assert torch.equal(torch.cat(got), want[0, 9:])
    assert state(model) == before


def test_threads_share_a_model():
    models, ids = [tiny_models.make("llama"), tiny_models.make("gpt2")], tiny_models.prompts(2)
    before, want = list(map(state, models)), [model.generate(ids, **GREEDY) for model in models]
    faults = []

    def decode(which):
        try:
            for _ in range(4):
                if not torch.equal(aegis.generate(models[which], ids, **GREEDY), want[which]):
                    faults.append("other tokens")
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=decode, args=(which,)) for which in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert list(map(state, models)) == before


def test_parts_of_a_model_get_their_own_attention_back():
    sizes = {**tiny_models.SIZES, "head_dim": 8, "sliding_window": 6}
    sizes["layer_types"] = ["sliding_attention", "full_attention"]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    config = transformers.Gemma3Config(
        text_config=sizes,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=95,
        boi_token_index=94,
        eoi_token_index=93,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    ids = tiny_models.prompts(1)
    assert torch.equal(aegis.generate(model, ids, **GREEDY), model.generate(ids, **GREEDY))
    config = model.config
    kinds = [part._attn_implementation for part in (config, config.text_config, config.vision_config)]
    assert kinds == ["sdpa", "eager", "sdpa"]
