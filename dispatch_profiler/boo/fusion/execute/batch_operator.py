"""A region whose number of rows is known in each call only, as an operator of torch, for graphs with dynamic shapes.

    dispatch_profiler::batch_region(Tensor[] inputs, str spec) -> Tensor

`spec` is the `RunSpec.text` of the region for some number of rows. The result has two axes: rows and filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.spec import RegionSpec, RunSpec, parse_run
from dispatch_profiler.boo.launching.torch_types import OUTSIDE_OF_CUDA_GRAPHS, TYPES, Tensor
from dispatch_profiler.boo.ops.flops import count_flops
from dispatch_profiler.boo.ops.library import LIBRARY, NAMESPACE
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import UsageError
from dispatch_profiler.targets import LARGEST_BATCH

_torch: Any = torch
LIBRARY.define("batch_region(Tensor[] inputs, str spec) -> Tensor", tags=OUTSIDE_OF_CUDA_GRAPHS)


class _BatchCalls:
    """The calls of the last 256 regions and shapes; regions with the same kernel share it, and its packed weight."""

    def __init__(self) -> None:
        @lru_cache(maxsize=256)
        def call(
            spec: str, shapes: tuple[tuple[int, ...], ...], settings: LaunchSettings
        ) -> Callable[..., list[Tensor]]:
            run = run_for(region_of(spec), shapes)
            ((rows, _), _, _) = run.results[0]
            return RunCall(run) if rows <= LARGEST_BATCH else lambda *inputs: compute(run, inputs)

        self.of, self.clear = call, call.cache_clear


_calls = SESSION.keep("batch_regions", _BatchCalls())


def region_of(spec: str) -> RegionSpec:
    """The only region of a run. Raises UsageError for other texts."""
    run = parse_run(spec)
    (region, _), *others = run.steps
    if others or not region.any_batch:
        raise UsageError("the text is not a product whose kernel is for any number of rows")
    return region


def run_for(region: RegionSpec, shapes: Sequence[tuple[int, ...]]) -> RunSpec:
    """The run of a region whose inputs have these shapes. Raises UsageError unless they fit the region."""
    (lhs,), (_, terms) = region.sources[0].inputs, region.operation.operands[0].shape
    rows = math.prod(shapes[lhs]) // terms
    sized = region.operation.with_batch(rows)
    if sized is None:
        raise UsageError(f"{region.operation.name} is no product with any number of rows")
    for source, tensor in zip(region.sources, sized.operands, strict=True):
        (place,) = source.inputs
        if math.prod(shapes[place]) != tensor.elements:
            raise UsageError(
                f"{tensor.name} of {sized.name} has the shape {tensor.shape}, not {shapes[place]}"
            )
    results = ((sized.results[0].shape, "rows"),)
    return RunSpec.of(replace(region, operation=sized, inputs=tuple(shapes), results=results))


def _batch_region(inputs: Sequence[Tensor], spec: str) -> Tensor:
    shapes = tuple(tuple(each.shape) for each in inputs)
    if not all(map(math.prod, shapes)):
        return _fake_batch_region(inputs, spec)  # there is nothing to compute
    (result,) = _calls.of(spec, shapes, launch_settings())(*inputs)
    return result


def _fake_batch_region(inputs: Sequence[Tensor], spec: str) -> Tensor:
    region = region_of(spec)
    (place,), (_, terms) = region.sources[0].inputs, region.operation.operands[0].shape
    lhs, result = inputs[place], region.operation.results[0]
    is_last = lhs.shape[-1] == terms
    rows = math.prod(lhs.shape[:-1]) if is_last else lhs.numel() // terms
    return lhs.new_empty((rows, result.shape[1]), dtype=TYPES[result.type.name])


LIBRARY.impl("batch_region", _batch_region, "CPU")
_torch.library.register_fake(f"{NAMESPACE}::batch_region", _fake_batch_region, lib=LIBRARY)

BATCH_REGION: Any = _torch.ops.dispatch_profiler.batch_region.default


def _flops(inputs: Sequence[Any], spec: str, **_: Any) -> int:
    """The FLOPs of the product as torch counts them, without its steps."""
    region = region_of(spec)
    (place,) = region.sources[0].inputs
    shape = inputs[place] if not isinstance(inputs[place], torch.Tensor) else inputs[place].shape
    return 2 * math.prod(shape) * region.operation.results[0].shape[1]


count_flops("batch_region", _flops)
