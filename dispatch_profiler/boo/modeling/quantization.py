"""Quantization of our modules by `torch.ao.quantization`, in eager mode: as torch quantizes its own.

torch looks modules up by their exact class, and takes no others. Its tables get entries for our classes, which make a
module one of torch's and then do what torch does with that. In graph mode (`prepare_fx`), `boo.modeling.convolutions`
does so when a model is traced.
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
    """The class `quantized`, whose `from_float` takes one of our modules."""

    def from_float(cls: Any, module: torch.nn.Module, *args: Any, **options: Any) -> Any:
        return quantized.from_float(restore(module), *args, **options)

    # torch asks the signature which options it may pass.
    from_float.__wrapped__ = quantized.from_float.__func__  # type: ignore[attr-defined]
    return type(quantized.__name__, (quantized,), {"from_float": classmethod(from_float)})


def _fuser(method: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function that fuses modules, for lists with ours."""

    def fuse(is_qat: bool, *modules: torch.nn.Module) -> Any:
        return method(is_qat, *(restore(each) if is_ours(each) else each for each in modules))

    return fuse
