"""Float8 weights under other projects' names: read, written, loaded, refused."""

import json

import pytest
import torch
from aegis.quant import Float8Linear, convert, load_float8, read_float8, write_float8
from aegis.quant.float8_checkpoints import FORMATS, torchao_metadata
from torch import nn

N, K = 200, 300


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


VALUES = random(N, K).to(torch.float8_e4m3fn)
OTHER = {"norm.weight": torch.ones(3), "layer.bias": random(N)}


def wide(scales):
    """As one scale for each weight."""
    k = K if scales.shape[1] == 1 else 128
    return scales.repeat_interleave(k, 1)[:, :K]


@pytest.mark.parametrize(
    "names", [("weight", "weight_scale"), ("weight", "weight_scale_inv"), ("_weight_qdata", "_weight_scale")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (N,), (N, 1), (N, 3), (2, 3)], ids=str)
def test_every_shape_of_scales_is_read(names, dtype, shape):
    scale = random(*shape).abs().to(dtype) + 0.5
    got = read_float8({f"layer.{names[0]}": VALUES, f"layer.{names[1]}": scale, **OTHER})
    assert set(got) == {"layer.weight", "layer.weight_scale", *OTHER}
    scales = got["layer.weight_scale"]
    assert scales.dtype == torch.float32
    assert scales.is_contiguous()
    want = scale.float()
    if shape == (N,):
        want = want[:, None]
    if shape == (2, 3):
        want = want.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
    elif shape == (N, 3):
        want = want.repeat_interleave(128, 1)[:, :K]
    assert torch.equal(wide(scales), want.expand(N, K) if want.numel() > 1 else want.reshape(1, 1).expand(N, K))
    layer = Float8Linear.from_tensors(got["layer.weight"], scales)
    assert torch.equal(layer.dequantized(), VALUES.float() * wide(scales))


class Wrapped(torch.Tensor):
    """What torchao's Float8Tensor looks like from outside."""


def test_tensors_of_torchao_are_read():
    wrapped = torch.zeros(N, K).as_subclass(Wrapped)
    wrapped.qdata, wrapped.scale = VALUES, torch.full((N, 1), 2.0)
    got = read_float8({"layer.weight": wrapped, **OTHER})
    assert torch.equal(got["layer.weight"].view(torch.uint8), VALUES.view(torch.uint8))
    assert torch.equal(got["layer.weight_scale"], torch.full((N, 1), 2.0))


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_written_is_read_again(format):
    scales = random(2, 3).abs().repeat_interleave(128, 0)[:N].contiguous()
    tensors = {"layer.weight": VALUES, "layer.weight_scale": scales, **OTHER}
    written = write_float8(tensors, format)
    assert set(OTHER) < set(written)
    if format == "deepseek":
        assert written["layer.weight_scale_inv"].shape == (2, 3)
    back = read_float8(written)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in tensors)


def test_squares_need_equal_rows():
    single = write_float8({"layer.weight": VALUES, "layer.weight_scale": torch.full((N, 1), 3.0)}, "deepseek")
    assert torch.equal(single["layer.weight_scale_inv"], torch.full((2, 3), 3.0))
    with pytest.raises(ValueError, match=r"layer.weight_scale: expected the same scales in all rows of each 128"):
        write_float8({"layer.weight": VALUES, "layer.weight_scale": random(N, 1)}, "deepseek")


def test_metadata_for_torchao():
    tensors = {"layer.weight": VALUES, "layer.weight_scale": torch.ones(N, 3), **OTHER}
    metadata = torchao_metadata(tensors)
    assert json.loads(metadata["tensor_names"]) == ["layer.weight", "norm.weight", "layer.bias"]
    described = json.loads(metadata["layer.weight"])
    assert described["_type"] == "Float8Tensor"
    assert described["_data"]["block_size"] == [1, 128]
    assert json.loads(metadata["layer.bias"]) == {"_type": "Tensor"}


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(K, N), "b": nn.Sequential(nn.Linear(N, 5, bias=False), nn.LayerNorm(5))})


