"""Puts layers of few bits into a model, and takes them out again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from torch import nn

from aegis.quant.float8 import Float8Scheme
from aegis.quant.report import LayerReport, Report, bytes_of
from aegis.quant.scheme import Scheme
from aegis.quant.ternary import TernaryLinear
from aegis.quant.ternary_scheme import TernaryScheme

__all__ = ["SCHEMES", "ConversionRefused", "convert", "freeze", "revert"]

SCHEMES: dict[str, Scheme] = {"float8": Float8Scheme(), "ternary": TernaryScheme()}
"""What ``convert`` knows, by name."""

DEFAULT_SKIP = ("lm_head",)


class ConversionRefused(ValueError):
    """Layers that a scheme must not convert; the model is as it was. ``report`` has the reason of each."""

    def __init__(self, report: Report, refused: Sequence[LayerReport]) -> None:
        self.report = report
        shown = "\n".join(f"  {layer.name}: {layer.reason}" for layer in refused[:8])
        more = f"\n  and {len(refused) - 8} more" if len(refused) > 8 else ""
        super().__init__(
            f"model: expected layers that {report.scheme} can store, but {len(refused)} of {len(report.layers)} are "
            f"refused, and nothing was changed (name them in skip to leave them as they are):\n{shown}{more}"
        )


def convert(model: nn.Module, scheme: str, skip: Sequence[str] = DEFAULT_SKIP, **options: Any) -> Report:
    """Stores the weights of a model's linear layers in fewer bits, in place.

    Every ``nn.Linear`` becomes a layer of ``scheme``: a new module under the same name. A module that stands in several
    places is converted once and stands in all of them. All layers are checked and converted before the first is put
    in its place, so that memory holds both until then, and a model with a layer that is refused stays as it is.

    Args:
        model: any module that contains linear layers; one that is itself an ``nn.Linear`` cannot be replaced in place.
        scheme: a name in ``aegis.quant.SCHEMES``.
        skip: layers to leave as they are: ``"mlp"`` skips whatever has that name, at any depth, and all that is in it;
            ``"layers.0.mlp"`` only what is under such a path.
        options: those of the scheme, the same for every layer.

    Returns:
        A table of all linear layers: sizes, errors, and why one was left as it is. Besides the skipped, these are
        layers of a subclass of ``nn.Linear``, with hooks or a ``forward`` of their own, or whose weight is another
        module's too (an ``lm_head`` tied to the embedding).

    Raises:
        ConversionRefused: (a ValueError) the scheme cannot store a layer; nothing was changed.
        ValueError: no such scheme, a name in ``skip`` that no module has, or a model that is itself a linear layer.
        TypeError: an option that the scheme has not.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected an nn.Module, got {type(model).__name__}")
    if scheme not in SCHEMES:
        raise ValueError(f"scheme: expected one of {', '.join(map(repr, SCHEMES))}, got {scheme!r}")
    if isinstance(model, nn.Linear):
        raise ValueError(
            "model: expected a module that contains linear layers, got one that is itself a linear layer and has no "
            "parent in which it could be replaced"
        )
    _check_skip(model, skip)
    chosen = SCHEMES[scheme]
    places = _places(model, nn.Linear)
    sharers = _sharers(model)

    layers: list[LayerReport] = []
    refused: list[LayerReport] = []
    modules: dict[nn.Module, nn.Module] = {}
    for linear, names in places.items():
        assert isinstance(linear, nn.Linear)
        reason = _reason_to_leave(linear, names, skip, sharers)
        refusal = None if reason else chosen.refusal(linear, **options)
        error = None
        if not reason and not refusal:
            module = chosen.convert(linear, **options).train(linear.training)
            error = chosen.error(linear, module)
            modules[linear] = module
        layer = _layer_report(names[0], linear, modules.get(linear, linear), error, reason or refusal or "")
        layers.append(layer)
        if refusal:
            refused.append(layer)
    report = Report(scheme, tuple(layers))
    if refused:
        raise ConversionRefused(report, refused)
    for linear, module in modules.items():
        _put(model, places[linear], module)
    return report


