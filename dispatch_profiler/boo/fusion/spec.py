"""Fused regions, and runs of regions, as plain data: operations, and how operands are made from torch's tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.values import CacheUpdate
from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.kernels.uses import UsedKernel
from dispatch_profiler.boo.ops.layouts import dense_strides
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.operations import Operation, Tensor, operation_from_dict

#: Limits: characters of a text, and values of a run.
_MAX_TEXT, MAX_VALUES = 2_000_000, 10_000
#: Limits: inputs of a region, and axes of a tensor.
_MAX_INPUTS, MAX_AXES = 64, 5
#: Readings: how an operand is read from the memory of tensors. Name -> number of tensors.
#:
#:   rows       dense and row major
#:   bytes      the same, of unsigned bytes, which kernels take as i8
#:   channels   with the axis of the channels, the second one, last in memory: torch's channels_last
#:   positions  whole numbers along an axis, which are checked, and which kernels take as i32
#:   filter     like `channels`, for a weight: filters, taps, channels
#:   scale      weight / sqrt(variance + eps) of a batch norm with (weight, variance)
#:   shift      bias - mean * scale of a batch norm with (weight, variance, bias, mean)
READINGS = {"rows": 1, "bytes": 1, "channels": 1, "positions": 1, "filter": 1, "scale": 2, "shift": 4}
#: Readings that read an input otherwise than where it is in memory. What is read of weights is kept.
DERIVED = frozenset(("positions", "filter", "scale", "shift"))
#: Stands for the place of an input that a batch norm lacks, such as its weight.
ABSENT = -1


class Retention(str, Enum):
    """How long an operand that is read from inputs of the graph is kept.

    LIVE operands are read in each call. COMPARED operands are kept while every byte of their weights is the same. FROZEN
    operands are kept until `refreeze`.
    """

    LIVE = "live"
    COMPARED = "compared"
    FROZEN = "frozen"


@dataclass(frozen=True)
class OperandSource:
    """How an operand of the kernel is made: a reading of `READINGS`, and the places of its tensors among the inputs."""

    reading: str
    inputs: tuple[int, ...]
    eps: float = 0.0


@dataclass(frozen=True)
class RegionSpec:
    """A region: one operation on torch's tensors.

    inputs: the shapes of the region's inputs.
    sources: how each operand of the operation is made from the inputs.
    results: the shapes and readings (`rows` or `channels`) of the results.
    constants: places of inputs that the graph does not compute, such as parameters.
    packs_weight: whether the second operand is a weight, of a graph without gradients, that may be packed.
    frozen: places of frozen parameters and buffers.
    any_batch: whether its kernel, which packs the weight, is for any number of rows.
    """

    operation: Operation
    inputs: tuple[tuple[int, ...], ...]
    sources: tuple[OperandSource, ...]
    results: tuple[tuple[tuple[int, ...], str], ...]
    constants: tuple[int, ...] = ()
    packs_weight: bool = False
    frozen: tuple[int, ...] = ()
    any_batch: bool = False

    @property
    def kernel(self) -> UsedKernel:
        """What its kernel is known by among the kernels of this process."""
        return self.operation, self.packs_weight

    @property
    def data(self) -> dict[str, Any]:
        """The region as plain data, for JSON."""
        return {
            "operation": self.operation.to_dict(),
            "inputs": self.inputs,
            "sources": [[each.reading, each.inputs, each.eps] for each in self.sources],
            "results": self.results,
            "constants": self.constants,
            "packs_weight": self.packs_weight,
            "frozen": self.frozen,
            "any_batch": self.any_batch,
        }

    @property
    def update(self) -> CacheUpdate | None:
        """The update of an operand, whose memory the result then has; None if the result has memory of its own."""
        operation = self.operation
        return operation.update if isinstance(operation, OperatorProgram) else None

    def retention(self, source: OperandSource) -> Retention:
        """How long the operand of a source is kept, unless it is a packed weight."""
        places = {at for at in source.inputs if at != ABSENT}
        if places.issubset(self.frozen):
            return Retention.FROZEN
        is_kept = source.reading in ("scale", "shift") and places.issubset(self.constants)
        return Retention.COMPARED if is_kept else Retention.LIVE


@dataclass(frozen=True)
class RegionSignature:
    """The `Signature` of a region. Launches take and return tensors with one axis, in the order of the kernel's memory.

    So a region can take the results of another region, whatever their shapes are.
    """

    operation: Operation

    @property
    def func_name(self) -> str:
        """See `Signature`."""
        return self.operation.name

    @property
    def launch(self) -> LaunchSpec:
        """See `Signature`."""
        operation = self.operation
        return LaunchSpec(operation, _flat(operation.operands), _flat(operation.results))


def strides(shape: Sequence[int], reading: str) -> tuple[int, ...]:
    """The strides, in elements, of a result with torch's shape. `reading` is `rows` or `channels`."""
    axes = range(len(shape))
    return dense_strides(shape, axes if reading == "rows" else [0, *axes[2:], 1])


