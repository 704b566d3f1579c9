"""What aegis.generate(mode="compiled") leaves to the next call."""

import copy
import gc
import io
import pickle
import threading
import weakref

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import compiled_pass, kept_runners
from aegis.decode import runner as runner_module
from aegis.decode.kept_runners import length_to_keep

OPTIONS = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


@pytest.fixture
def llama():
    return tiny_models.make("llama")


@pytest.fixture
def compilations(monkeypatch):
    """What was handed to torch.compile, which is left out: how a step is compiled is tested elsewhere."""
    steps = []

    def noted(step):
        steps.append(step)
        return step

    for module in (runner_module, compiled_pass):
        monkeypatch.setattr(module, "compiled", noted)
    return steps


def compiled(model, ids, **options):
    return aegis.generate(model, ids, mode="compiled", **{**OPTIONS, **options})


def newest(model):
    """The runner of the last call."""
    return vars(model)[kept_runners._NAME].runners[-1][1]


@pytest.mark.parametrize("paged", [False, True])
def test_calls_alike_compile_once(llama, compilations, paged):
    for seed, new in ((1, 12), (2, 5), (3, 40)):
        ids = tiny_models.prompts(2, seed=seed)
        want = llama.generate(ids, **{**OPTIONS, "max_new_tokens": new})
        assert torch.equal(compiled(llama, ids, max_new_tokens=new, paged=paged), want)
    assert len(compilations) == 1


def test_through_model_generate(llama, compilations):
    ids = tiny_models.prompts(2)
    for _ in range(2):
        assert torch.equal(
            llama.generate(ids, custom_generate=aegis.generate, mode="compiled", **OPTIONS),
            llama.generate(ids, **OPTIONS),
        )
    assert len(compilations) == 1


def test_a_seed_gives_the_same_text(llama, compilations):
    ids = tiny_models.prompts(2)
    sampled = {"do_sample": True, "seed": 7, "top_k": 20}
    first = compiled(llama, ids, **sampled)
    compiled(llama, ids, repetition_penalty=1.3)
    assert torch.equal(compiled(llama, ids, **sampled), first)
    assert torch.equal(aegis.generate(llama, ids, **{**OPTIONS, **sampled}), first)
    assert len(compilations) == 1


@pytest.mark.parametrize("draft", ["model", "lookup", "layers"])
def test_drafts_are_kept_too(llama, compilations, draft):
    small = tiny_models.make("llama")
    asked = {
        "model": {"draft": small},
        "lookup": {"prompt_lookup_num_tokens": 3},
        "layers": {"assistant_early_exit": 1},
    }[draft]
    compiled(llama, tiny_models.prompts(1), **asked)
    assert compilations
    runner = newest(llama)
    for seed in (1, 2):
        ids = tiny_models.prompts(1, seed=seed)
        assert torch.equal(compiled(llama, ids, **asked), llama.generate(ids, **OPTIONS))
        assert newest(llama) is runner
    small.to(torch.bfloat16)
    compiled(llama, tiny_models.prompts(1), **asked)
    assert (newest(llama) is runner) == (draft != "model")


def test_what_is_not_alike_compiles_again(llama, compilations):
    ids = tiny_models.prompts(2)
    compiled(llama, ids)
    compiled(llama, ids[:1])
    assert len(compilations) == 2
    compiled(llama, ids)  # two are kept
    compiled(llama, ids[:1])
    assert len(compilations) == 2
    compiled(llama, ids, max_new_tokens=300)  # longer than what was kept
    assert len(compilations) == 3
    compiled(llama, ids)
    assert len(compilations) == 3
    llama.to(torch.bfloat16)
    compiled(llama, ids)
    assert len(compilations) == 4


def test_a_changed_model_gives_its_own_tokens(llama, compilations):
    ids = tiny_models.prompts(2)
    compiled(llama, ids)
    llama.lm_head.weight = torch.nn.Parameter(-llama.lm_head.weight.detach())
    assert torch.equal(compiled(llama, ids), llama.generate(ids, **OPTIONS))
    assert len(compilations) == 2


def test_what_failed_is_not_kept(llama, compilations):
    def fail(tokens):
        raise KeyError("a callback's")

    ids = tiny_models.prompts(2)
    with pytest.raises(KeyError):
        compiled(llama, ids, max_new_tokens=5, callback=fail)
    assert torch.equal(compiled(llama, ids), llama.generate(ids, **OPTIONS))


def test_caches_and_runners_of_the_callers_are_not_kept(llama, compilations):
    ids = tiny_models.prompts(2)
    with aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=64) as runner:
        pass
    compiled(llama, ids, runner=runner)
    compiled(llama, ids, past_key_values=aegis.SlottedStaticCache(llama.config, 2, 64))
    aegis.generate(llama, ids, **OPTIONS)
    assert kept_runners._NAME not in vars(llama)


def test_copies_and_pickles_have_none(llama, compilations):
    ids = tiny_models.prompts(2)
    want = compiled(llama, ids)
    saved = io.BytesIO()
    torch.save(llama, saved)
    assert b"aegis.decode" not in saved.getvalue()
    saved.seek(0)
    twins = [copy.deepcopy(llama), copy.copy(llama), pickle.loads(pickle.dumps(llama))]
    for twin in [*twins, torch.load(saved, weights_only=False)]:
        before = len(compilations)
        assert torch.equal(compiled(twin, ids), want)
        assert torch.equal(compiled(twin, ids), want)
        assert len(compilations) == before + 1
    compiled(llama, ids)
    assert len(compilations) in (5, 6)  # the shallow copy shares what is kept


def test_a_model_is_freed_with_its_runners(llama, compilations):
    compiled(llama, tiny_models.prompts(1))
    model = tiny_models.make("llama")
    compiled(model, tiny_models.prompts(1))
    gone = weakref.ref(model)
    del model
    compilations.clear()
    gc.collect()
    assert gone() is None


def test_threads_do_not_share_a_runner(llama, compilations):
    """One begins while the other is amid its text."""
    ids = tiny_models.prompts(2)
    want = llama.generate(ids, **OPTIONS)
    compiled(llama, ids)
    inside, results = threading.Event(), []

    def wait(tokens):
        inside.set()
        other.join(60)

    other = threading.Thread(target=lambda: inside.wait(60) and results.append(compiled(llama, ids)))
    other.start()
    results.append(compiled(llama, ids, callback=wait))
    other.join(60)
    assert len(results) == 2
    assert all(torch.equal(result, want) for result in results)
    assert len(compilations) == 2


def test_lengths_leave_room_for_longer_texts():
    llama, gpt2 = tiny_models.make("llama", max_position_embeddings=2000), tiny_models.make("gpt2")
    assert [length_to_keep(llama, length) for length in (1, 256, 257, 1024, 1025, 3000)] == [
        256, 256, 512, 1024, 2000, 3000,
    ]  # fmt: skip
    assert length_to_keep(gpt2, 100) == 256
    with pytest.raises(ValueError, match="expected at most 256, the positions that"):
        compiled(gpt2, tiny_models.prompts(1), max_new_tokens=300)
