"""A captured step on a GPU: replays follow the position, draw anew, and give the tokens of model.generate."""

import aegis
import pytest
import torch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models  # noqa: E402


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama").cuda()


def test_replayed_steps_are_those_of_model_generate_case10(llama):
    runner = aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=64, clone=True)
    assert runner.mode == "cuda-graph"
    for length in (9, 4, 20):
        ids = tiny_models.prompts(2, length).cuda()
        want = llama.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[:, length:].T
        with runner:
            got = [runner.prefill(ids), *(runner.step() for _ in range(11))]
        assert torch.equal(torch.stack(got), want)
        assert runner.cache.get_seq_length() == length + 11
        runner.reset()


def test_left_padding(llama):
    ids, mask = tiny_models.prompts(4).cuda(), tiny_models.padding(4).cuda()
    options = {"attention_mask": mask, "max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(aegis.generate(llama, ids, **options), llama.generate(ids, **options))


def test_replays_draw_anew_and_reproduce_case12(llama):
    ids, options = tiny_models.prompts(1).cuda(), {"max_new_tokens": 24, "pad_token_id": 0, "temperature": 5.0}
    first = aegis.generate(llama, ids, seed=3, **options)
    assert torch.equal(aegis.generate(llama, ids, seed=3, **options), first)
    assert torch.equal(aegis.generate(llama, ids, seed=3, mode="eager", **options), first)
    assert len(set(first[0, 9:].tolist())) > 12


def test_memory_of_a_captured_runner_stays(llama):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=64) as runner:
        runner.prefill(tiny_models.prompts(1).cuda())
        runner.step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(20):
            runner.step()
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_full_cache_is_an_error_before_a_replay_case8(llama):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=10) as runner:
        runner.prefill(tiny_models.prompts(1).cuda())
        runner.step()
        with pytest.raises(ValueError, match=r"expected at most 10 tokens, .* got 10 \+ 1 = 11"):
            runner.step()
        assert runner.cache.lengths.tolist() == [10]


def test_prompt_on_another_device_is_refused(llama):
    with (
        aegis.CUDAGraphFastRunner(llama, max_cache_len=32) as runner,
        pytest.raises(ValueError, match="input_ids: expected int64 of 2 dimensions on cuda"),
    ):
        runner.prefill(tiny_models.prompts(1))
