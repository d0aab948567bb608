"""Lets `torch.ao.quantization` quantize our modules like torch's, in eager mode.

torch looks up modules in tables by their exact class. `register` adds entries for our classes, which turn a module into
torch's and then call torch's function. In graph mode (`prepare_fx`), `boo.modeling.convolutions` turns modules into
torch's when a model is traced.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from dispatch_profiler.boo.modeling.convolutions import MODULES, is_ours, restore

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
