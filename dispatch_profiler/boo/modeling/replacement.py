"""`replace_convs_with_boo`: lets `boo_conv` compute the convolutions of a model. `restore_convs` undoes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.nn.utils import parametrize

from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.modeling.convolutions import MODULES, is_ours, restore, with_class
from dispatch_profiler.errors import UsageError, did_you_mean

Model = TypeVar("Model", bound=torch.nn.Module)
_ATTRIBUTES = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "padding_mode",
)
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class Replacement:
    """A convolution of a model: its name, the module, and why it was not replaced (empty if it was)."""

    name: str
    module: torch.nn.Module
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'the model'}: {self.reason or f'computed by {type(self.module).__name__}'}"


def replace_convs_with_boo(
    model: Model,
    *,
    allowed_spatial_dims: Sequence[int] = (1, 2, 3),
    kwarg_mapping: Mapping[int, Mapping[str, Any]] | None = None,
    where: Callable[[str, torch.nn.Module], bool] | None = None,
    report: Callable[[Replacement], object] | None = None,
    freeze: bool | None = None,
) -> Model:
    """Let `boo_conv` compute the convolutions of `model`, and return the model.

    Modules are changed in place, and only their class changes: parameters, buffers, hooks, parametrizations and the
    training flag stay, as do modules that occur several times and references from elsewhere. A model that is itself a
    convolution is replaced, too. Subclasses of torch's convolutions are not, since they may compute something else.

    allowed_spatial_dims: numbers of spatial axes of the convolutions to replace.
    kwarg_mapping: number of spatial axes -> values that attributes must have, such as
        `{2: {"stride": (1, 1), "groups": 1}}`; a number is meant for each axis.
    where: (name, module) -> whether to replace the module.
    report: called with a `Replacement` for each convolution; for example, `print`.
    freeze: as in `boo_conv`, for the replaced convolutions.

    Raises UsageError if `model` is not a module, for other numbers of axes, and for an attribute that a module does not
    have. Nothing is changed then.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"replace_convs_with_boo takes a torch.nn.Module, but got {model!r}")
    filters = dict(kwarg_mapping or {})
    for axes in (*allowed_spatial_dims, *filters):
        if axes not in MODULES:
            raise UsageError(f"a convolution has 1, 2 or 3 spatial axes, but got {axes!r}")
    replacements = [
        Replacement(name, module, _reason(name, module, allowed_spatial_dims, filters, where))
        for name, module in model.named_modules()
        if _axes(module) is not None
    ]
    for each in replacements:
        if not each.reason:
            with_class(each.module, dict(MODULES.values())[_own_class(each.module)])
            each.module.freeze = freeze  # type: ignore[assignment]
        _log.info("%s", each)
        if report is not None:
            report(each)
    return model


def restore_convs(model: Model) -> Model:
    """Undo `replace_convs_with_boo`: turn our modules in `model` into torch's, in place. Returns the model.

    For tools that know only torch's classes or operators, such as exporters to other runtimes. Raises UsageError if
    `model` is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"restore_convs takes a torch.nn.Module, but got {model!r}")
    for module in list(model.modules()):
        if is_ours(module):
            restore(module)
    return model


def replace_conv2d_with_boo_conv(model: Model, **attributes: Any) -> Model:
    """`replace_convs_with_boo` for `Conv2d` modules whose attributes have these values, such as `stride=(1, 1)`."""
    return replace_convs_with_boo(model, allowed_spatial_dims=(2,), kwarg_mapping={2: attributes})


def _axes(module: torch.nn.Module) -> int | None:
    """The number of spatial axes of a convolution, including subclasses of torch's; None for other modules."""
    return next((axes for axes, (theirs, _) in MODULES.items() if isinstance(module, theirs)), None)


def _own_class(module: torch.nn.Module) -> type:
    """The class of a module without its parametrizations, for which torch makes a subclass per module."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def _reason(
    name: str,
    module: torch.nn.Module,
    allowed: Sequence[int],
    filters: Mapping[int, Mapping[str, Any]],
    where: Callable[[str, torch.nn.Module], bool] | None,
) -> str:
    """Why a convolution is not replaced; empty if it is. Raises UsageError."""
    axes = _axes(module)
    assert axes is not None
    if is_ours(module):
        return f"it is already a {_own_class(module).__name__}"
    if _own_class(module) is not MODULES[axes][0]:
        return f"{_own_class(module).__name__} is a subclass of {MODULES[axes][0].__name__}"
    if axes not in allowed:
        return f"it has {axes} spatial axes"
    for attribute, value in filters.get(axes, {}).items():
        if not hasattr(module, attribute):
            raise UsageError(
                f"{type(module).__name__} has no attribute {attribute!r}",
                hint=did_you_mean(attribute, _ATTRIBUTES),
            )
        own = getattr(module, attribute)
        if own != _like(own, value):
            return f"its {attribute} is {own}"
    return "" if where is None or where(name, module) else "where(...) is False"


def _like(own: Any, value: Any) -> Any:
    """`value` as a tuple if the attribute is a tuple: 1 or [1, 1] -> (1, 1)."""
    if isinstance(own, tuple) and isinstance(value, int):
        return (value,) * len(own)
    return tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value
