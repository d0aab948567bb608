"""What `torch.utils.flop_counter.FlopCounterMode` counts for our operators: as many operations as for torch's own.

torch counts products and convolutions, and neither norms nor biases. Importing its counter also imports Triton where that
is installed, which takes long. So formulas are registered once the program imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from math import prod
from types import ModuleType
from typing import Any

from dispatch_profiler.boo.ops.library import packet

_COUNTER = "torch.utils.flop_counter"
#: Operator -> its formula, until it is registered. Formulas take the operator's arguments, with shapes in place of tensors,
#: and `out_shape`.
_waiting: dict[str, Callable[..., int]] = {}
Shape = Sequence[int]


def count_flops(name: str, formula: Callable[..., int]) -> None:
    """Let `formula` count the operations of the operator `name` of our namespace."""
    _waiting[name] = formula
    if _COUNTER in sys.modules:
        _register(sys.modules[_COUNTER])
    elif not any(isinstance(each, _AfterImport) for each in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _register(counter: ModuleType) -> None:
    for name in list(_waiting):
        counter.register_flop_formula(packet(name))(_waiting.pop(name))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Registers the formulas after torch's counter was imported; it finds no module itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders find for torch's counter, with a loader that registers formulas."""
        if name != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


# -- convolutions --------------------------------------------------------------------------------------


def _convolution(x: Shape, w: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(w) * out_shape[0] * prod(out_shape[2:])


def _input_backward(dy: Shape, w: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(w) * dy[0] * prod(dy[2:])


def _weight_backward(dy: Shape, x: Shape, w: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """As torch's formula, in which groups do not count."""
    return 2 * dy[0] * prod(dy[1:]) * x[1] * prod(w[2:])


#: Operator -> formula, for the operators of `boo.ops.conv`, which registers them.
CONVOLUTION_FORMULAS: dict[str, Callable[..., int]] = {
    "convolution": _convolution,
    "convolution_input_backward": _input_backward,
    "convolution_weight_backward": _weight_backward,
}
