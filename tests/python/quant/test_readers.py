"""Ternary weights read from Hugging Face's BitNet checkpoints and from GGUF, against what those projects read."""

import struct

import pytest
import torch
from aegis.quant import TernaryLinear, install, read_bitnet, read_gguf
from torch import nn


def trits(n, k, seed=0):
    return torch.randint(-1, 2, (n, k), generator=torch.Generator().manual_seed(seed)).float()


def bitnet_state(dtype=torch.float32, bias=False):
    bitnet = pytest.importorskip("transformers.integrations.bitnet", reason="transformers is not installed")
    state = {"norm.weight": torch.ones(5), "embed.weight": torch.randn(4, 5)}
    for name, n, k, scale in (("a", 8, 20, 3.0), ("mlp.b", 12, 33, 0.7)):
        state[f"{name}.weight"] = bitnet.pack_weights(trits(n, k))
        assert torch.equal(bitnet.unpack_weights(state[f"{name}.weight"], torch.float32), trits(n, k))
        state[f"{name}.weight_scale"] = torch.tensor([scale], dtype=dtype)
        if bias:
            state[f"{name}.bias"] = torch.randn(n, dtype=dtype)
    return state


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize(("linear_class", "power"), [("bitlinear", -1), ("autobitlinear", 1)])
def test_bitnet(tmp_path, from_file, linear_class, power):
    checkpoint = state = bitnet_state(bias=from_file)
    if from_file:
        safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
        checkpoint = tmp_path / "model.safetensors"
        safetensors.save_file(state, checkpoint)
    layers = read_bitnet(checkpoint, linear_class=linear_class)
    assert sorted(layers) == ["a", "mlp.b"]
    for name, layer in layers.items():
        scale = state[f"{name}.weight_scale"] ** power
        torch.testing.assert_close(layer.dequantize(), trits(layer.out_features, layer.in_features) * scale)
        assert layer.scale.shape == (1,)
        assert (layer.bias is not None) == from_file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a.weight_scale": None}, r"checkpoint: expected a\.weight_scale with one number beside a\.weight"),
        ({"a.weight_scale": torch.ones(2)}, r"expected a\.weight_scale with one number"),
        ({"a.weight_scale": torch.zeros(1)}, r"expected a\.weight_scale finite and above 0, got 0"),
        ({"a.weight_scale": torch.tensor(torch.nan)}, r"expected a\.weight_scale finite and above 0, got nan"),
        ({"a.weight_scale": torch.tensor(-2.0)}, r"expected a\.weight_scale finite and above 0, got -2"),
        ({"a.weight": torch.full((2, 3), 0xFF, dtype=torch.uint8)}, r"codes 00, 01 and 10 in a\.weight, got 11"),
        ({"a.weight": torch.zeros(2, dtype=torch.uint8)}, r"a\.weight of 2 dimensions, got shape \(2,\)"),
        ({"a.weight": torch.zeros(2, 3)}, "checkpoint: expected weights of dtype uint8, four to a byte, got none"),
    ],
)
def test_bitnet_that_is_wrong(change, message):
    state = {"a.weight": torch.zeros(2, 3, dtype=torch.uint8), "a.weight_scale": torch.ones(1)} | change
    with pytest.raises(ValueError, match=message):
        read_bitnet({name: tensor for name, tensor in state.items() if tensor is not None})
    with pytest.raises(ValueError, match="linear_class: expected 'bitlinear' or 'autobitlinear', got 'linear'"):
        read_bitnet(state, linear_class="linear")


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="gguf is not installed")


def write_gguf(gguf, path, tensors):
    """Quantised by gguf itself where a type is named."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (tensor, kind) in tensors.items():
        if kind is None:
            writer.add_tensor(name, tensor.numpy())
        else:
            kind = getattr(gguf.GGMLQuantizationType, kind)
            writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf(gguf, tmp_path):
    path = tmp_path / "model.gguf"
    scale = torch.tensor([0.5, 2.0, 0.25, 1.0, 3.0])[:, None]
    weight = trits(5, 768) * scale
    weight[0, :256] = 0  # a block whose scale is zero, in a row of others
    weight[1] = 0
    bias = torch.randn(5)
    write_gguf(
        gguf,
        path,
        {
            "blk.0.ffn_up.weight": (weight, "TQ1_0"),
            "blk.0.ffn_down.weight": (weight.flip(0), "TQ2_0"),
            "blk.0.ffn_down.bias": (bias, None),
            "token_embd.weight": (torch.randn(4, 256), None),
        },
    )
    layers = read_gguf(path)
    assert sorted(layers) == ["blk.0.ffn_down", "blk.0.ffn_up"]
    assert torch.equal(layers["blk.0.ffn_up"].dequantize(), weight)
    assert torch.equal(layers["blk.0.ffn_down"].dequantize(), weight.flip(0))
    assert torch.equal(layers["blk.0.ffn_down"].bias, bias)
    assert layers["blk.0.ffn_up"].bias is None


def test_gguf_whose_scales_differ_within_a_row_case48(gguf, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(gguf, path, {"up.weight": (torch.randn(3, 512), "TQ2_0")})
    with pytest.raises(ValueError, match=r"one scale in every row .* up\.weight has several"):
        read_gguf(path)
    assert read_gguf(path, force=True)["up"].in_features == 512


def with_field(kind, value):
    """The start of a GGUF file with one field, "k"."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", kind) + value


