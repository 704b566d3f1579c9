"""Float8 weights under the names that other projects give them.

===================  =============================================  ==================================================
format               names beside ``layer``                         shape of the scales
===================  =============================================  ==================================================
aegis                ``.weight``, ``.weight_scale``                 (n, 1) or (n, ceil(k / 128))
compressed-tensors   ``.weight``, ``.weight_scale``                 one, (n, 1), (n, ceil(k / 128)), blocks of 128 × 128
deepseek             ``.weight``, ``.weight_scale_inv``             (ceil(n / 128), ceil(k / 128))
torchao              ``._weight_qdata``, ``._weight_scale``         one, (n, 1), (n, ceil(k / 128)), blocks of 128 × 128
===================  =============================================  ==================================================

All hold E4M3 values that are multiplied by their scales (also by those called ``_inv``). ``deepseek`` is what
DeepSeek-V3's and transformers' fine-grained FP8 checkpoints are like; the names of ``torchao`` are those of its
``flatten_tensor_state_dict``, with which it fills safetensors files. Neither package is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aegis.quant.float8 import BLOCK, Float8Linear

__all__ = ["FORMATS", "load_float8", "read_float8", "torchao_metadata", "write_float8"]

FORMATS = ("compressed-tensors", "deepseek", "torchao")

_SCALES = (".weight_scale", ".weight_scale_inv")


def read_float8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint with float8 weights, as :class:`Float8Linear` names and shapes them.

    Args:
        tensors: by name: a state dict, or what a safetensors file holds. A value may be torchao's ``Float8Tensor``.

    Returns:
        The same, where each float8 weight has its ``weight_scale`` beside it: float32, (n, 1) or (n, ceil(k / 128)).
        A scale for more than one row is repeated. Fixed scales of inputs (``input_scale``) are left out: inputs are
        always scaled by what is in them. Everything else is passed on.

    Raises:
        ValueError: a float8 weight without scales, or with scales of another shape or that are not finite; a weight
            with zero points.
    """
    plain = dict(_unpacked(tensors))
    result: dict[str, Tensor] = {}
    for name, tensor in plain.items():
        layer = name.removesuffix(".weight")
        if layer != name and tensor.dtype == torch.float8_e4m3fn:
            if f"{layer}.weight_zero_point" in plain:
                raise ValueError(f"{layer}.weight_zero_point: expected none, since E4M3 values have no zero point")
            scales = [plain[layer + scale] for scale in _SCALES if layer + scale in plain]
            if len(scales) != 1:
                raise ValueError(
                    f"{name}: expected {layer}.weight_scale or {layer}.weight_scale_inv beside it, got "
                    f"{'both' if scales else 'neither'}"
                )
            result[name] = tensor
            result[f"{layer}.weight_scale"] = _scales_of_rows(scales[0], tensor, layer)
    for name, tensor in plain.items():
        layer, _, last = name.rpartition(".")
        quantised = f"{layer}.weight" in result
        if name not in result and not (quantised and last in ("weight_scale_inv", "input_scale")):
            result[name] = tensor
    return result


def write_float8(tensors: Mapping[str, Tensor], format: str) -> dict[str, Tensor]:
    """The state dict of a model with :class:`Float8Linear` layers, with the names and shapes of another project.

    Args:
        tensors: by name.
        format: one of ``FORMATS``. Files of ``torchao`` also need ``aegis.quant.float8_checkpoints.torchao_metadata``.

    Raises:
        ValueError: another format, or a layer that it cannot say: "deepseek" has one scale for 128 × 128 weights, so
            it can take layers that were read from there, or have a single scale, but not what ``convert`` makes.
    """
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(map(repr, FORMATS))}, got {format!r}")
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".")
        weight = tensors.get(f"{layer}.weight")
        is_float8 = weight is not None and weight.dtype == torch.float8_e4m3fn and last in ("weight", "weight_scale")
        if not is_float8 or format == "compressed-tensors":
            result[name] = tensor
        elif format == "torchao":
            result[f"{layer}._weight_{'qdata' if last == 'weight' else 'scale'}"] = tensor
        elif last == "weight":
            result[name] = tensor
        else:
            assert weight is not None
            result[f"{layer}.weight_scale_inv"] = _scales_of_squares(tensor, weight, layer)
    return result


