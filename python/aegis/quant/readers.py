"""Ternary weights out of the files of others: Hugging Face's BitNet checkpoints, and GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Literal

import torch
from torch import Tensor, nn

from aegis import ops
from aegis.quant.gguf_header import check_header
from aegis.quant.ternary import Precision, TernaryLinear

__all__ = ["install", "read_bitnet", "read_gguf"]

GGUF_TYPES = ("TQ1_0", "TQ2_0")


def read_bitnet(
    checkpoint: str | PathLike[str] | Mapping[str, Tensor],
    *,
    linear_class: Literal["bitlinear", "autobitlinear"] = "bitlinear",
    precision: Precision = "int8",
) -> dict[str, TernaryLinear]:
    """The ternary layers of a BitNet checkpoint as transformers saves it: four weights to a byte, one scale for all.

    Args:
        checkpoint: a safetensors file, or a state dict. ``X.weight`` of dtype uint8 is a layer X, ``X.weight_scale``
            its scale and ``X.bias``, where there is one, its bias; other tensors are left alone.
        linear_class: of the checkpoint's ``quantization_config``: ``"bitlinear"`` divides by the scale,
            ``"autobitlinear"`` multiplies.
        precision: of the layers.

    Returns:
        Layers by name, for :func:`install`.

    Raises:
        ValueError: a layer without scale, a code of 11, a scale that is not finite or not above 0, or a file without
            ternary layers.
    """
    if linear_class not in ("bitlinear", "autobitlinear"):
        raise ValueError(f"linear_class: expected 'bitlinear' or 'autobitlinear', got {linear_class!r}")
    if not isinstance(checkpoint, Mapping):
        from safetensors.torch import load_file

        checkpoint = load_file(checkpoint)
    layers = {}
    for key, codes in checkpoint.items():
        name, _, last = key.rpartition(".")
        if last != "weight" or codes.dtype != torch.uint8:
            continue
        factor = checkpoint.get(f"{name}.weight_scale")
        if factor is None or factor.numel() != 1:
            raise ValueError(f"checkpoint: expected {name}.weight_scale with one number beside {key}")
        scale = factor.float().reshape(1)
        scale = 1 / scale if linear_class == "bitlinear" else scale
        if codes.dim() != 2:
            raise ValueError(f"checkpoint: expected {key} of 2 dimensions, got shape {tuple(codes.shape)}")
        # Row i of `codes` holds rows i, n + i, 2n + i and 3n + i of the layer, from its lowest bits up.
        rows = torch.cat([codes >> shift & 3 for shift in (0, 2, 4, 6)])
        if bool((rows == 3).any()):
            raise ValueError(f"checkpoint: expected codes 00, 01 and 10 in {key}, got 11")
        if not (bool(scale.isfinite()) and bool(scale > 0)):
            raise ValueError(f"checkpoint: expected {name}.weight_scale finite and above 0, got {factor.item()}")
        packed, _ = ops.pack_ternary(rows.float() - 1, torch.ones(1, dtype=torch.float32, device=rows.device))
        layers[name] = TernaryLinear.from_packed(
            packed, scale, codes.shape[1], checkpoint.get(f"{name}.bias"), precision
        )
    if not layers:
        raise ValueError("checkpoint: expected weights of dtype uint8, four to a byte, got none")
    return layers


def read_gguf(
    path: str | PathLike[str], *, force: bool = False, precision: Precision = "int8"
) -> dict[str, TernaryLinear]:
    """The ternary layers of a GGUF file: its tensors of type TQ1_0 and TQ2_0. Needs the ``gguf`` package.

    GGUF has a scale for every 256 weights, and a layer one for every row. For models that were trained to be ternary
    those of a row are the same, and nothing is lost.

    Args:
        path: the file.
        force: take tensors whose scales differ within a row, too, and round them again to one for each row.
        precision: of the layers.

    Returns:
        Layers by their names in the file (``blk.0.ffn_up``), biases of float tensors included; for :func:`install`,
        once the names are those of the model.

    Raises:
        ValueError: scales that differ within a row, a file without ternary tensors, or one that is damaged.
        ImportError: gguf is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ImportError("read_gguf needs gguf: pip install 'aegis-torch[gguf]'", name=error.name) from error
    check_header(path)
    try:
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    except (ValueError, LookupError, OverflowError) as error:
        raise ValueError(f"path: expected a GGUF file, but {path} is damaged: {error}") from error
    layers = {}
    for key, tensor in tensors.items():
        if tensor.tensor_type.name not in GGUF_TYPES:
            continue
        weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        if weight.dim() != 2 or not bool(weight.isfinite().all()):
            raise ValueError(
                f"path: expected tensors of 2 dimensions and of finite numbers, but {key} has shape "
                f"{tuple(weight.shape)}{'' if weight.dim() != 2 else ' and others'}"
            )
        packed, scale = ops.pack_ternary(weight)
        if not force and not torch.equal(ops.unpack_ternary(packed, scale, weight.shape[1]), weight):
            raise ValueError(
                f"path: expected one scale in every row of a tensor, but {key} has several (it was made from weights "
                "that were not ternary); force=True rounds it again"
            )
        name = key.removesuffix(".weight")
        bias = tensors.get(f"{name}.bias")
        layers[name] = TernaryLinear.from_packed(
            packed,
            scale,
            weight.shape[1],
            None if bias is None else torch.tensor(gguf.dequantize(bias.data, bias.tensor_type)),
            precision,
        )
    if not layers:
        raise ValueError(f"path: expected tensors of type TQ1_0 or TQ2_0, got none in {path}")
    return layers


def install(model: nn.Module, layers: Mapping[str, TernaryLinear]) -> None:
    """Puts layers that were read into a model, each in the place of the ``nn.Linear`` of its name.

    They are moved to the device of the weight they replace (unless that is on the meta device), and their bias to its
    dtype. All are checked before the first is put in.

    Raises:
        ValueError: a name that is no ``nn.Linear`` of the model, or one of another shape, or with a bias where the
            layer has none, or none where it has one.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, layer in layers.items():
        linear = modules.get(name)
        if not isinstance(linear, nn.Linear):
            found = "no such module" if linear is None else f"a {type(linear).__name__}"
            raise ValueError(f"layers: expected names of linear layers in the model, but {name!r} is {found}")
        shape, wanted = (layer.out_features, layer.in_features), (linear.out_features, linear.in_features)
        if shape != wanted:
            raise ValueError(f"layers: expected {name!r} of shape {wanted}, as in the model, got {shape}")
        if (layer.bias is None) != (linear.bias is None):
            has = "no bias" if layer.bias is None else "a bias"
            raise ValueError(f"layers: expected {name!r} to have a bias where the model's has one, got {has}")
    for name, layer in layers.items():
        weight = modules[name].weight
        assert isinstance(weight, Tensor)
        layer.to(None if weight.is_meta else weight.device, weight.dtype)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.train(modules[name].training))