def with_tensor(*sizes, kind=35, at=0):
    head = b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 8) + b"w.weight"
    return head + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, at) + bytes(1000)


HUGE = 1 << 60
DAMAGED = {
    "empty": (b"", "does not begin with 'GGUF'"),
    "another file": (b"PK" * 50, "does not begin with 'GGUF'"),
    "cut off": (b"GGUF", "lengths within the file, got 1 × 4 bytes at byte 4 of the 4"),
    "version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "expected GGUF version 2 or 3, got 1"),
    "many fields": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "expected lengths within the file"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "expected lengths within the file"),
    "name": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(20), "expected lengths within the file"),
    "type": (with_field(77, b""), "expected types of values as GGUF has them, got 77"),
    "string": (with_field(8, struct.pack("<Q", HUGE)), "expected lengths within the file"),
    "array": (with_field(9, struct.pack("<IQ", 0, HUGE)), "expected lengths within the file"),
    "array of strings": (with_field(9, struct.pack("<IQ", 8, HUGE)), "expected lengths within the file"),
    "array of arrays": (with_field(9, struct.pack("<IQ", 9, 1)), "expected types of values as GGUF has them, got 9"),
    "other order of bytes": (b"GGUF" + struct.pack(">IQQ", 3, 0, HUGE), "expected lengths within the file"),
    "sizes of a tensor": (with_tensor(HUGE, HUGE), "is damaged"),
    "tensor past the end": (with_tensor(256, 1000), "is damaged"),
    "place of a tensor": (with_tensor(256, 1, at=1 << 63), "is damaged"),
    "type of a tensor": (with_tensor(256, 1, kind=9999), "is damaged"),
    "row of a tensor": (with_tensor(100, 1), "is damaged"),
    "dimensions": (with_tensor(256, 1, 2), r"w\.weight has shape \(2, 1, 256\)"),
    "numbers": (with_tensor(256, 2)[:-1000] + b"\xff" * 1000, r"w\.weight has shape \(2, 256\) and others"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_gguf_that_is_damaged(gguf, tmp_path, damage):
    content, message = DAMAGED[damage]
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_gguf(tmp_path / "model.gguf")


def test_gguf_with_fields_of_every_type(gguf, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_bool("a", True)
    writer.add_float64("b", 1.5)
    writer.add_uint16("c", 7)
    writer.add_array("d", ["one", "two"])
    writer.add_array("e", [1, 2, 3])
    kind = gguf.GGMLQuantizationType.TQ2_0
    writer.add_tensor("up.weight", gguf.quantize(torch.ones(3, 256).numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert (read_gguf(tmp_path / "model.gguf")["up"].dequantize() == 1).all()


def test_gguf_without_ternary_tensors(gguf, tmp_path):
    write_gguf(gguf, tmp_path / "model.gguf", {"up.weight": (torch.randn(3, 256), None)})
    with pytest.raises(ValueError, match=r"expected tensors of type TQ1_0 or TQ2_0, got none in .*model\.gguf"):
        read_gguf(tmp_path / "model.gguf")


def packed_layer(out_features=6, in_features=20, bias=True):
    return TernaryLinear.from_linear(nn.Linear(in_features, out_features, bias))


def test_install():
    model = nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(20, 6), nn.Linear(6, 3, bias=False))}).bfloat16().eval()
    layer = packed_layer()
    install(model, {"mlp.0": layer, "mlp.1": packed_layer(3, 6, bias=False)})
    assert model["mlp"][0] is layer
    assert (layer.bias.dtype, layer.training) == (torch.bfloat16, False)
    assert model["mlp"](torch.randn(2, 20, dtype=torch.bfloat16)).shape == (2, 3)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"b": packed_layer()}, "'b' is no such module"),
        ({"c": packed_layer()}, "'c' is a ReLU"),
        ({"a": packed_layer(6, 21)}, r"layers: expected 'a' of shape \(6, 20\), as in the model, got \(6, 21\)"),
        ({"a": packed_layer(bias=False)}, "expected 'a' to have a bias where the model's has one, got no bias"),
    ],
)
def test_install_that_does_not_fit_changes_nothing(layers, message):
    model = nn.ModuleDict({"first": nn.Linear(20, 6), "a": nn.Linear(20, 6), "c": nn.ReLU()})
    with pytest.raises(ValueError, match=message):
        install(model, {"first": packed_layer(), **layers})
    assert type(model["first"]) is nn.Linear
