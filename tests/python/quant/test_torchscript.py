"""Layers of few bits and of few rows as TorchScript: the same results, also after saving and loading."""

import io

import aegis
import pytest
import torch
from aegis.decode.linears import SkinnyLinear, skinny_linears
from aegis.quant import Float8Linear, TernaryLinear
from torch import nn


def skinny(linear):
    linear.__class__ = SkinnyLinear
    return linear


LAYERS = {
    "ternary": TernaryLinear.from_linear,
    "ternary, one scale": lambda linear: TernaryLinear.from_linear(linear, per_tensor=True),
    "ternary, exact": lambda linear: TernaryLinear.from_linear(linear, precision="exact"),
    "ternary, training": lambda linear: TernaryLinear.from_linear(linear, train=True),
    "float8": Float8Linear.from_linear,
    "float8, blocks": lambda linear: Float8Linear.from_linear(linear, block=128),
    "skinny": skinny,
}


def saved_and_loaded(scripted):
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, bias):
    torch.manual_seed(0)
    layer = LAYERS[name](nn.Linear(150, 33, bias))
    scripted = torch.jit.script(layer)
    loaded = saved_and_loaded(scripted)
    for rows in (0, 1, 3, 20):
        x = torch.randn(rows, 150)
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                want = layer(x)
                assert torch.equal(scripted(x), want)
                assert torch.equal(loaded(x), want)
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == {
        key: value.dtype for key, value in layer.state_dict().items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["ternary", "ternary, exact", "float8", "skinny"])
def test_other_dtypes(name, dtype):
    layer = LAYERS[name](nn.Linear(40, 9).to(dtype))
    loaded = saved_and_loaded(torch.jit.script(layer))
    x = torch.randn(2, 5, 40).to(dtype)
    with torch.no_grad():
        assert torch.equal(loaded(x), layer(x))


@pytest.mark.parametrize("scheme", ["ternary", "float8"])
def test_converted_model(scheme):
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64, bias=False))
    aegis.quant.convert(model, scheme, **({"force": True} if scheme == "ternary" else {}))
    loaded = saved_and_loaded(torch.jit.script(model))
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_model_with_skinny_linears():
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64, bias=False))
    with skinny_linears(model) as count:
        scripted = torch.jit.script(model)
        assert count == 2
        with torch.no_grad():
            x = torch.randn(1, 64)
            assert torch.equal(scripted(x), model(x))
    assert "skinny_linear" in str(scripted.inlined_graph)


def test_bad_input_is_refused_as_by_the_layer():
    layer = TernaryLinear(40, 3)
    loaded = saved_and_loaded(torch.jit.script(layer))
    with pytest.raises(ValueError, match=r"x: expected a last dimension of 40, got shape \[2, 41\]"):
        layer(torch.randn(2, 41))
    with pytest.raises(Exception, match=r"x: expected a last dimension of 40, got shape \[2, 41\]"):
        loaded(torch.randn(2, 41))


@pytest.mark.parametrize("make", [TernaryLinear.from_linear, Float8Linear.from_linear])
def test_gradient_is_refused(make):
    scripted = torch.jit.script(make(nn.Linear(40, 3)))
    with pytest.raises(RuntimeError, match="expected no gradient to be asked for"):
        scripted(torch.randn(2, 40, requires_grad=True)).sum().backward()