def _flat(tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(each.name, (each.elements,), each.type, each.shape, at) for at, each in enumerate(tensors)
    )


@dataclass(frozen=True)
class RunSpec:
    """Regions that are computed one after another, without operators of torch in between.

    Values are numbered: first the inputs of the run, then the results of each region. `steps` are regions with the
    numbers of the values that they take; `outputs` are the numbers of the values that the run returns.
    """

    inputs: int
    steps: tuple[tuple[RegionSpec, tuple[int, ...]], ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, region: RegionSpec) -> RunSpec:
        """The run of one region, which returns all of its results."""
        count = len(region.inputs)
        return cls(
            count,
            ((region, tuple(range(count))),),
            tuple(range(count, count + len(region.results))),
        )

    @cached_property
    def text(self) -> str:
        """Canonical JSON: equal runs have equal texts, in every process."""
        data = {
            "inputs": self.inputs,
            "steps": [[spec.data, list(values)] for spec, values in self.steps],
            "outputs": self.outputs,
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @cached_property
    def results(self) -> tuple[tuple[tuple[int, ...], str, str], ...]:
        """Shape, reading and element type of each output."""
        every = [
            (shape, reading, tensor.type.name)
            for spec, _ in self.steps
            for (shape, reading), tensor in zip(spec.results, spec.operation.results, strict=True)
        ]
        return tuple(every[each - self.inputs] for each in self.outputs)

    @cached_property
    def in_place(self) -> dict[int, int]:
        """Results that have the memory of an input of the run: the number of the value -> the input."""
        found, made = {}, self.inputs
        for spec, values in self.steps:
            if spec.update is not None:
                (at,) = spec.sources[spec.update.cache].inputs
                found[made] = values[at]
            made += len(spec.results)
        return found

    @cached_property
    def updated_inputs(self) -> tuple[int, ...]:
        """The inputs that the run writes to."""
        return tuple(sorted(set(self.in_place.values())))

    @cached_property
    def input_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """The shape of each input; None if no region takes it."""
        shapes: list[tuple[int, ...] | None] = [None] * self.inputs
        for spec, values in self.steps:
            for value, shape in zip(values, spec.inputs, strict=True):
                if value < self.inputs:
                    shapes[value] = shape
        return tuple(shapes)


@lru_cache(maxsize=1024)
def parse_run(text: str) -> RunSpec:
    """Inverse of `RunSpec.text`. Raises UsageError for any other text."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise UsageError(f"the text of a run must have at most {_MAX_TEXT} characters")
    try:
        run = _run(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, DispatchProfilerError) as error:
        raise UsageError(f"the text is not a run of regions: {error}"[:300]) from error
    if run.text != text:
        raise UsageError("the text is not a run of regions: it is not in the canonical form")
    return run


def _run(data: Any) -> RunSpec:
    check_keys(data, {"inputs", "steps", "outputs"})
    inputs = whole_number(data["inputs"], 0, MAX_VALUES)
    values, steps = inputs, []
    for region, taken in checked_list(data["steps"], MAX_VALUES):
        spec = _region(region)
        places = tuple(whole_number(each, 0, values - 1) for each in checked_list(taken))
        if len(places) != len(spec.inputs):
            raise ValueError(f"{spec.operation.name} takes {len(spec.inputs)} values, not {len(places)}")
        steps.append((spec, places))
        values += len(spec.results)
    outputs = tuple(
        whole_number(each, inputs, values - 1) for each in checked_list(data["outputs"], MAX_VALUES)
    )
    if not outputs or len(set(outputs)) != len(outputs):
        raise ValueError("outputs must be different results of regions, at least one")
    run = RunSpec(inputs, tuple(steps), outputs)
    if any(each >= inputs for each in run.in_place.values()):
        raise ValueError("a region updates what is no input of the run")
    return run


def check_keys(data: Any, expected: set[str]) -> None:
    """Raise ValueError unless `data` is an object with these keys."""
    if not isinstance(data, dict) or set(data) != expected:
        raise ValueError(f"expected an object with {', '.join(sorted(expected))}")


def _region(data: Any) -> RegionSpec:
    fields = {"operation", "inputs", "sources", "results", "constants", "packs_weight", "frozen", "any_batch"}
    check_keys(data, fields)
    inputs = tuple(map(_shape, checked_list(data["inputs"])))
    sources = tuple(_source(each, len(inputs)) for each in checked_list(data["sources"]))
    results = tuple(_result(*each) for each in checked_list(data["results"]))
    constants, frozen = (
        tuple(whole_number(each, 0, len(inputs) - 1) for each in checked_list(data[name]))
        for name in ("constants", "frozen")
    )
    packs_weight, any_batch = data["packs_weight"], data["any_batch"]
    if not (isinstance(packs_weight, bool) and isinstance(any_batch, bool)):
        raise ValueError("packs_weight and any_batch must be true or false")
    spec = RegionSpec(
        _operation(data["operation"]), inputs, sources, results, constants, packs_weight, frozen, any_batch
    )
    _check_sizes(spec)
    return spec


def _operation(data: Any) -> Operation:
    if isinstance(data, dict) and data.get("kind") == OperatorProgram.kind:
        return OperatorProgram.from_dict(data)
    return operation_from_dict(data)


def _check_sizes(spec: RegionSpec) -> None:
    """Raise ValueError unless operands and results have as many elements as the tensors that they are read from."""
    operands, results = spec.operation.operands, spec.operation.results
    if len(operands) != len(spec.sources) or len(results) != len(spec.results):
        raise ValueError("the operation has other numbers of operands and results")
    for tensor, source in zip(operands, spec.sources, strict=True):
        if math.prod(spec.inputs[max(source.inputs)]) != math.prod(tensor.shape):
            raise ValueError(f"the operand {tensor.name} has {tensor.shape}")
    for tensor, (shape, _) in zip(results, spec.results, strict=True):
        if math.prod(shape) != math.prod(tensor.shape):
            raise ValueError(f"the result {tensor.name} has {tensor.shape}, not {shape}")


def _source(data: Any, inputs: int) -> OperandSource:
    reading, places, eps = data
    if reading not in READINGS or len(checked_list(places)) != READINGS[reading]:
        raise ValueError(f"unknown reading {str(reading)[:40]!r}")
    if type(eps) is not float or not 0.0 <= eps < 1e6:
        raise ValueError(f"eps {str(eps)[:40]}")
    least = ABSENT if reading in ("scale", "shift") else 0
    return OperandSource(reading, tuple(whole_number(each, least, inputs - 1) for each in places), eps)


def _result(shape: Any, reading: Any) -> tuple[tuple[int, ...], str]:
    extents = _shape(shape)
    if reading not in ("rows", "channels"):
        raise ValueError(f"unknown reading {str(reading)[:40]!r} of a result")
    if reading == "channels" and len(extents) < 2:
        raise ValueError("an image has at least 2 axes")
    return extents, str(reading)


def _shape(value: Any) -> tuple[int, ...]:
    if len(checked_list(value)) > MAX_AXES:
        raise ValueError(f"at most {MAX_AXES} axes are supported")
    return tuple(whole_number(each, 1, 2**40) for each in value)


def checked_list(value: Any, most: int = _MAX_INPUTS) -> list[Any]:
    """`value`, if it is a list of at most `most` elements. Raises ValueError."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} elements")
    return value


def whole_number(value: Any, least: int, most: int) -> int:
    """`value`, if it is an integer from `least` to `most`. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected a whole number from {least} to {most}, but got {str(value)[:40]}")
    return value
