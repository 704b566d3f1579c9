"""aegis.quant.Float8Linear: what it computes, keeps, refuses and becomes."""

import copy
import io
import pickle

import aegis
import pytest
import torch
from aegis.quant import ConversionRefused, Float8Linear, convert, revert
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear(bias=True, dtype=torch.float32, k=300, n=20):
    torch.manual_seed(0)
    return nn.Linear(k, n, bias, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("block", [0, 128])
@pytest.mark.parametrize("rows", [1, 30])
def test_layer_computes_about_what_the_linear_does(dtype, block, rows):
    dense, x = linear(bias=block == 0, dtype=dtype), random(rows, 300, dtype=dtype)
    layer = Float8Linear.from_linear(dense, block=block)
    with torch.no_grad():
        want, got = dense(x), layer(x)
        assert got.dtype == dtype
        assert (got - want).norm() < 0.06 * want.norm()
        assert torch.equal(got, aegis.ops.float8_linear(x, layer.weight, layer.weight_scale, dense.bias))
        assert layer(x[0]).shape == (20,)
    assert (layer.dequantized() - dense.weight).norm() < 0.04 * dense.weight.norm()


def test_layer_holds_a_byte_a_weight_and_no_memory_of_the_linear():
    dense = linear()
    layer = Float8Linear.from_linear(dense)
    assert layer.weight.element_size() == 1
    assert layer.bias.data_ptr() != dense.bias.data_ptr()
    assert not list(layer.parameters())
    assert repr(layer) == "Float8Linear(in_features=300, out_features=20, bias=True)"
    assert "block=128" in repr(Float8Linear.from_linear(dense, block=128))


@pytest.mark.parametrize("block", [0, 128])
def test_layer_saves_loads_copies_and_pickles(block):
    layer, x = Float8Linear.from_linear(linear(), block=block), random(2, 300)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh = Float8Linear(300, 20, block=block)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.weight.dtype == torch.float8_e4m3fn
        assert other.weight.data_ptr() != layer.weight.data_ptr()
        assert torch.equal(other(x), layer(x))


def test_layer_moves_and_changes_dtype():
    layer, x = Float8Linear.from_linear(linear(False), block=128), random(2, 300, dtype=torch.bfloat16)
    want = layer(x)
    for change in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to("cpu", torch.float16)):
        changed = change(copy.deepcopy(layer))
        assert (changed.weight.dtype, changed.weight_scale.dtype) == (torch.float8_e4m3fn, torch.float32)
        assert torch.equal(changed.weight_scale, layer.weight_scale)
        assert torch.equal(changed(x), want)
    on_meta = copy.deepcopy(layer).to("meta")
    assert (on_meta.weight.device.type, on_meta.weight.dtype) == ("meta", torch.float8_e4m3fn)
    assert on_meta(x.to("meta")).shape == (2, 20)
    with torch.device("meta"):
        empty = Float8Linear(300, 20).to_empty(device="cpu")
    empty.load_state_dict(Float8Linear.from_linear(linear()).state_dict())
    assert empty(x).isfinite().all()


def test_layer_in_a_failed_move_is_what_it_was():
    layer = Float8Linear.from_linear(linear())
    with pytest.raises(RuntimeError, match="nowhere"):
        layer.to("nowhere")
    assert layer.weight.dtype == torch.float8_e4m3fn


def test_layer_compiles():
    model, x = nn.Sequential(Float8Linear.from_linear(linear()), nn.ReLU()), random(3, 300)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


def test_layer_has_no_gradient():
    layer, x = Float8Linear.from_linear(linear()), random(2, 300).requires_grad_()
    got = layer(x)
    with pytest.raises(RuntimeError, match="float8_linear: expected no gradient to be asked for"):
        got.sum().backward()
    with torch.no_grad():
        assert torch.equal(layer(x), got)