def revert(model: nn.Module) -> int:
    """Puts an ``nn.Linear`` back wherever ``convert`` put a layer of few bits; returns how many.

    The weights are equal to those from before (though a zero comes back without its sign). Where converting lost
    something they cannot be, and nothing is changed.

    Raises:
        ValueError: a layer that was not converted without loss, or a model that is itself a converted layer.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected an nn.Module, got {type(model).__name__}")
    linears: dict[nn.Module, nn.Linear] = {}
    lossy: list[str] = []
    places: dict[nn.Module, list[str]] = {}
    for scheme in SCHEMES.values():
        if isinstance(model, scheme.layer):
            raise ValueError(f"model: expected a module that contains layers, got one that is itself {scheme.name}")
        for module, names in _places(model, scheme.layer).items():
            linear = scheme.revert(module)
            if linear is None:
                lossy.append(names[0])
            else:
                linears[module] = linear.train(module.training)
                places[module] = names
    if lossy:
        raise ValueError(
            f"model: expected layers that were converted without loss, but {len(lossy)} were not, and nothing was "
            f"changed: {', '.join(lossy[:8])}{', ...' if len(lossy) > 8 else ''}"
        )
    for module, linear in linears.items():
        _put(model, places[module], linear)
    return len(linears)


def freeze(model: nn.Module) -> int:
    """Packs every :class:`~aegis.quant.TernaryLinear` that trains (:meth:`~aegis.quant.TernaryLinear.freeze`); returns
    how many.

    Raises:
        ValueError: a layer with weights that are not finite; nothing was changed.
    """
    training: list[TernaryLinear] = []
    for name, module in model.named_modules():
        if isinstance(module, TernaryLinear) and module.float_weight is not None:
            if not bool(module.float_weight.isfinite().all()):
                raise ValueError(f"model: expected finite weights, got others in {name or 'the model itself'}")
            training.append(module)
    for module in training:
        module.freeze()
    return len(training)


def _check_skip(model: nn.Module, skip: Sequence[str]) -> None:
    if isinstance(skip, str) or not isinstance(skip, Collection) or not all(isinstance(name, str) for name in skip):
        raise ValueError(f"skip: expected a sequence of names, got {skip!r}")
    paths = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for name in skip:
        if name not in DEFAULT_SKIP and not any(_is_under(path, name) for path in paths):
            raise ValueError(f"skip: expected names of modules in the model, got {name!r}")


def _is_under(path: str, name: str) -> bool:
    return f".{name}." in f".{path}."


def _places(model: nn.Module, kind: type[nn.Module]) -> dict[nn.Module, list[str]]:
    """The modules of a class, each with every path that leads to it."""
    places: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, kind):
            places.setdefault(module, []).append(path)
    return places


def _sharers(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """The modules that hold each parameter, by its id."""
    sharers: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                sharers.setdefault(id(parameter), []).append((module, path))
    return sharers


def _reason_to_leave(
    linear: nn.Linear, names: list[str], skip: Sequence[str], sharers: dict[int, list[tuple[nn.Module, str]]]
) -> str:
    for name in skip:
        if any(_is_under(path, name) for path in names):
            return f"skipped: {name}"
    if type(linear) is not nn.Linear:
        return f"is a {type(linear).__name__}, which may do something else than nn.Linear"
    if "forward" in vars(linear):
        return "has a forward of its own"
    if _has_hooks(linear):
        return "has hooks"
    weight = linear._parameters.get("weight")
    if type(weight) is not nn.Parameter:
        return "its weight is no plain parameter"
    if weight.is_meta:
        return "its weight is on the meta device"
    for module, path in sharers.get(id(weight), []):
        if module is not linear:
            return f"its weight is that of {path or 'the model itself'} too"
    return ""


def _has_hooks(module: nn.Module) -> bool:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        module._state_dict_hooks,
        module._load_state_dict_pre_hooks,
    )
    return any(len(registered) > 0 for registered in hooks)


def _layer_report(name: str, linear: nn.Linear, module: nn.Module, error: float | None, reason: str) -> LayerReport:
    before, after = (bytes_of(chain(m.parameters(), m.buffers())) for m in (linear, module))
    return LayerReport(
        name, (linear.out_features, linear.in_features), linear.weight.dtype, before, after, error, reason
    )


def _put(model: nn.Module, paths: list[str], module: nn.Module) -> None:
    for path in paths:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, module)
