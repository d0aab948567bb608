"""Runs of regions as an operator of torch, for graphs that compilers such as inductor compile.

    dispatch_profiler::regions(Tensor[] inputs, str spec) -> Tensor[]
    dispatch_profiler::updating_regions.results2(Tensor(a!)[] updated, Tensor[] inputs, str spec) -> (Tensor, Tensor)

The second one is for runs that write to inputs, which are `updated`, in the order of their places. It has an overload for
each number of results.
`spec` is `RunSpec.text`, so that other processes can use a graph from inductor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
from dispatch_profiler.boo.fusion.execute.calls import RunCall, empty_results
from dispatch_profiler.boo.fusion.execute.repeated_calls import RepeatedCall
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.roots._base import root_family
from dispatch_profiler.boo.fusion.spec import RunSpec, parse_run
from dispatch_profiler.boo.launching.torch_types import EXACT_STRIDES, OUTSIDE_OF_CUDA_GRAPHS, Tensor
from dispatch_profiler.boo.ops.flops import count_flops
from dispatch_profiler.boo.ops.library import LIBRARY, NAMESPACE, packet
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.boo.weights.derivations import check_given
from dispatch_profiler.errors import UsageError

#: The mode in which torch checks whether operators return their inputs.
_FIRST_CALL = "_AnalyzeCustomOpInputOutputMode"
_torch: Any = torch
LIBRARY.define(
    "regions(Tensor[] inputs, str spec) -> Tensor[]", tags=(EXACT_STRIDES, *OUTSIDE_OF_CUDA_GRAPHS)
)


class _RunCalls:
    """The calls of the last 256 runs: their kernels, and operands that derive from parameters."""

    def __init__(self) -> None:
        @lru_cache(maxsize=256)
        def call(spec: str, settings: LaunchSettings) -> RunCall:
            return RunCall(parse_run(spec))

        self.of, self.clear = call, call.cache_clear


_calls = SESSION.keep("regions", _RunCalls())


def _regions(inputs: Sequence[Tensor], spec: str) -> list[Tensor]:
    return _calls.of(spec, launch_settings())(*inputs)


def _fake_regions(inputs: Sequence[Tensor], spec: str) -> list[Tensor]:
    """Raises UsageError unless the inputs have the shapes of `spec`."""
    run = parse_run(spec)
    expected, got = run.input_shapes, [tuple(each.shape) for each in inputs]
    if len(got) != len(expected) or any(
        shape is not None and shape != one for shape, one in zip(expected, got, strict=False)
    ):
        raise UsageError(f"the regions take tensors of shapes {list(expected)}, but got {got}")
    return empty_results(run, inputs[0])


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("regions", _regions, _device)
_torch.library.register_fake(f"{NAMESPACE}::regions", _fake_regions, lib=LIBRARY)

REGIONS: Any = _torch.ops.dispatch_profiler.regions.default


# -- runs that write to inputs ---------------------------------------------------------------------


@cache
def _updating_operator(results: int) -> Any:
    """The operator for this number of results: torch makes no operator functional that writes and returns a list."""
    name, returned = f"updating_regions.results{results}", ", ".join(["Tensor"] * results)
    returned = returned if results == 1 else f"({returned})"
    LIBRARY.define(
        f"{name}(Tensor(a!)[] updated, Tensor[] inputs, str spec) -> {returned}",
        tags=(EXACT_STRIDES, *OUTSIDE_OF_CUDA_GRAPHS),
    )
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, _updating_regions, device)
    _torch.library.register_fake(f"{NAMESPACE}::{name}", _fake_updating_regions, lib=LIBRARY)
    return getattr(packet("updating_regions"), f"results{results}")


def _updating_regions(updated: Sequence[Tensor], inputs: Sequence[Tensor], spec: str) -> Any:
    return _unlisted(_regions(_merged(updated, inputs, parse_run(spec)), spec))


def _fake_updating_regions(updated: Sequence[Tensor], inputs: Sequence[Tensor], spec: str) -> Any:
    return _unlisted(_fake_regions(_merged(updated, inputs, parse_run(spec)), spec))


def _unlisted(results: Sequence[Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _merged(updated: Sequence[Any], others: Sequence[Any], run: RunSpec) -> list[Any]:
    """The inputs of a run, in their order. Raises UsageError for other numbers of them."""
    places = run.updated_inputs
    if len(updated) != len(places) or len(others) != run.inputs - len(places):
        raise UsageError(
            f"the regions update {len(places)} of {run.inputs} tensors, but got {len(updated)} and {len(others)}"
        )
    given, left = dict(zip(places, updated, strict=True)), iter(others)
    return [given[at] if at in given else next(left) for at in range(run.inputs)]


# Operators of graphs that inductor has in its cache exist before it loads them.
for _results in range(1, 9):
    _updating_operator(_results)


def is_run(target: Any) -> bool:
    """Whether the operator `target` computes runs."""
    return target is REGIONS or getattr(target, "overloadpacket", None) is packet("updating_regions")


def call_arguments(run: RunSpec, inputs: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The operator that computes a run, and its arguments. `inputs` are the run's inputs, or nodes of a graph."""
    places = run.updated_inputs
    if not places:
        return REGIONS, (list(inputs), run.text)
    others = [each for at, each in enumerate(inputs) if at not in places]
    return _updating_operator(len(run.outputs)), ([inputs[at] for at in places], others, run.text)


def run_of(node: Any) -> tuple[RunSpec, list[Any]]:
    """The run of a graph's node that calls a run, and the nodes of the run's inputs."""
    run = parse_run(node.args[-1])
    if node.target is REGIONS:
        return run, list(node.args[0])
    updated, others, _ = node.args
    return run, _merged(updated, others, run)


class DirectCall:
    """A run called without torch's dispatcher, except while a mode such as `FlopCounterMode` observes operators."""

    def __init__(self, spec: RunSpec, *, strict: bool = False) -> None:
        """`strict` is as in `RunCall`."""
        self._spec = spec
        self._call = RunCall(spec, strict=strict)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs of the run. Weights may be None as in `RunCall`."""
        if _torch._C._len_torch_dispatch_stack() and _is_observed():
            check_given(inputs)
            target, arguments = call_arguments(self._spec, inputs)
            results = target(*arguments)
            return [results] if isinstance(results, torch.Tensor) else list(results)
        return self._call(*inputs)

    def repeated(self, inputs: Sequence[Tensor]) -> RepeatedCall | None:
        """As `RunCall.repeated`."""
        return self._call.repeated(inputs)


def direct_function(spec: RunSpec, number: int, *, strict: bool) -> Callable[..., list[Tensor]]:
    """A `DirectCall` as a function for graphs, whose name in the graph's code has `number`."""
    call = DirectCall(spec, strict=strict)

    def regions(*inputs: Tensor) -> list[Tensor]:
        return call(*inputs)

    regions.__name__ = regions.__qualname__ = f"regions_{number}"
    return regions


def _is_observed() -> bool:
    """Whether a mode is active, except the mode with which torch checks the first call of a model."""
    return any(type(each).__name__ != _FIRST_CALL for each in _get_current_dispatch_mode_stack())


def _flops(*arguments: Any, **_: Any) -> int:
    """The FLOPs of a run as torch counts them: of products and convolutions, without their steps."""
    operations = (region.operation for region, _ in parse_run(arguments[-1]).steps)
    return sum(root_family(each).flops(each) for each in operations if not isinstance(each, OperatorProgram))


for _name in ("regions", "updating_regions"):
    count_flops(_name, _flops)