@pytest.mark.parametrize("format", ["compressed-tensors", "torchao"])
@pytest.mark.parametrize("block", [0, 128])
def test_load_into_plain_layers(format, block, tmp_path):
    source, target = model(), model().eval()
    convert(source, "float8", block=block)
    source["b"][1].weight.data.fill_(7)
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    safetensors.save_file(write_float8(source.state_dict(), format), tmp_path / "model.safetensors")
    assert load_float8(target, safetensors.load_file(tmp_path / "model.safetensors")) == ["a", "b.0"]
    x = random(3, K)
    assert torch.equal(target["a"](x), source["a"](x))
    assert (target["b"][1].weight == 7).all()
    assert type(target["b"][0]) is Float8Linear
    assert not target["a"].training
    assert load_float8(target, source.state_dict()) == ["a", "b.0"]  # over float8 layers


class Tied(nn.Module):
    """With an embedding for its lm_head, and a layer that stands in two places."""

    def __init__(self):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(7, 16), nn.Linear(16, 7, bias=False)
        self.first = self.second = nn.Linear(16, 16)
        self.lm_head.weight = self.embed.weight


@pytest.mark.parametrize("left_out", [(), ("lm_head.weight",), ("embed.weight", "first.")], ids=str)
def test_load_into_a_model_that_shares_tensors(left_out):
    source, target = Tied(), Tied()
    convert(source, "float8")
    state = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith(tuple(left_out))}
    load_float8(target, state)
    assert target.lm_head.weight is target.embed.weight
    assert torch.equal(target.lm_head.weight, source.lm_head.weight)
    assert target.first is target.second
    assert torch.equal(target.first.weight.view(torch.uint8), source.first.weight.view(torch.uint8))


def test_load_that_would_leave_a_shared_tensor_empty():
    values = {"lm_head.weight": torch.zeros(7, 16).to(torch.float8_e4m3fn), "lm_head.weight_scale": torch.ones(1)}
    state = {name: tensor for name, tensor in Tied().state_dict().items() if name != "embed.weight"}
    with pytest.raises(ValueError, match=r"missing: embed\.weight"):
        load_float8(Tied(), {**state, **values})


def test_input_scales_are_left_out():
    got = read_float8({"layer.weight": VALUES, "layer.weight_scale": torch.ones(1), "layer.input_scale": torch.ones(1)})
    assert set(got) == {"layer.weight", "layer.weight_scale"}
    assert set(read_float8({"other.input_scale": torch.ones(1)})) == {"other.input_scale"}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "layer.weight: expected layer.weight_scale or layer.weight_scale_inv beside it, got neither"),
        ({"layer.weight_scale": torch.ones(1), "layer.weight_scale_inv": torch.ones(1)}, "got both"),
        ({"layer.weight_scale": torch.ones(5, 1)}, r"layer: expected one scale, or .*\[200, 1\], .* got \[5, 1\]"),
        ({"layer.weight_scale": torch.ones(N, 2)}, r"layer: expected one scale, or .* got \[200, 2\]"),
        ({"layer.weight_scale": torch.tensor(torch.inf)}, "layer: expected finite scales"),
        (
            {"layer.weight_scale": torch.ones(1), "layer.weight_zero_point": torch.ones(1)},
            "layer.weight_zero_point: expected none",
        ),
    ],
)
def test_bad_input(tensors, message):
    with pytest.raises(ValueError, match=message):
        read_float8({"layer.weight": VALUES, **tensors})


def test_bad_input_load():
    good = model()
    convert(good, "float8")
    state = good.state_dict()
    for change, message in (
        ({"a.weight": VALUES[:, :9].contiguous()}, r"a.weight: expected shape \[200, 300\], got \[200, 9\]"),
        ({"a.bias": None}, "a.bias: expected one, got the opposite"),
        ({"b.1.weight": None}, "missing: b.1.weight"),
        ({"b.1.weight": torch.ones(4)}, r"b.1.weight: expected shape \[5\], got \[4\]"),
        ({"c": torch.ones(1)}, "got besides: c"),
        ({"c.weight": VALUES, "c.weight_scale": torch.ones(1)}, "c.weight: expected the name of a linear layer"),
        ({"b.1.weight": VALUES, "b.1.weight_scale": torch.ones(1)}, "linear layer .*, got a LayerNorm"),
    ):
        target = model()
        before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
        tensors = {name: tensor for name, tensor in {**state, **change}.items() if tensor is not None}
        with pytest.raises(ValueError, match=message):
            load_float8(target, tensors)
        assert type(target["a"]) is nn.Linear
        assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())
    with pytest.raises(ValueError, match=r"format: expected one of .* got 'gguf'"):
        write_float8(state, "gguf")
