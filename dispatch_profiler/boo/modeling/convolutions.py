"""`torch.nn.Conv1d`, `Conv2d` and `Conv3d`, computed by `boo_conv`, and functions that put them into models.

They derive from torch's modules: arguments (plus `freeze`), initialization, parameters, `state_dict` and `repr` are the
same, and code that looks for convolutions finds them. Graphs of `torch.fx` call them as modules, like torch's own.
`torch.jit.script` compiles torch's computation instead, since scripts cannot call Python.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.nn.functional as functional
from torch._jit_internal import is_scripting
from torch.fx import Proxy
from torch.nn.utils import parametrize

from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops import boo_conv
from dispatch_profiler.errors import UsageError, did_you_mean


def _renamed(method: Any) -> Any:
    """A copy of a method of torch under another name, since scripts find methods by their names."""
    copy = FunctionType(method.__code__, method.__globals__, "computed_by_torch")
    copy.__annotations__ = method.__annotations__
    return copy


def _computed(module: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padding = module.padding
    if module.padding_mode != "zeros":
        input = functional.pad(input, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = 0
    return boo_conv(
        input, weight, bias, module.stride, padding, module.dilation, module.groups, freeze=module.freeze
    )


def _called(module: Any, input: Tensor) -> Tensor:
    if isinstance(input, Proxy):
        return _traced(module, input)
    return module._conv_forward(input, module.weight, module.bias)


def _traced(module: Any, input: Proxy) -> Any:
    """A call of the module in a graph of `torch.fx`, which would otherwise trace into modules of other packages.

    For quantization, which knows only torch's classes, the module becomes torch's. The graph still traces into modules
    with hooks, which the tracer has already called, and into a module that is the root of the trace.
    """
    tracer: Any = input.tracer
    has_hooks = module._forward_hooks or module._forward_pre_hooks
    path = next((name for name, each in tracer.root.named_modules() if each is module), "")
    if not path or has_hooks:
        return module.computed_by_torch(input, module.weight, module.bias)
    if type(tracer).__name__ == "QuantizationTracer":
        restore(module)
    return tracer.create_proxy("call_module", path, (input,), {})


class _BooConvolution(torch.nn.modules.conv._ConvNd):
    """What the modules share. It takes `freeze` in addition to the arguments of torch's module."""

    # Not annotated: scripts would read the annotation.
    freeze = None  # type: bool | None
    #: What a script calls: of each class its own.
    computed_by_torch = _renamed(torch.nn.Conv2d._conv_forward)

    def __init__(self, *args: Any, freeze: bool | None = None, **options: Any) -> None:
        """The arguments of torch's module, and `freeze`, which is passed to `boo_conv`."""
        super().__init__(*args, **options)
        self.freeze = freeze

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The result for a batch of images, or one image."""
        if not is_scripting():
            return _called(self, input)
        return self.computed_by_torch(input, self.weight, self.bias)

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return _computed(self, input, weight, bias)


class BooConv1d(_BooConvolution, torch.nn.Conv1d):
    """`torch.nn.Conv1d`, computed by `boo_conv`."""

    #: What a script calls.
    computed_by_torch = _renamed(torch.nn.Conv1d._conv_forward)


class BooConv2d(_BooConvolution, torch.nn.Conv2d):
    """`torch.nn.Conv2d`, computed by `boo_conv`."""

    #: What a script calls.
    computed_by_torch = _renamed(torch.nn.Conv2d._conv_forward)


class BooConv3d(_BooConvolution, torch.nn.Conv3d):
    """`torch.nn.Conv3d`, computed by `boo_conv`."""

    #: What a script calls.
    computed_by_torch = _renamed(torch.nn.Conv3d._conv_forward)


#: Spatial axes -> torch's module, and ours.
MODULES: dict[int, tuple[type[torch.nn.Module], type[torch.nn.Module]]] = {
    1: (torch.nn.Conv1d, BooConv1d),
    2: (torch.nn.Conv2d, BooConv2d),
    3: (torch.nn.Conv3d, BooConv3d),
}


def is_ours(module: torch.nn.Module) -> bool:
    """Whether `boo_conv` computes a module."""
    return isinstance(module, (BooConv1d, BooConv2d, BooConv3d))


def restore(module: torch.nn.Module) -> torch.nn.Module:
    """Turn one of our modules into torch's, in place."""
    theirs = next(theirs for theirs, ours in MODULES.values() if isinstance(module, ours))
    return with_class(module, theirs)


def with_class(module: torch.nn.Module, wanted: type[torch.nn.Module]) -> torch.nn.Module:
    """Change the class of `module` to `wanted`, and return the module. Its parametrizations stay."""
    if torch.nn.utils.parametrize.is_parametrized(module):
        # Like torch: a parametrized module has a class of its own, with a property for each parametrized tensor.
        wanted = type(f"Parametrized{wanted.__name__}", (wanted,), {**vars(type(module))})
    module.__class__ = wanted
    return module


# -- quantization ----------------------------------------------------------------------------------

# Lets `torch.ao.quantization` quantize our modules like torch's, in eager mode.
#
# torch looks up modules in tables by their exact class. `register` adds entries for our classes, which turn a module into
# torch's and then call torch's function. In graph mode (`prepare_fx`), `boo.modeling.convolutions` turns modules into
# torch's when a model is traced.


_MAPPINGS = (
    "DEFAULT_QAT_MODULE_MAPPINGS",
    "DEFAULT_STATIC_QUANT_MODULE_MAPPINGS",
    "DEFAULT_REFERENCE_STATIC_QUANT_MODULE_MAPPINGS",
)


def register() -> None:
    """Add our modules to torch's tables, if this version of torch has them."""
    try:
        from torch.ao.quantization import fuser_method_mappings, quantization_mappings
    except ImportError:
        return
    for name in _MAPPINGS:
        mapping: MutableMapping[Any, Any] = getattr(quantization_mappings, name, {})
        for theirs, ours in MODULES.values():
            if theirs in mapping:
                mapping[ours] = _converter(mapping[theirs])
    fusers: MutableMapping[Any, Any] = getattr(fuser_method_mappings, "_DEFAULT_OP_LIST_TO_FUSER_METHOD", {})
    ours_of = dict(MODULES.values())
    for types, method in list(fusers.items()):
        if any(each in ours_of for each in types):
            fusers[tuple(ours_of.get(each, each) for each in types)] = _fuser(method)


def _converter(quantized: Any) -> Any:
    """A subclass of `quantized` whose `from_float` takes one of our modules."""

    def from_float(cls: Any, module: torch.nn.Module, *args: Any, **options: Any) -> Any:
        return quantized.from_float(restore(module), *args, **options)

    # torch reads from the signature which options it may pass.
    from_float.__wrapped__ = quantized.from_float.__func__  # type: ignore[attr-defined]
    return type(quantized.__name__, (quantized,), {"from_float": classmethod(from_float)})


def _fuser(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, torch's function that fuses modules, for lists that contain our modules."""

    def fuse(is_qat: bool, *modules: torch.nn.Module) -> Any:
        return method(is_qat, *(restore(each) if is_ours(each) else each for each in modules))

    return fuse


# -- replacement -----------------------------------------------------------------------------------

# `replace_convs_with_boo`: lets `boo_conv` compute the convolutions of a model. `restore_convs` undoes it.


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
