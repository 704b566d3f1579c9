"""CUDAGraphFastRunner on a CPU: the contract of a step, eager and compiled."""

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


def reference(model, ids, count):
    return model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0)[:, ids.shape[1] :].T


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_steps_are_those_of_model_generate(llama, mode):
    ids = tiny_models.prompts(2)
    with aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=32, mode=mode, clone=True) as runner:
        assert runner.mode == mode
        got = [runner.prefill(ids), *(runner.step() for _ in range(9))]
    assert torch.equal(torch.stack(got), reference(llama, ids, 10))


def test_auto_is_eager_on_a_cpu_and_says_so(llama):
    assert aegis.CUDAGraphFastRunner(llama, max_cache_len=8).mode == "eager"


def test_compiled_step_reads_positions_from_memory_case10(llama):
    """What was compiled at one position serves at others: neither rotary positions nor cache slots are frozen."""
    runner = aegis.CUDAGraphFastRunner(llama, batch_size=1, max_cache_len=64, mode="compiled", clone=True)
    for length in (9, 3, 20):
        ids = tiny_models.prompts(1, length)
        with runner:
            got = [runner.prefill(ids), *(runner.step() for _ in range(5))]
        assert torch.equal(torch.stack(got), reference(llama, ids, 6))
        runner.reset()


def test_result_is_static_memory_unless_cloned(llama):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=32) as runner:
        first = runner.prefill(tiny_models.prompts(1))
        assert runner.step().data_ptr() == first.data_ptr()
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=32, clone=True) as runner:
        first = runner.prefill(tiny_models.prompts(1))
        assert runner.step().data_ptr() != first.data_ptr()


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_tokens_can_be_given(llama, mode):
    ids, extra = tiny_models.prompts(1), tiny_models.prompts(1, 2, seed=3)
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=32, mode=mode, clone=True) as runner:
        runner.prefill(ids)
        runner.step(extra[:, 0])
        got = runner.step(extra[:, 1:])
    assert torch.equal(got, reference(llama, torch.cat([ids, extra], 1), 1)[0])


@pytest.mark.parametrize(
    "tokens",
    [torch.ones(2, dtype=torch.int64), torch.ones(1, dtype=torch.int32), torch.ones(1, 1, 1, dtype=torch.int64)],
)
def test_tokens_of_another_shape_or_dtype_are_refused(llama, tokens):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=32) as runner:
        runner.prefill(tiny_models.prompts(1))
        with pytest.raises(ValueError, match=r"tokens: expected torch.int64 of shape \(1,\) or \(1, 1\) on cpu"):
            runner.step(tokens)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_full_cache_is_an_error_and_stays_as_it_is_case8(llama, mode):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=10, mode=mode) as runner:
        with pytest.raises(
            ValueError, match="input_ids: expected room for 11 more tokens, but the cache holds 0 of at"
        ):
            runner.prefill(tiny_models.prompts(1, 11))
        assert runner.cache.get_seq_length() == 0
        runner.prefill(tiny_models.prompts(1, 9))
        runner.step()
        before = [layer.keys.clone() for layer in runner.cache.layers]
        with pytest.raises(ValueError, match=r"expected at most 10 tokens, .* got 10 \+ 1 = 11"):
            runner.step()
        assert runner.cache.get_seq_length() == 10
        assert all(torch.equal(layer.keys, keys) for layer, keys in zip(runner.cache.layers, before, strict=True))


def test_a_changed_model_is_captured_anew_or_refused():
    model, ids = tiny_models.make("llama"), tiny_models.prompts(1)
    runners = [
        aegis.CUDAGraphFastRunner(model, max_cache_len=32, mode="compiled", on_change=change, clone=True)
        for change in ("recapture", "raise")
    ]
    for runner in runners:
        with runner:
            runner.prefill(ids)
            runner.step()
        runner.reset()
    before = reference(model, ids, 2)
    model.lm_head.register_forward_hook(lambda module, arguments, logits: -logits)
    with runners[0] as runner:
        got = [runner.prefill(ids), runner.step()]
    assert torch.equal(torch.stack(got), reference(model, ids, 2))
    assert not torch.equal(torch.stack(got), before)
    with runners[1] as runner, pytest.raises(ValueError, match="model: expected the parameters and modules that were"):
        runner.prefill(ids)


def test_rows(llama):
    with aegis.CUDAGraphFastRunner(llama, batch_size=3, max_cache_len=32) as runner:  # fewer rows than that are fine
        got = [runner.prefill(tiny_models.prompts(2)).clone(), runner.step().clone()]
        assert torch.equal(torch.stack(got), reference(llama, tiny_models.prompts(2), 2))
        runner.reset()
        with pytest.raises(ValueError, match="input_ids: expected 1 to 3 rows, got 4"):
            runner.prefill(tiny_models.prompts(4))
    compiled = aegis.CUDAGraphFastRunner(llama, batch_size=3, max_cache_len=32, mode="compiled")
    with compiled, pytest.raises(ValueError, match="input_ids: expected 3 rows, got 2"):
        compiled.prefill(tiny_models.prompts(2))


def test_bad_use(llama):
    runner = aegis.CUDAGraphFastRunner(llama, max_cache_len=32)
    with pytest.raises(RuntimeError, match="expected to be used inside `with runner:`"):
        runner.prefill(tiny_models.prompts(1))
    with runner:
        with pytest.raises(RuntimeError, match="expected to be entered once at a time"):
            runner.__enter__()
        with pytest.raises(RuntimeError, match="step: expected prefill"):
            runner.step()
        with pytest.raises(ValueError, match="input_ids: expected int64 of 2 dimensions"):
            runner.prefill(tiny_models.prompts(1)[0])
        with pytest.raises(ValueError, match="input_ids: expected at least 1 token"):
            runner.prefill(tiny_models.prompts(1)[:, :0])
        with pytest.raises(ValueError, match=r"attention_mask: expected shape \(1, 9\)"):
            runner.prefill(tiny_models.prompts(1), torch.ones(1, 8))
        with pytest.raises(ValueError, match="chunk: expected at least 1, got 0"):
            runner.prefill(tiny_models.prompts(1), chunk=0)
    with pytest.raises(ValueError, match="on_change: expected 'recapture' or 'raise', got 'ignore'"):
        aegis.CUDAGraphFastRunner(llama, max_cache_len=32, on_change="ignore")


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_step_that_failed_can_be_tried_again(mode, monkeypatch):
    model, ids = tiny_models.make("llama"), tiny_models.prompts(2)
    want = reference(model, ids, 6)

    def interrupt(*_):
        raise KeyboardInterrupt

    with aegis.CUDAGraphFastRunner(model, batch_size=2, max_cache_len=32, mode=mode, clone=True) as runner:
        got = [runner.prefill(ids), runner.step()]
        with monkeypatch.context() as patch:
            if mode == "eager":
                patch.setattr(model.model.layers[0].mlp, "forward", interrupt)
            else:  # after the pass, before the host counts it
                step = runner._captured
                patch.setattr(runner, "_captured", lambda: interrupt(step()))
            with pytest.raises(KeyboardInterrupt):
                runner.step()
        assert runner.cache.get_seq_length() == 10
        got += [runner.step() for _ in range(4)]
    assert torch.equal(torch.stack(got), want)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("where", ["hook", "processor", "strict"])
def test_a_step_that_failed_behind_the_last_layer_can_be_tried_again(monkeypatch, family, mode, where):
    """The cache holds the token already, of layers whose windows have wrapped; what was fed is fed again, once."""
    monkeypatch.setattr("aegis.decode.runner.compiled", lambda step: step)
    model, ids = tiny_models.make(family), tiny_models.prompts(2)
    want = reference(model, ids, 12)
    fails = []

    def spoils(*arguments):
        if fails and where == "strict":
            return torch.full_like(arguments[-1], torch.nan)
        if fails:
            raise KeyboardInterrupt
        return arguments[-1]

    sampler = aegis.FusedLogitsSampler(do_sample=False, strict=where == "strict")
    if where == "processor":
        sampler = sampler.after([spoils])
    else:
        model.lm_head.register_forward_hook(spoils)
    options = {"batch_size": 2, "max_cache_len": 32, "mode": mode, "clone": True, "sampler": sampler}
    with aegis.CUDAGraphFastRunner(model, **options) as runner:
        got = [runner.prefill(ids), *(runner.step(history=ids) for _ in range(3))]
        fails.append(True)
        for _ in range(2):
            with pytest.raises(ValueError if where == "strict" else KeyboardInterrupt):
                runner.step(history=ids)
        assert runner.cache.get_seq_length() == 12
        fails.clear()
        got += [runner.step(history=ids) for _ in range(8)]
    assert torch.equal(torch.stack(got), want)


@pytest.mark.parametrize("counts", [False, True])
def test_a_number_that_a_module_keeps_is_captured_anew_unless_it_counts(monkeypatch, counts):
    captures = []
    monkeypatch.setattr("aegis.decode.runner.compiled", lambda step: captures.append(step) or step)
    model, ids = tiny_models.make("llama"), tiny_models.prompts(1)
    layer = model.model.layers[0]
    layer.prompts = layer.steps = layer.number = 0

    def count(module, arguments, options):
        if options["position_ids"].shape[1] > 1:
            module.prompts += 1
        else:
            module.steps += 1

    if counts:
        layer.register_forward_pre_hook(count, with_kwargs=True)
    with aegis.CUDAGraphFastRunner(model, max_cache_len=32, mode="compiled") as runner:
        for number in (0, 0, 1, 1, 0):
            layer.number = number
            runner.prefill(ids)
            runner.step()
            runner.step()
            runner.reset()
    assert len(captures) == 3


