"""aegis.quant.TernaryLinear: what it computes, keeps, refuses and becomes."""

import copy
import io
import pickle

import aegis
import pytest
import torch
from aegis.quant import ConversionRefused, TernaryLinear, convert, freeze, revert
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


def ternary(out_features=12, in_features=40, bias=True, dtype=torch.float32, seed=0):
    """An nn.Linear whose weights are ternary, with one scale for each row."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(in_features, out_features, bias)
    with torch.no_grad():
        trits = torch.randint(-1, 2, (out_features, in_features), generator=generator)
        linear.weight.copy_(trits * torch.rand(out_features, 1, generator=generator))
        if bias:
            linear.bias.copy_(torch.randn(out_features, generator=generator))
    return linear.to(dtype)


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 30])
def test_layer_computes_what_the_linear_does(dtype, bias, rows):
    linear, x = ternary(bias=bias, dtype=dtype), random(rows, 40, dtype=dtype)
    exact = TernaryLinear.from_linear(linear, precision="exact")
    int8 = TernaryLinear.from_linear(linear)
    want = linear(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(exact(x), want, rtol=0.02, atol=0.02)
        torch.testing.assert_close(int8(x), want, rtol=0.05, atol=0.1)
        assert torch.equal(int8(x), aegis.ops.ternary_linear(x, int8.packed, int8.scale, linear.bias))
    assert int8.dequantize(dtype).equal(linear.weight)
    assert int8.weight.shape == (12, 40)
    assert int8(x[0]).shape == (12,)


def test_layer_holds_two_bits_a_weight_and_no_memory_of_the_linear():
    linear = ternary(64, 160)
    layer = TernaryLinear.from_linear(linear)
    assert layer.packed.numel() * 4 == 64 * 160 // 4
    assert layer.bias.data_ptr() != linear.bias.data_ptr()
    assert not any(p.requires_grad for p in layer.parameters())
    assert repr(layer) == "TernaryLinear(in_features=160, out_features=64, bias=True, precision='int8')"
    assert TernaryLinear.from_linear(linear, per_tensor=True).scale.shape == (1,)


def test_layer_of_zeros():
    layer = TernaryLinear(20, 3)
    assert layer(random(2, 20)).tolist() == [[0, 0, 0]] * 2
    assert TernaryLinear(0, 3, False)(torch.empty(2, 0)).tolist() == [[0, 0, 0]] * 2


def test_layer_made_under_another_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = TernaryLinear(20, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (layer.scale.dtype, layer.bias.dtype) == (torch.float32, torch.bfloat16)
    assert layer(random(2, 20, dtype=torch.bfloat16)).tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("train", [False, True])
def test_layer_is_copied_and_pickled(copied, train):
    layer = TernaryLinear.from_linear(ternary(), train=train)
    other, x = copied(layer), random(2, 40)
    assert torch.equal(other(x), layer(x))
    for mine, theirs in zip(layer.state_dict().values(), other.state_dict().values(), strict=True):
        assert mine.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_state_is_saved_and_loaded(assign, per_tensor):
    layer, file = TernaryLinear.from_linear(ternary(), per_tensor=per_tensor), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = TernaryLinear(40, 12)
    other.load_state_dict(torch.load(file), assign=assign)
    x = random(2, 40)
    assert torch.equal(other(x), layer(x))
    assert sorted(layer.state_dict()) == ["bias", "layout", "packed", "scale"]


def test_state_through_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = nn.Sequential(ternary(), ternary(5, 12, seed=3))
    convert(model, "ternary")
    safetensors.save_model(model, tmp_path / "model.safetensors")
    other = nn.Sequential(TernaryLinear(40, 12), TernaryLinear(12, 5))
    safetensors.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other(random(2, 40)), model(random(2, 40)))


def changed(name, value):
    state = TernaryLinear.from_linear(ternary()).state_dict()
    state[name] = value(state[name]) if callable(value) else value
    return state


def with_word(row, word, bits):
    def change(packed):
        words = packed.to(torch.int64)
        words[row, word] |= bits
        return words.to(torch.uint32)

    return change


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layout", torch.tensor([2, 40]), r"layout: expected tag 1 \(16 trits to a word, lowest bits first\), got 2"),
        ("layout", torch.tensor([1, 39]), "layout: expected in_features 40, got 39"),
        ("layout", torch.tensor([1]), "layout: expected a tag and a size"),
        ("layout", torch.ones(2, device="meta"), "layout: expected a tag and a size, got a tensor on the meta device"),
        ("layout", None, "layout: expected a tag and a size, got None"),
        ("packed", with_word(2, 1, 3), "packed: expected codes 00, 01 and 10, got 11"),
        ("packed", with_word(2, 2, 1 << 31), "packed: expected zeros past the 40 trits of a row, got others"),
        ("packed", lambda packed: packed.view(torch.int32), "packed: expected uint32"),
        ("packed", lambda packed: packed[:, :2], r"packed: expected uint32 with 3 words .*\(12, 2\)"),
        ("packed", lambda packed: packed[:5], r"scale: expected float32 of shape \(5,\) or \(1,\)"),
        ("scale", lambda scale: scale / 0, "scale: expected finite values, got others"),
        ("scale", lambda scale: scale.double(), "scale: expected float32"),
        ("scale", lambda scale: scale[:5], r"scale: expected float32 of shape \(12,\) or \(1,\), .*\(5,\)"),
    ],
)
def test_state_that_is_wrong_is_refused_case46(name, value, message):
    layer = TernaryLinear(40, 12)
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(changed(name, value))
    assert (layer.dequantize() == 0).all()


@pytest.mark.parametrize("train", [False, True])
def test_compiled(train):
    layer, x = TernaryLinear.from_linear(ternary(), train=train), random(3, 40)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_moved_to_another_dtype_or_device():
    layer, x = TernaryLinear.from_linear(ternary()), random(2, 40)
    scale = layer.scale.clone()
    model = nn.Sequential(layer).to(torch.bfloat16)
    assert layer.bias.dtype == torch.bfloat16
    assert torch.equal(layer.scale, scale)
    assert model(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(model.float()(x), TernaryLinear.from_linear(ternary())(x), rtol=0.01, atol=0.01)
    meta = copy.deepcopy(layer).to("meta")
    assert {t.device.type for t in meta.state_dict().values()} == {"meta"}
    assert meta(x.to("meta")).shape == (2, 12)
    empty = meta.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(x), layer(x))


def test_autocast():
    model = nn.Sequential(nn.Linear(40, 40), TernaryLinear.from_linear(ternary()))
    x = random(3, 40)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got = model(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), model(x).detach(), rtol=0.05, atol=0.1)
    with pytest.raises(ValueError, match="bias: expected dtype bfloat16, got float32"):
        model[1](x.bfloat16())


@pytest.mark.parametrize("precision", ["int8", "exact"])
@pytest.mark.parametrize("rows", [2, 30])
def test_gradient_of_a_packed_layer_is_refused_when_asked_for(precision, rows):
    layer, x = TernaryLinear.from_linear(ternary(), precision=precision), random(rows, 40).requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"ternary_linear: expected no gradient.*TernaryLinear\(\.\.\., train=True\)"
    ):
        layer(x).sum().backward()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TernaryLinear(-1, 2), "in_features: expected at least 0, got -1"),
        (lambda: TernaryLinear(1, 2.5), "out_features: expected at least 0, got 2.5"),
        (lambda: TernaryLinear(1, 2, precision="int4"), "precision: expected 'int8' or 'exact', got 'int4'"),
        (lambda: TernaryLinear(1, 2, precision="exact", train=True), "precision: expected 'int8', which is what"),
        (lambda: TernaryLinear(20, 2)(random(2, 19)), r"x: expected a last dimension of 20, got shape \[2, 19\]"),
        (lambda: TernaryLinear(20, 2)(torch.tensor(1.0)), r"x: expected a last dimension of 20, got shape \[\]"),
        (lambda: TernaryLinear(20, 2, False)(random(2, 20).double()), "x: expected dtype float32.*got float64"),
        (lambda: TernaryLinear.from_linear(ternary().double()), "weight: expected dtype float32.*got float64"),
        (
            lambda: TernaryLinear.from_packed(torch.zeros(3, 2, dtype=torch.uint32), torch.ones(3), 32, torch.ones(4)),
            r"bias: expected shape \(3,\), got \(4,\)",
        ),
        (
            lambda: TernaryLinear.from_packed(
                torch.zeros(3, 2, dtype=torch.uint32), torch.ones(3), 32, torch.ones(3, device="meta")
            ),
            "bias: expected on the device of packed, cpu, got meta",
        ),
        (
            lambda: TernaryLinear.from_packed(torch.zeros(3, dtype=torch.uint32), torch.ones(3), 32),
            "packed: expected uint32 with 2 words in a row",
        ),
        (
            lambda: TernaryLinear.from_packed(torch.zeros(3, 2, dtype=torch.uint32), torch.ones(3, device="meta"), 32),
            "scale: expected on the device of packed, cpu, got meta",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- convert and revert ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_convert_of_a_ternary_model_loses_nothing_and_is_reverted(dtype):
    model = nn.Sequential(ternary(dtype=dtype), nn.ReLU(), ternary(5, 12, bias=False, dtype=dtype, seed=3))
    weights = [p.detach().clone() for p in model.parameters()]
    x = random(3, 40, dtype=dtype)
    want = model(x).detach()
    report = convert(model, "ternary", precision="exact")
    assert [layer.relative_error for layer in report.layers] == [0, 0]
    assert report.bytes_after < report.bytes_before
    torch.testing.assert_close(model(x), want, rtol=0.02, atol=0.02)
    assert revert(model) == 2
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    assert all(p.requires_grad for p in model[0].parameters())


def test_convert_refuses_weights_that_are_not_ternary_case48():
    model = nn.Sequential(ternary(), nn.Linear(12, 30))
    with pytest.raises(ConversionRefused, match=r"1: not ternary \(relative error 0\.\d+, .*force=True"):
        convert(model, "ternary")
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
    report = convert(model, "ternary", force=True)
    assert report.layers[0].relative_error == 0
    assert 0.3 < report.layers[1].relative_error < 0.6
    with pytest.raises(ValueError, match="converted without loss, but 1 were not"):
        revert(model)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: m.double(), "dtype float64"),
        (lambda m: m.weight.data.fill_(torch.nan), "weights that are not finite"),
    ],
)
def test_convert_refuses_what_force_cannot_help(spoil, reason):
    model = nn.Sequential(ternary())
    spoil(model[0])
    with pytest.raises(ConversionRefused, match=reason):
        convert(model, "ternary", force=True)


def test_convert_with_an_unknown_option():
    with pytest.raises(TypeError, match="scales"):
        convert(nn.Sequential(ternary()), "ternary", scales=2)


# --- training ---


def test_training_computes_what_the_frozen_layer_does_and_passes_gradients():
    torch.manual_seed(0)
    linear = nn.Linear(60, 9)
    layer = TernaryLinear.from_linear(linear, train=True)
    assert repr(layer) == "TernaryLinear(in_features=60, out_features=9, bias=True, train=True)"
    x = random(5, 60).requires_grad_()
    out = layer(x)
    out.sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.detach().sum(0).expand(9, 60), rtol=0.02, atol=0.02)
    torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand(5, 60))
    assert layer.bias.grad.tolist() == [5] * 9
    assert layer.freeze() is layer
    assert layer.freeze() is layer
    assert sorted(layer.state_dict()) == ["bias", "layout", "packed", "scale"]
    with torch.no_grad():
        torch.testing.assert_close(layer(x), out, rtol=1e-4, atol=1e-4)
    assert not any(p.requires_grad for p in layer.parameters())


def test_freeze_of_a_model_packs_all_layers_or_none():
    model = nn.Sequential(TernaryLinear(4, 4, train=True), TernaryLinear(4, 4, train=True))
    with torch.no_grad():
        model[1].float_weight[2, 1] = torch.nan
    with pytest.raises(ValueError, match="model: expected finite weights, got others in 1"):
        freeze(model)
    assert all(layer.float_weight is not None for layer in model)


def test_training_layer_starts_as_a_linear_does():
    torch.manual_seed(0)
    layer = TernaryLinear(20, 6, train=True)
    torch.manual_seed(0)
    assert torch.equal(layer.weight, nn.Linear(20, 6).weight)
    assert layer(torch.zeros(3, 20)).shape == (3, 6)
    assert layer(torch.empty(0, 20)).shape == (0, 6)
    assert layer(torch.full((1, 20), torch.nan)).isnan().all()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    "weight", [torch.zeros(4, 8), torch.full((4, 8), -0.5), torch.eye(4, 8), torch.zeros(4, 0), torch.zeros(0, 8)]
)
def test_frozen_edge_cases_compute_what_training_did(weight):
    layer = TernaryLinear(weight.shape[1], weight.shape[0], bias=False, train=True)
    layer.float_weight.data.copy_(weight)
    x = random(3, weight.shape[1])
    want = layer(x).detach()
    torch.testing.assert_close(layer.freeze()(x), want)


def test_demo_gpt_reaches_the_loss_of_the_float_model():
    """The Micro-GPT on a short text: float, and BitNet-style from the same start, in the same steps."""
    from aegis.train.model import MicroGPT, MicroGPTConfig

    text = "".join(f"{n} times {n + 1} is {n * (n + 1)}, and so on.\n" for n in range(200))
    tokens = torch.tensor(list(text.encode()))

    def batches():
        generator = torch.Generator().manual_seed(4)
        while True:
            starts = torch.randint(0, len(tokens) - 33, (8, 1), generator=generator)
            window = tokens[starts + torch.arange(33)]
            yield window[:, :-1], window[:, 1:]

    def trained(ternary):
        torch.manual_seed(3)
        model = MicroGPT(MicroGPTConfig(vocab_size=128, block_size=32, layers=1, heads=2, width=48))
        if ternary:
            report = convert(model, "ternary", train=True)
            assert len(report.converted) == 4
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _, (inputs, targets) in zip(range(120), batches(), strict=False):
            loss = model(inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, sum(losses[-20:]) / 20, losses[0]

    _, float_loss, start = trained(ternary=False)
    model, ternary_loss, _ = trained(ternary=True)
    assert float_loss < start / 2
    assert ternary_loss < float_loss + 0.2 * (start - float_loss)

    inputs = tokens[None, :32]
    want = model(inputs).detach()
    assert freeze(model) == 4
    assert freeze(model) == 0
    torch.testing.assert_close(model(inputs), want, rtol=0.02, atol=0.05)