def torchao_metadata(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> dict[str, str]:
    """What a safetensors file of ``write_float8(tensors, "torchao")`` needs as metadata for torchao to read it.

    Args:
        tensors: the state dict, before it was written.
        dtype: what torchao shall take the weights for.
    """
    names = [name for name in tensors if not _is_scale_of_float8(name, tensors)]
    metadata: dict[str, str] = {}
    for name in names:
        described: dict[str, Any] = {"_type": "Tensor"}
        if tensors[name].dtype == torch.float8_e4m3fn and name.endswith(".weight"):
            scale, k = tensors[f"{name}_scale"], tensors[name].shape[1]
            described = {
                "_type": "Float8Tensor",
                "_data": {
                    "block_size": [1, k if scale.shape[1] == 1 else BLOCK],
                    "mm_config": None,
                    "act_quant_kwargs": None,
                    "kernel_preference": {"_type": "KernelPreference", "_data": "AUTO"},
                    "dtype": {"_type": "torch.dtype", "_data": str(dtype).removeprefix("torch.")},
                },
                "_tensor_data_names": ["qdata", "scale"],
            }
        metadata[name] = json.dumps(described)
    return {**metadata, "tensor_names": json.dumps(names)}


def load_float8(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Loads a checkpoint with float8 weights into a model that was built with plain linear layers.

    Every ``nn.Linear`` (or :class:`Float8Linear`) for which there is a float8 weight is replaced by a
    :class:`Float8Linear`, in place; all other tensors are loaded as by ``model.load_state_dict``. All names and shapes
    are checked before anything is changed. A tensor that the model has under several names (an ``lm_head`` tied to the
    embedding, a module that stands in several places) need be there under one of them; it stays shared.

    Args:
        model: on the device where it shall stay.
        tensors: by name, as :func:`read_float8` takes them. Layers may share them.

    Returns:
        The names of the replaced layers.

    Raises:
        ValueError: as :func:`read_float8`; a float8 weight for what is no linear layer, or one of another shape;
            tensors that the model lacks or that it has besides.
    """
    named = read_float8(tensors)
    layers: dict[str, Float8Linear] = {}
    for name, weight in named.items():
        if name.endswith(".weight") and weight.dtype == torch.float8_e4m3fn:
            path = name.removesuffix(".weight")
            layers[path] = _layer_for(model, path, named)
    taken = {f"{path}.{name}" for path, layer in layers.items() for name in layer.state_dict()}
    rest = {name: tensor for name, tensor in named.items() if name not in taken}
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    replaced = {path: model.get_submodule(path) for path in layers}
    gone = {path for module in replaced.values() for path in paths[module]}
    own = model.state_dict(keep_vars=True)  # so that what is shared is one object
    kept = {name: tensor for name, tensor in own.items() if name.rpartition(".")[0] not in gone}
    given = {id(kept[name]) for name in kept.keys() & rest.keys()}
    if missing := sorted(name for name, tensor in kept.items() if id(tensor) not in given):
        raise ValueError(f"tensors: expected all that the model has, but these are missing: {_some(missing)}")
    if unexpected := sorted(rest.keys() - kept.keys()):
        raise ValueError(f"tensors: expected names that the model has, got besides: {_some(unexpected)}")
    for name, tensor in rest.items():
        if tensor.shape != kept[name].shape:
            raise ValueError(f"{name}: expected shape {list(kept[name].shape)}, got {list(tensor.shape)}")
    model.load_state_dict(rest, strict=False)
    for path, layer in layers.items():
        module = replaced[path]
        layer.train(module.training)
        for place in paths[module]:
            parent, _, last = place.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
    return list(layers)


def _layer_for(model: nn.Module, path: str, named: Mapping[str, Tensor]) -> Float8Linear:
    try:
        module = model.get_submodule(path)
    except AttributeError as error:
        raise ValueError(f"{path}.weight: expected the name of a linear layer of the model, which has none") from error
    if type(module) is not nn.Linear and type(module) is not Float8Linear:
        raise ValueError(f"{path}.weight: expected a linear layer for float8 weights, got a {type(module).__name__}")
    weight = named[f"{path}.weight"]
    if weight.shape != (module.out_features, module.in_features):
        expected = [module.out_features, module.in_features]
        raise ValueError(f"{path}.weight: expected shape {expected}, got {list(weight.shape)}")
    bias = named.get(f"{path}.bias")
    if (bias is None) != (module.bias is None):
        raise ValueError(f"{path}.bias: expected {'none' if module.bias is None else 'one'}, got the opposite")
    device = module.weight.device
    return Float8Linear.from_tensors(
        weight.to(device).contiguous(),
        named[f"{path}.weight_scale"].to(device),
        None if bias is None else bias.to(device),
    )


def _unpacked(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Values and scales of torchao's tensors as tensors of their own."""
    found: list[tuple[str, Tensor]] = []
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".")
        values, scale = getattr(tensor, "qdata", None), getattr(tensor, "scale", None)
        if isinstance(values, Tensor) and isinstance(scale, Tensor):
            found += [(name, values), (f"{name}_scale", scale)]
        elif last == "_weight_qdata":
            found.append((f"{layer}.weight", tensor))
        elif last == "_weight_scale":
            found.append((f"{layer}.weight_scale", tensor))
        else:
            found.append((name, tensor))
    return found


def _scales_of_rows(scale: Tensor, weight: Tensor, layer: str) -> Tensor:
    """Scales of rows, or of 128 elements of each, from any shape that checkpoints give them."""
    if weight.ndim != 2:
        raise ValueError(f"{layer}.weight: expected a 2-D tensor, got shape {list(weight.shape)}")
    n, k = weight.shape
    rows, blocks = -(-n // BLOCK), -(-k // BLOCK)
    given, scale = list(scale.shape), scale.float()
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).expand(n, 1)
    elif given == [n]:
        scale = scale[:, None]
    elif given == [rows, blocks] and given not in ([n, 1], [n, blocks]):
        scale = scale.repeat_interleave(BLOCK, 0)[:n]
    elif given not in ([n, 1], [n, blocks]):
        raise ValueError(
            f"{layer}: expected one scale, or scales of shape [{n}, 1], [{n}, {blocks}] or [{rows}, {blocks}], got "
            f"{given}"
        )
    if not scale.is_meta and not scale.isfinite().all():
        raise ValueError(f"{layer}: expected finite scales, got NaN or infinity among them")
    return scale.contiguous()


def _scales_of_squares(scale: Tensor, weight: Tensor, layer: str) -> Tensor:
    blocks = -(-weight.shape[1] // BLOCK)
    wide = scale.expand(-1, blocks) if scale.shape[1] == 1 else scale
    squares = wide[::BLOCK].contiguous()
    if not torch.equal(squares.repeat_interleave(BLOCK, 0)[: len(wide)], wide):
        raise ValueError(
            f"{layer}.weight_scale: expected the same scales in all rows of each {BLOCK} (all that this format can "
            "say), got different ones"
        )
    return squares


def _is_scale_of_float8(name: str, tensors: Mapping[str, Tensor]) -> bool:
    weight = tensors.get(name.removesuffix("_scale"))
    return name.endswith(".weight_scale") and weight is not None and weight.dtype == torch.float8_e4m3fn


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