def test_convert_and_its_report():
    model = nn.ModuleDict({"a": linear(), "b": nn.Sequential(linear(False), nn.ReLU()), "lm_head": linear()}).eval()
    report = convert(model, "float8", block=128)
    assert [layer.name for layer in report.converted] == ["a", "b.0"]
    assert all(0.01 < layer.relative_error < 0.04 for layer in report.converted)
    assert report.layers[1].bytes_after == 20 * 300 + 20 * 3 * 4
    assert type(model["a"]) is Float8Linear
    assert type(model["lm_head"]) is nn.Linear
    assert not model["a"].training
    with pytest.raises(ValueError, match="converted without loss, but 2 were not"):
        revert(model)


def test_convert_refuses_weights_that_are_not_finite():
    model = nn.Sequential(linear(), linear())
    with torch.no_grad():
        model[1].weight[3, 5] = torch.inf
    with pytest.raises(ConversionRefused, match="1: expected finite weights"):
        convert(model, "float8")
    assert type(model[0]) is nn.Linear
    with pytest.raises(TypeError, match="blocks"):
        convert(model, "float8", blocks=1)
    with pytest.raises(ValueError, match=r"block: expected 0 .* or 128, got 64"):
        convert(model, "float8", block=64)


VALUES, SCALES = torch.zeros(4, 6).to(torch.float8_e4m3fn), torch.ones(4, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Float8Linear(3, 4, block=64), r"block: expected 0 .* or 128, got 64"),
        (lambda: Float8Linear(-1, 4), "in_features: expected at least 0, got -1"),
        (lambda: Float8Linear(3, 4.5), "out_features: expected at least 0, got 4.5"),
        (lambda: Float8Linear(3, 4, dtype=torch.int8), "dtype of bias: expected .* got int8"),
        (lambda: Float8Linear.from_linear(linear(dtype=torch.float64)), "linear: expected weights of .* got float64"),
        (lambda: Float8Linear.from_tensors(VALUES.float(), SCALES), "weight: expected a 2-D tensor of float8_e4m3fn"),
        (lambda: Float8Linear.from_tensors(VALUES, SCALES[:3]), r"weight_scale: expected .*\[4, 1\] or \[4, 1\]"),
        (lambda: Float8Linear.from_tensors(VALUES, SCALES.half()), "weight_scale: expected float32 .* got float16"),
        (lambda: Float8Linear.from_tensors(VALUES, SCALES / 0), r"weight_scale\[0, 0\]: expected a finite number"),
        (lambda: Float8Linear.from_tensors(VALUES, SCALES, torch.ones(3)), r"bias: expected shape \[4\], got \[3\]"),
        (lambda: Float8Linear.from_tensors(VALUES, SCALES.to("meta")), "weight_scale: expected to be on cpu"),
        (lambda: Float8Linear(6, 4)(torch.ones(2, 5)), "weight: expected 5 columns"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_input_state_dict():
    layer = Float8Linear(6, 4)
    good = layer.state_dict()
    for change, message in (
        ({"weight": torch.zeros(4, 6)}, "weight: expected float8_e4m3fn, got float32"),
        ({"weight_scale": SCALES.half()}, "weight_scale: expected float32, got float16"),
        ({"weight_scale": SCALES * torch.nan}, "weight_scale: expected finite numbers"),
        ({"weight_scale": torch.ones(4, 2)}, "size mismatch for weight_scale"),
    ):
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict({**good, **change})
    assert torch.equal(layer.weight_scale, SCALES)


@pytest.mark.parametrize("block", [0, 128])
def test_generate_with_a_converted_llama(block):
    """Close to the dense model, and as it generates itself."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=160, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4
    )
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(1, 97, (1, 9))
    with torch.no_grad():
        dense = model(prompt).logits
        report = convert(model, "float8", block=block)
        got = model(prompt).logits
    assert len(report.converted) == 14
    assert (got - dense).norm() < 0.15 * dense.norm()
    ours = aegis.generate(model, prompt, max_new_tokens=12)
    theirs = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert torch.equal(ours, theirs)
