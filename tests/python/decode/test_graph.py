"""What a captured or compiled step rests on."""

import types

import pytest
import tiny_models
import torch
from aegis.decode import graph
from aegis.decode.graph import ModelWatch, compiled, fingerprint


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


def _scale(model):
    model.model.layers[0].scaling["first"] = 3.0


def _fraction(model):
    model.model.layers[0].self_attn.scaling *= 2


def _forward(model):
    norm = model.model.norm
    norm.forward = types.MethodType(lambda self, states: states, norm)


def _kind(model):
    model.model.norm.__class__ = type("Norm", (type(model.model.norm),), {})


def _layout(model):
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.t()


def _buffer(model):
    model.model.layers[0].table = torch.ones(3, 1)


def _other_hook(model):
    layer = model.model.layers[0]
    layer._forward_hooks.clear()
    layer.register_forward_hook(lambda module, arguments, output: None)


def _window(model):
    model.config.sliding_window = 7


def _attention(model):
    model.config._attn_implementation = "eager"


@pytest.mark.parametrize(
    "change",
    [
        _weight,
        _layout,
        _buffer,
        _module,
        _kind,
        _forward,
        _hook,
        _other_hook,
        _switch,
        _names,
        _scale,
        _fraction,
        _attention,
        _window,
        torch.nn.Module.train,
    ],
)
def test_fingerprint_tells_of_a_change(change):
    model = tiny_models.make("llama")
    layer = model.model.layers[0]
    layer.adapters, layer.scaling = ["first"], {"first": 2.0}
    layer.register_buffer("table", torch.ones(3))
    layer.register_forward_hook(lambda module, arguments, output: output)
    before = fingerprint(model)
    assert fingerprint(model) == before
    change(model)
    assert fingerprint(model) != before


def test_fingerprint_does_not_mind_what_a_pass_changes():
    model, ids = tiny_models.make("llama"), tiny_models.prompts(1)
    layer = model.model.layers[0]
    layer.calls = 1
    layer.register_buffer("passing", torch.ones(3), persistent=False)
    before = fingerprint(model)
    with torch.no_grad():
        model(ids)
        layer.calls += 1
        layer.passing = torch.zeros(3)
        model.lm_head.weight += 1
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_k", (2, 4)),
        ("ranks", ({"first": 8}, {"first": 16})),
        ("skipped", ([1, 0.5], [2, 0.5])),
        ("top_k", (2, 2.0)),
    ],
    ids=str,
)
def test_numbers_of_modules_are_watched_until_a_pass_changes_them(name, values):
    model = tiny_models.make("llama", num_hidden_layers=1)
    norm = model.model.norm
    setattr(norm, name, values[0])
    watch = ModelWatch(model)
    watch.note()
    assert not watch.changed()
    norm.calls = 3  # a number more
    assert watch.changed()
    watch.note()
    setattr(norm, name, values[1])
    assert watch.changed()
    setattr(norm, name, values[0])
    assert not watch.changed()
    with watch.passing():
        norm.calls += 1
    assert not watch.changed()
    norm.calls += 1
    assert not watch.changed()
    setattr(norm, name, values[1])
    assert watch.changed()


def test_a_list_of_numbers_is_watched_where_it_is_changed_in_place():
    model = tiny_models.make("llama", num_hidden_layers=1)
    model.model.norm.skipped = [1, 2]
    watch = ModelWatch(model)
    watch.note()
    model.model.norm.skipped.append(3)
    assert watch.changed()


def test_a_model_that_gets_an_attribute_meanwhile_is_looked_at_all_the_same():
    """As from another thread, whose kept runners are one."""
    model = tiny_models.make("llama", num_hidden_layers=1)

    class Asked:
        @property
        def __class__(self):
            setattr(model, f"asked{len(vars(model))}", None)
            return object

    model.asked = Asked()
    watch = ModelWatch(model)
    watch.note()
    assert watch.changed()


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


def test_models_are_told_apart_where_torch_keeps_all_in_one_place(monkeypatch):
    """As releases without isolate_recompiles do."""
    compile = torch.compile
    monkeypatch.setattr(graph, "_OWN_CACHE", {})
    monkeypatch.setattr(  # without C++ to compile
        torch,
        "compile",
        lambda step, *, options, **rest: compile(
            step, backend="eager", options={k: v for k, v in options.items() if k == "guard_filter_fn"} or None, **rest
        ),
    )

    class Step:
        def __init__(self, model):
            self.model = model
            self.run = compiled(lambda x: self.model(x))

    x = torch.tensor([[-1.0, 2.0]])
    for model in (torch.nn.ReLU(), torch.nn.Sigmoid()):
        assert torch.equal(Step(model).run(x), model(x))
    model.register_forward_hook(lambda module, arguments, result: -result)  # which torch has no question about
    assert torch.equal(Step(model).run(x), model(x))
