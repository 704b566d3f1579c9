"""What a captured or compiled step rests on."""

import pytest
import tiny_models
import torch
from aegis.decode.graph import compiled, fingerprint


def _weight(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def _module(model):
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def _hook(model):
    model.model.layers[1].register_forward_pre_hook(lambda module, arguments: None)


def _switch(model):
    model.model.layers[0].merged = True


def _names(model):
    model.model.layers[0].adapters.append("second")


def _attention(model):
    model.config._attn_implementation = "eager"


@pytest.mark.parametrize("change", [_weight, _module, _hook, _switch, _names, _attention, torch.nn.Module.train])
def test_fingerprint_tells_of_a_change(change):
    model = tiny_models.make("llama")
    model.model.layers[0].adapters = ["first"]
    before = fingerprint(model)
    assert fingerprint(model) == before
    change(model)
    assert fingerprint(model) != before


def test_fingerprint_does_not_mind_what_a_pass_changes():
    model, ids = tiny_models.make("llama"), tiny_models.prompts(1)
    before = fingerprint(model)
    model.model.layers[0].calls = 1
    with torch.no_grad():
        model(ids)
        model.model.layers[0].calls += 1
        model.lm_head.weight += 1
    assert fingerprint(model) == before


def test_the_model_is_left_to_the_caller_and_nothing_else():
    class Step:
        def __init__(self):
            self.model = torch.nn.Linear(2, 2)
            self.factor = 1

        def __call__(self, x):
            return self.model(x) * self.factor

    step, x = Step(), torch.ones(1, 2)
    run = compiled(lambda x: step(x))
    with torch.no_grad():
        first = run(x)
        step.factor = 3
        torch.testing.assert_close(run(x), 3 * first)
        torch.testing.assert_close(run(x.double().float()[:, :2].repeat(2, 1)), (3 * first).repeat(2, 1))
        step.model.training = False  # looked at no more
        compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        run(x)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations
