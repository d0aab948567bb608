"""The steps of a form, computed with numpy: each says by its fields what its result is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dispatch_profiler.configurations import Reduction, Step
from dispatch_profiler.operations import Tensor


def sums_of(reduction: Reduction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The sums that the steps compute from the operands `lhs` and `rhs`."""
    return computed(reduction.steps, {"lhs": lhs, "rhs": rhs})[reduction.sums.name]


def computed(steps: Sequence[Step], known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`known` tensors by name, and those that the steps make of them."""
    values = dict(known)
    for step in steps:
        assert step.result.name not in values, f"{step.result.name} is made twice"
        made = _computed(step, values)
        assert made.shape == step.result.shape, step
        values[step.result.name] = made
    return values


def _computed(step: Step, values: dict[str, np.ndarray]) -> np.ndarray:
    return {
        "pad": _pad,
        "crop": _crop,
        "gather": _gather,
        "transform": _transform,
        "sum": lambda step, values: sum(_read(each, values) for each in step.terms),
        "unsigned": lambda step, values: (_read(step.source, values) + 128) % 256,
        "reshape": _reshape,
        "barrier": lambda step, values: _read(step.source, values),
        "kernel": _kernel,
        "interleave": _interleave,
    }[step.kind](step, values)


def _read(tensor: Tensor, values: dict[str, np.ndarray]) -> np.ndarray:
    value = values[tensor.name]
    assert value.shape == tensor.shape, tensor
    return value


def _pad(step, values) -> np.ndarray:
    return np.pad(_read(step.source, values), list(zip(step.low, step.high, strict=True)))


def _crop(step, values) -> np.ndarray:
    ranges = zip(step.offsets, step.result.shape, strict=True)
    return _read(step.source, values)[tuple(slice(at, at + size) for at, size in ranges)]


def _gather(step, values) -> np.ndarray:
    grid = dict(zip(step.loops, np.indices(step.result.shape), strict=True))
    places = []
    for index, size in zip(step.indices, step.source.shape, strict=True):
        place = sum(factor * grid[loop] for loop, factor in index.terms)
        assert place.min() >= 0 and place.max() < size, (step, index)
        places.append(place)
    return _read(step.source, values)[tuple(places)]


def _transform(step, values) -> np.ndarray:
    source = _read(step.source, values)
    extents = dict(zip(step.loops, step.result.shape, strict=True))
    assert extents[step.row] == len(step.matrix)
    others = [loop for loop in step.loops if loop != step.row]
    grid = dict(zip(others, np.indices([extents[loop] for loop in others]), strict=True))
    zeros = np.zeros([extents[loop] for loop in others], int)
    places = [sum((factor * grid[loop] for loop, factor in index.terms), zeros) for index in step.indices]
    rows = np.zeros((len(step.matrix), *zeros.shape), source.dtype)
    for column in range(len(step.matrix[0])):
        at = [place + (column if axis == step.axis else 0) for axis, place in enumerate(places)]
        read = source[tuple(at)]
        for row, coefficients in enumerate(step.matrix):
            rows[row] += source.dtype.type(float(coefficients[column])) * read
    return np.moveaxis(rows, 0, step.loops.index(step.row))


def _reshape(step, values) -> np.ndarray:
    value = _read(step.source, values)
    longer, shorter = (step.result.shape, value.shape) if step.is_split else (value.shape, step.result.shape)
    assert [i for group in step.groups for i in group] == list(range(len(longer))), step
    assert tuple(math.prod(longer[i] for i in group) for group in step.groups) == shorter, step
    return value.reshape(step.result.shape)


def _kernel(step, values) -> np.ndarray:
    lhs, rhs = step.operation.operands
    assert (step.lhs.shape, step.rhs.shape) == (lhs.shape, rhs.shape), step
    assert (step.lhs.type, step.rhs.type) == (lhs.type, rhs.type), step
    assert step.result.type == step.operation.accumulator, step
    return step.operation.contract(_read(step.lhs, values), _read(step.rhs, values))


def _interleave(step, values) -> np.ndarray:
    result = np.full(step.result.shape, np.nan if step.is_complete else 0.0)
    for part, offsets in zip(step.parts, step.offsets, strict=True):
        places = zip(offsets, part.shape, step.strides, strict=True)
        at = tuple(slice(begin, begin + (n - 1) * stride + 1, stride) for begin, n, stride in places)
        assert not np.nan_to_num(result[at]).any(), "parts overlap"
        result[at] = _read(part, values)
    return result
