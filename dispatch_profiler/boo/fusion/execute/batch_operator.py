"""A region whose batch is known in each call only, as an operator of torch, for graphs with dynamic shapes.

    dispatch_profiler::batch_region(Tensor[] inputs, str spec) -> Tensor

`spec` is the `RunSpec.text` of the region for some number of rows of a product, or of images of a convolution. The result
of a product has two axes: rows and filters. Images are in channels_last memory.
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
from dispatch_profiler.boo.fusion.roots._base import root_family
from dispatch_profiler.boo.fusion.spec import RegionSpec, RunSpec, parse_run, strides
from dispatch_profiler.boo.launching.torch_types import OUTSIDE_OF_CUDA_GRAPHS, TYPES, Tensor
from dispatch_profiler.boo.ops.flops import count_flops
from dispatch_profiler.boo.ops.library import LIBRARY, NAMESPACE
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import UsageError
from dispatch_profiler.targets import LARGEST_BATCH

_torch: Any = torch
LIBRARY.define("batch_region(Tensor[] inputs, str spec) -> Tensor", tags=OUTSIDE_OF_CUDA_GRAPHS)

Shape = Sequence[Any]


class _BatchCalls:
    """The calls of the last 256 regions and shapes; regions with the same kernel share it, and its packed weight."""

    def __init__(self) -> None:
        @lru_cache(maxsize=256)
        def call(
            spec: str, shapes: tuple[tuple[int, ...], ...], settings: LaunchSettings
        ) -> Callable[..., list[Tensor]]:
            region = region_of(spec)
            run = run_for(region, shapes)
            is_small = batch_of(region, shapes) <= LARGEST_BATCH
            return RunCall(run) if is_small else lambda *inputs: compute(run, inputs)

        self.of, self.clear = call, call.cache_clear


_calls = SESSION.keep("batch_regions", _BatchCalls())


def region_of(spec: str) -> RegionSpec:
    """The only region of a run. Raises UsageError for other texts."""
    run = parse_run(spec)
    (region, _), *others = run.steps
    if others or not region.any_batch:
        raise UsageError("the text is not one region whose kernel is for any number of rows or images")
    return region


def batch_of(region: RegionSpec, shapes: Sequence[Shape]) -> Any:
    """The number of rows, or of images, of the inputs with these shapes, which may be symbolic."""
    (lhs,) = region.sources[0].inputs
    if _has_images(region):
        return shapes[lhs][0]
    _, terms = region.operation.operands[0].shape
    is_last = shapes[lhs][-1] == terms
    return math.prod(shapes[lhs][:-1]) if is_last else math.prod(shapes[lhs]) // terms


def _has_images(region: RegionSpec) -> bool:
    ((_, reading),) = region.results
    return reading == "channels"


def _result_shape(region: RegionSpec, batch: Any) -> tuple[Any, ...]:
    """Of images in torch's order of axes, or of rows."""
    ((shape, _),) = region.results
    return (batch, *shape[1:]) if _has_images(region) else (batch, region.operation.results[0].shape[1])


def run_for(region: RegionSpec, shapes: Sequence[tuple[int, ...]]) -> RunSpec:
    """The run of a region whose inputs have these shapes. Raises UsageError unless they fit the region."""
    batch = batch_of(region, shapes)
    sized = region.operation.with_batch(batch)
    if sized is None:
        raise UsageError(
            f"{region.operation.name} is no product or convolution with any number of rows or images"
        )
    for source, tensor in zip(region.sources, sized.operands, strict=True):
        given = shapes[max(source.inputs)]
        if math.prod(given) != tensor.elements:
            raise UsageError(f"{tensor.name} of {sized.name} has the shape {tensor.shape}, not {given}")
    results = ((_result_shape(region, batch), region.results[0][1]),)
    return RunSpec.of(replace(region, operation=sized, inputs=tuple(shapes), results=results))


def _batch_region(inputs: Sequence[Tensor], spec: str) -> Tensor:
    shapes = tuple(tuple(each.shape) for each in inputs)
    if not all(map(math.prod, shapes)):
        return _fake_batch_region(inputs, spec)  # there is nothing to compute
    (result,) = _calls.of(spec, shapes, launch_settings())(*inputs)
    return result


def _fake_batch_region(inputs: Sequence[Tensor], spec: str) -> Tensor:
    region = region_of(spec)
    shape = _result_shape(region, batch_of(region, [each.shape for each in inputs]))
    type_ = TYPES[region.operation.results[0].type.name]
    return inputs[0].new_empty_strided(shape, strides(shape, region.results[0][1]), dtype=type_)


LIBRARY.impl("batch_region", _batch_region, "CPU")
_torch.library.register_fake(f"{NAMESPACE}::batch_region", _fake_batch_region, lib=LIBRARY)

BATCH_REGION: Any = _torch.ops.dispatch_profiler.batch_region.default


def _flops(inputs: Sequence[Any], spec: str, **_: Any) -> int:
    """The FLOPs of the product or convolution as torch counts them, without its steps."""
    region = region_of(spec)
    batch = batch_of(region, [getattr(each, "shape", each) for each in inputs])
    of_one = region.operation.with_batch(1)
    assert of_one is not None
    return int(batch * root_family(of_one).flops(of_one))


count_flops("batch_region", _flops)