@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("told", [None, 3])
def test_penalties_count_from_behind_each_texts_own_prompt(llama, speculates, processed, told):
    """A sampler that finds out by itself where a prompt ends does so for each text; one that was told keeps to it."""

    def text(runner, ids):
        runner.reset()
        tokens = [runner.prefill(ids)]
        if speculates:
            while runner.lengths[0] < 34:
                runner.step()
            return runner.text(0)[ids.shape[1] : 34].tolist()
        history = torch.cat([ids, tokens[0][None]], 1)
        while history.shape[1] < 34:
            history = torch.cat([history, runner.step(history=history)[None]], 1)
        return history[0, ids.shape[1] :].tolist()

    def make():
        sampler = aegis.FusedLogitsSampler(do_sample=False, presence_penalty=4.0, frequency_penalty=2.0)
        sampler.prompt_length = told
        sampler = sampler.after([]) if processed else sampler
        if speculates:
            return aegis.SpeculativeFastRunner(llama, None, 2, max_cache_len=40, sampler=sampler)
        return aegis.CUDAGraphFastRunner(llama, max_cache_len=40, sampler=sampler, clone=True)

    prompts = [tiny_models.prompts(1, length) for length in (4, 20, 9)]
    with make() as runner:
        got = [text(runner, ids) for ids in prompts]
    for ids, mine in zip(prompts, got, strict=True):
        with make() as runner:
            assert text(runner, ids) == mine


def test_tokens_can_be_taken_back_between_steps(llama):
    ids, mask = tiny_models.prompts(2), tiny_models.padding(2)
    with aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=32, clone=True) as runner:
        got = [runner.prefill(ids, mask), *(runner.step() for _ in range(5))]
        runner.cache.crop(-3)
        again = [runner.step(got[2]), *(runner.step() for _ in range(2))]
    assert torch.equal(torch.stack(again), torch.stack(got[3:]))


def test_more_of_a_padded_prompt_needs_its_mask(llama):
    ids, mask, more = tiny_models.prompts(2), tiny_models.padding(2), tiny_models.prompts(2, 3, seed=4)
    with aegis.CUDAGraphFastRunner(llama, batch_size=2, max_cache_len=32, clone=True) as runner:
        runner.prefill(ids, mask)
        with pytest.raises(ValueError, match="attention_mask: expected one, since rows in the cache are padded"):
            runner.prefill(more)
        got = runner.prefill(more, torch.cat([mask, torch.ones_like(more)], 1))
    whole, mask = torch.cat([ids, more], 1), torch.cat([mask, torch.ones_like(more)], 1)
    want = llama.generate(whole, attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0)
    assert torch.equal(got, want[:, -1])


def test_memory_made_in_inference_mode_serves_outside_of_it(llama):
    ids = tiny_models.prompts(1)
    with torch.inference_mode():
        runner = aegis.CUDAGraphFastRunner(llama, max_cache_len=32, clone=True)
        with runner:
            first = runner.prefill(ids).tolist()
    runner.reset()
    with runner:
        assert runner.prefill(ids).tolist() == first


def test_gradients_are_off_for_steps_alone(llama):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=32) as runner:
        runner.prefill(tiny_models.prompts(1))
        runner.step()
        assert not runner.logits.requires_grad
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_cache_len": 0}, ValueError, "max_cache_len: expected at least 1, got 0"),
        ({"max_cache_len": "9"}, TypeError, "max_cache_len: expected an int, got '9'"),
        ({"max_cache_len": 9.0}, TypeError, "max_cache_len: expected an int, got 9.0"),
        ({"batch_size": True}, TypeError, "batch_size: expected an int, got True"),
        ({"sampler": 3}, ValueError, "sampler: expected a FusedLogitsSampler, .*, got 3"),
        ({"cache": {}}, ValueError, "cache: expected a SlottedStaticCache, got dict"),
    ],
    ids=str,
)
def test_bad_arguments(llama, options, error, message):
    with pytest.raises(error, match=message):
        aegis.CUDAGraphFastRunner(llama, **options)


def test_objects_of_aegis_allocate_nothing_for_a_token(llama):
    with aegis.CUDAGraphFastRunner(llama, max_cache_len=64) as runner:
        runner.prefill(tiny_models.prompts(1))
        runner.step()
        addresses = [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
        addresses += [runner.cache.lengths.data_ptr(), runner.sampler.state.data_ptr()]
        with torch.profiler.profile(profile_memory=True) as profile:
            for _ in range(8):
                runner.step()
        calls = {event.key: event for event in profile.key_averages()}
        for operator, count in (("aegis::kv_append_", 8 * len(runner.cache.layers)), ("aegis::sample", 8)):
            assert calls[operator].count == count
            assert calls[operator].cpu_memory_usage == 0
        after = [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
        assert addresses == [*after, runner.cache.lengths.data_ptr(), runner.sampler.state.data_ptr()]
