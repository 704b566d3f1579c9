"""aegis.quant.convert: which layers of a model it replaces, which it leaves, and that it does all or nothing."""

import pytest
import torch
from aegis.quant import SCHEMES, ConversionRefused, Scheme, convert, revert
from torch import nn


class Halved(nn.Module):
    """A layer whose weight is stored as bfloat16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.original = [linear]
        self.register_buffer("stored", linear.weight.detach().bfloat16())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.stored.float(), self.bias)


class HalvedScheme(Scheme):
    name = "halved"
    layer = Halved

    def refusal(self, linear, *, most=10.0):
        largest = linear.weight.abs().max().item()
        return f"weights up to {largest:g}" if largest > most else None

    def convert(self, linear, *, most=10.0):
        return Halved(linear)

    def dequantized(self, module):
        return module.stored

    def revert(self, module):
        same = torch.equal(module.stored.float(), module.original[0].weight)
        return module.original[0] if same else None


@pytest.fixture(autouse=True)
def halved_scheme(monkeypatch):
    monkeypatch.setitem(SCHEMES, "halved", HalvedScheme())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8, bias=False))
        self.again = self.mlp[2]
        self.parts = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.ModuleList([nn.Linear(8, 8)])})
        self.attention = nn.MultiheadAttention(8, 2)
        self.lm_head = nn.Linear(8, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.parts["b"][0](self.parts["a"](self.again(self.mlp[0](x)) + self.mlp(x))))


def names_of(model, kind=Halved):
    return [name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, kind)]


def kept(model):
    return {name: id(module) for name, module in model.named_modules(remove_duplicate=False)}


def test_convert_replaces_linears_wherever_they_stand():
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(3, 8)
    want = model(x)
    report = convert(model, "halved")
    assert names_of(model) == ["mlp.0", "mlp.2", "again", "parts.a", "parts.b.0"]
    assert model.again is model.mlp[2]
    assert not model.again.training
    torch.testing.assert_close(model(x), want, atol=0.05, rtol=0.05)
    assert [layer.name for layer in report.converted] == ["mlp.0", "mlp.2", "parts.a", "parts.b.0"]
    reasons = {layer.name: layer.reason for layer in report.layers if not layer.converted}
    assert reasons["lm_head"] == "skipped: lm_head"
    assert "NonDynamicallyQuantizableLinear" in reasons["attention.out_proj"]
    first = report.layers[0]
    assert (first.shape, first.dtype, first.bytes_before, first.bytes_after) == ((12, 8), torch.float32, 432, 240)
    assert 0 < first.relative_error < 2**-8
    assert report.bytes_after < report.bytes_before
    table = str(report).splitlines()
    assert len(table) == 2 + len(report.layers)
    assert "mlp.0" in table[1]
    assert table[1].endswith("converted")
    assert table[-1].startswith("4 of 6 layers to halved")


def test_convert_of_a_converted_model_changes_nothing():
    model = Block()
    convert(model, "halved")
    before = kept(model)
    assert not convert(model, "halved").converted
    assert kept(model) == before


@pytest.mark.parametrize(
    ("skip", "converted"),
    [
        ((), ["mlp.0", "mlp.2", "again", "parts.a", "parts.b.0", "lm_head"]),
        (["mlp"], ["parts.a", "parts.b.0", "lm_head"]),
        (("again", "parts.b"), ["mlp.0", "parts.a", "lm_head"]),
        (("0",), ["mlp.2", "again", "parts.a", "lm_head"]),
    ],
)
def test_convert_skips_names_at_any_depth(skip, converted):
    model = Block()
    convert(model, "halved", skip=skip)
    assert names_of(model) == converted


def test_convert_leaves_layers_that_are_more_than_their_weight():
    def other_forward(x):
        return x

    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("plain", "replaced", "hook", "tied", "meta", "normed")})
    model["replaced"].forward = other_forward
    model["hook"].register_forward_hook(lambda *_: None)
    model["embedding"] = nn.Embedding(4, 4)
    model["tied"].weight = model["embedding"].weight
    model["meta"].to("meta")
    nn.utils.parametrizations.weight_norm(model["normed"])
    report = convert(model, "halved")
    assert {layer.name: layer.reason for layer in report.layers} == {
        "plain": "",
        "replaced": "has a forward of its own",
        "hook": "has hooks",
        "tied": "its weight is that of embedding too",
        "meta": "its weight is on the meta device",
        "normed": "is a ParametrizedLinear, which may do something else than nn.Linear",
    }
    assert names_of(model) == ["plain"]


def test_convert_refuses_all_or_nothing():
    model = Block()
    with torch.no_grad():
        model.parts["a"].weight[0, 0] = 50
        model.parts["b"][0].weight[0, 0] = 30
    before = kept(model)
    with pytest.raises(ConversionRefused, match=r"2 of 6 are refused(.|\n)*parts\.a: weights up to 50") as refused:
        convert(model, "halved")
    assert kept(model) == before
    assert [layer.name for layer in refused.value.report.layers if "weights" in layer.reason] == [
        "parts.a",
        "parts.b.0",
    ]
    convert(model, "halved", most=60)
    assert len(names_of(model)) == 5


@pytest.mark.parametrize(
    ("model", "scheme", "options", "error", "message"),
    [
        (nn.Linear(2, 2), "halved", {}, ValueError, "model: .*itself a linear layer"),
        ("model", "halved", {}, ValueError, "model: expected an nn.Module, got str"),
        (nn.Sequential(), "quartered", {}, ValueError, "scheme: expected one of .*'halved'.*, got 'quartered'"),
        (nn.Sequential(), "halved", {"skip": "mlp"}, ValueError, "skip: expected a sequence of names, got 'mlp'"),
        (nn.Sequential(), "halved", {"skip": None}, ValueError, "skip: expected a sequence of names, got None"),
        (nn.Sequential(), "halved", {"skip": [1]}, ValueError, r"skip: expected a sequence of names, got \[1\]"),
        (nn.Sequential(), "halved", {"skip": ["m"]}, ValueError, "skip: expected names of modules .*, got 'm'"),
        (nn.Sequential(nn.Linear(2, 2)), "halved", {"sort": 1}, TypeError, "sort"),
    ],
)
def test_convert_bad_input(model, scheme, options, error, message):
    with pytest.raises(error, match=message):
        convert(model, scheme, **options)


def test_revert_gives_the_layers_back_or_changes_nothing():
    model = Block().bfloat16().float()
    originals = kept(model)
    convert(model, "halved")
    assert revert(model) == 4
    assert kept(model) == originals
    assert revert(model) == 0

    with torch.no_grad():
        model.mlp[0].weight[0, 0] = 0.1
    convert(model, "halved")
    converted = kept(model)
    with pytest.raises(ValueError, match=r"converted without loss, but 1 were not, and nothing was changed: mlp\.0"):
        revert(model)
    assert kept(model) == converted
    with pytest.raises(ValueError, match="itself halved"):
        revert(model.mlp[0])
    with pytest.raises(ValueError, match=r"model: expected an nn\.Module, got NoneType"):
        revert(None)


def test_quant_is_there_after_import_aegis():
    import aegis

    assert aegis.quant.convert is convert
