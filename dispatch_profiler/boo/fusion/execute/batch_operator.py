"""Regions whose batch is known in each call only, as an operator of torch, for graphs with dynamic shapes.

    dispatch_profiler::batch_regions(Tensor[] inputs, str spec) -> Tensor[]

`spec` is the `RunSpec.text` of the regions for some number of rows of products, or of images of convolutions. Results of
products have two axes: rows and filters. Images are in channels_last memory.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.roots._base import root_family
from dispatch_profiler.boo.fusion.spec import RegionSpec, RunSpec, parse_run, strides
from dispatch_profiler.boo.kernels.lru_memory import Memory
from dispatch_profiler.boo.launching.torch_types import OUTSIDE_OF_CUDA_GRAPHS, TYPES, Tensor
from dispatch_profiler.boo.ops.flops import count_flops
from dispatch_profiler.boo.ops.library import LIBRARY, NAMESPACE
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import UsageError
from dispatch_profiler.targets import LARGEST_BATCH

_torch: Any = torch
LIBRARY.define("batch_regions(Tensor[] inputs, str spec) -> Tensor[]", tags=OUTSIDE_OF_CUDA_GRAPHS)

Shape = Sequence[Any]
#: Runs and shapes whose calls are kept, and bytes of the memory that these keep.
_LIMIT, KEPT_BYTES = 256, 2**29


@dataclass(frozen=True)
class _TorchCall:
    """A call of more rows or images than kernels are for."""

    run: RunSpec
    kept_bytes: ClassVar[int] = 0

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return compute(self.run, inputs)

    def release_memory(self) -> None:
        """It keeps none."""


class _BatchCalls:
    """The calls of the last runs and shapes; regions with the same kernel share it, and its packed weight.

    A call of several regions keeps memory for what they pass on: all calls at most `KEPT_BYTES`, or one call alone.
    """

    def __init__(self) -> None:
        self._calls: Memory[Hashable, RunCall | _TorchCall] = Memory(_LIMIT)
        self.clear = self._calls.clear

    def __call__(self, inputs: Sequence[Tensor], spec: str) -> list[Tensor]:
        varying = tuple([tuple(inputs[at].shape) for at in _varying(spec)])
        call = self._calls.get((spec, varying, launch_settings()), lambda: _call_of(inputs, spec))
        kept = call.kept_bytes
        results = call(*inputs)
        if call.kept_bytes > kept:
            self._limit_memory()
        return results

    @property
    def kept_bytes(self) -> list[int]:
        """The bytes of memory that each call keeps; of the latest call last."""
        return [each.kept_bytes for each in self._calls.values()]

    def _limit_memory(self) -> None:
        latest, *others = reversed(self._calls.values())
        left = KEPT_BYTES - latest.kept_bytes
        for call in others:
            left -= call.kept_bytes
            if left < 0:
                call.release_memory()


BATCH_CALLS = SESSION.keep("batch_regions", _BatchCalls())


def _call_of(inputs: Sequence[Tensor], spec: str) -> RunCall | _TorchCall:
    run = sized(run_of(spec), [tuple(each.shape) for each in inputs])
    is_small = all(region.operation.operands[0].shape[0] <= LARGEST_BATCH for region, _ in run.steps)
    return RunCall(run) if is_small else _TorchCall(run)


@lru_cache(maxsize=1024)
def _varying(spec: str) -> tuple[int, ...]:
    """The places of the inputs of a run whose shapes depend on the batch."""
    run = run_of(spec)
    places = {values[at] for region, values in run.steps for at in _varying_inputs(region)}
    return tuple(at for at in range(run.inputs) if at in places)


def _varying_inputs(region: RegionSpec) -> Iterator[int]:
    one, two = region.operation.with_batch(1), region.operation.with_batch(2)
    assert one is not None and two is not None
    for source, of_one, of_two in zip(region.sources, one.operands, two.operands, strict=True):
        if of_one.shape != of_two.shape:
            yield from source.inputs


@lru_cache(maxsize=1024)
def run_of(spec: str) -> RunSpec:
    """The run with this text. Raises UsageError unless all its kernels are for any number of rows or images."""
    run = parse_run(spec)
    if not all(region.any_batch for region, _ in run.steps):
        raise UsageError("the text has regions whose kernels are not for any number of rows or images")
    return run


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


def _shapes(run: RunSpec, inputs: Sequence[Shape]) -> list[Shape]:
    """The shapes of all values of a run, which may be symbolic: of its inputs, and of the result of each region."""
    shapes = list(inputs)
    for region, values in run.steps:
        shapes.append(_result_shape(region, batch_of(region, [shapes[at] for at in values])))
    return shapes


def sized(run: RunSpec, inputs: Sequence[tuple[int, ...]]) -> RunSpec:
    """A run whose inputs have these shapes. Raises UsageError unless they fit its regions."""
    shapes = _shapes(run, inputs)
    steps = [(_sized(region, [shapes[at] for at in values]), values) for region, values in run.steps]
    return RunSpec(run.inputs, tuple(steps), run.outputs)


def _sized(region: RegionSpec, shapes: Sequence[Shape]) -> RegionSpec:
    batch = batch_of(region, shapes)
    operation = region.operation.with_batch(batch)
    if operation is None:
        raise UsageError(
            f"{region.operation.name} is no product or convolution with any number of rows or images"
        )
    for source, tensor in zip(region.sources, operation.operands, strict=True):
        given = shapes[max(source.inputs)]
        if math.prod(given) != tensor.elements:
            raise UsageError(f"{tensor.name} of {operation.name} has the shape {tensor.shape}, not {given}")
    results = ((_result_shape(region, batch), region.results[0][1]),)
    return replace(region, operation=operation, inputs=tuple(map(tuple, shapes)), results=results)


def _batch_regions(inputs: Sequence[Tensor], spec: str) -> list[Tensor]:
    if all(each.numel() for each in inputs):
        return BATCH_CALLS(inputs, spec)
    return _fake_batch_regions(inputs, spec)  # there is nothing to compute


def _fake_batch_regions(inputs: Sequence[Tensor], spec: str) -> list[Tensor]:
    run = run_of(spec)
    shapes = _shapes(run, [each.shape for each in inputs])
    readings = [
        (region.results[0][1], TYPES[region.operation.results[0].type.name]) for region, _ in run.steps
    ]
    made = [(shapes[at], *readings[at - run.inputs]) for at in run.outputs]
    return [
        inputs[0].new_empty_strided(shape, strides(shape, reading), dtype=dtype)
        for shape, reading, dtype in made
    ]


LIBRARY.impl("batch_regions", _batch_regions, "CPU")
_torch.library.register_fake(f"{NAMESPACE}::batch_regions", _fake_batch_regions, lib=LIBRARY)

BATCH_REGIONS: Any = _torch.ops.dispatch_profiler.batch_regions.default


def _flops(inputs: Sequence[Any], spec: str, **_: Any) -> int:
    """The FLOPs of the products and convolutions as torch counts them, without their steps."""
    run = run_of(spec)
    shapes = _shapes(run, [getattr(each, "shape", each) for each in inputs])
    return sum(
        batch_of(region, [shapes[at] for at in values]) * _flops_of_one(region)
        for region, values in run.steps
    )


def _flops_of_one(region: RegionSpec) -> int:
    of_one = region.operation.with_batch(1)
    assert of_one is not None
    return int(root_family(of_one).flops(of_one))


count_flops("batch_regions", _flops)
