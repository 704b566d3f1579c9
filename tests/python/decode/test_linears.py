"""Linear layers that change their class while a model decodes."""

import pytest
import torch
from aegis.decode.linears import SkinnyLinear, skinny_linears
from torch import nn
from torch.nn.utils import prune


class Own(nn.Linear):
    pass


def test_only_plain_layers_change_and_they_change_back():
    model = nn.ModuleDict({"plain": nn.Linear(4, 3), "own": Own(4, 3), "float64": nn.Linear(4, 3, dtype=torch.float64)})
    model["patched"] = nn.Linear(4, 3)
    model["patched"].forward = lambda x: x
    before = {name: type(module) for name, module in model.items()}
    state = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with skinny_linears(model) as count:
        assert count == 1
        assert type(model["plain"]) is SkinnyLinear
        assert {name: type(m) for name, m in model.items() if name != "plain"} == {
            name: kind for name, kind in before.items() if name != "plain"
        }
        assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == state
    assert {name: type(module) for name, module in model.items()} == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 8, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_results_are_those_of_linear(dtype, rows, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(70, 50, bias=bias, dtype=dtype), torch.randn(rows, 70, dtype=dtype)
    with torch.no_grad():
        want = layer(x)
        with skinny_linears(layer):
            got = layer(x)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_gradients_are_torchs():
    layer, x = nn.Linear(5, 4), torch.randn(2, 5, requires_grad=True)
    with skinny_linears(layer):
        layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, -1))


def test_class_is_restored_after_an_exception():
    layer = nn.Linear(2, 2)
    with pytest.raises(KeyError), skinny_linears(layer):
        raise KeyError
    assert type(layer) is nn.Linear


class Quantised(torch.Tensor):
    pass


def test_weights_that_are_no_plain_parameters_stay_torchs():
    subclass, pruned, pruned_bias = (nn.Linear(4, 3) for _ in range(3))
    subclass.weight = nn.Parameter(subclass.weight.detach().as_subclass(Quantised))
    prune.l1_unstructured(pruned, "weight", 0.5)
    prune.l1_unstructured(pruned_bias, "bias", 0.5)
    x = torch.randn(2, 4)
    for layer in (subclass, pruned, pruned_bias):
        with torch.no_grad():
            want = layer(x)
            with skinny_linears(layer) as count:
                assert count == 0
                assert torch.equal(layer(x), want)


def test_autocast_is_torchs():
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), skinny_linears(layer):
        assert layer(x).dtype == torch.bfloat16
