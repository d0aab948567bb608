"""`torch.nn.Conv1d`, `Conv2d` and `Conv3d`, computed by `boo_conv`.

They derive from torch's modules: arguments (plus `freeze`), initialization, parameters, `state_dict` and `repr` are the
same, and code that looks for convolutions finds them. Graphs of `torch.fx` call them as modules, like torch's own.
`torch.jit.script` compiles torch's computation instead, since scripts cannot call Python.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as functional
from torch._jit_internal import is_scripting
from torch.fx import Proxy

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops import boo_conv


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
    options = module.stride, padding, module.dilation, module.groups
    return boo_conv(input, weight, bias, *options, freeze=module.freeze)


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
