"""Input tensors: every one drawn afresh, all of them determined by one seed."""

from __future__ import annotations

import hashlib
import math
from enum import Enum

import numpy as np

from dispatch_profiler.operations import DEFAULT_SEED as DEFAULT_SEED
from dispatch_profiler.operations import Operation, Tensor

#: Whole numbers larger than this test nothing more.
_LARGEST_INTEGER = 7


class Distribution(str, Enum):
    """What inputs hold."""

    #: Whole numbers so small that every sum is exact, in any order: results must be equal.
    INTEGERS = "integers"
    #: Real values over the type's useful range: results must be within a rounding bound.
    REALS = "reals"


def draw(operation: Operation, distribution: Distribution, seed: int) -> tuple[np.ndarray, ...]:
    """Arrays for `operation.inputs`, in its order, shapes and types.

    The same arguments give the same arrays on every machine; another tensor, operation,
    distribution or seed gives others.
    """
    return tuple(
        _draw(operation, tensor, distribution, _generator(operation, tensor, distribution, seed))
        for tensor in operation.inputs
    )


def _generator(
    operation: Operation, tensor: Tensor, distribution: Distribution, seed: int
) -> np.random.Generator:
    label = f"{operation.name} {tensor.role} {distribution.value}".encode()
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(label).digest()[:8], "little")])


def _draw(
    operation: Operation, tensor: Tensor, distribution: Distribution, rng: np.random.Generator
) -> np.ndarray:
    if distribution is Distribution.INTEGERS:
        return _integers(operation, tensor, rng)
    if tensor.type.is_integer:
        # All values of the type: integers are exact whatever they are.
        info = np.iinfo(np.int8)
        return rng.integers(info.min, info.max, tensor.shape, tensor.type.dtype, endpoint=True)
    values = rng.uniform(-1.0, 1.0, tensor.shape)
    if tensor.role == "rhs" and operation.types.input.bits > 8:
        # Keep sums near 1, where activations bend; f8 has no room for small factors.
        values *= math.sqrt(3.0 / operation.accumulations)
    elif tensor.role == "rhs":
        # A sum of K products has a deviation of sqrt(K) / 3: keep eight of them in the result.
        room = float(operation.types.output.finfo().max) / 8.0
        values *= min(1.0, 3.0 * room / math.sqrt(operation.accumulations))
    return values.astype(tensor.type.dtype)


def _integers(operation: Operation, tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    amplitude, density = integer_range(operation)
    values = rng.integers(-amplitude, amplitude, tensor.shape, np.int32, endpoint=True)
    if density < 1.0 and tensor.role != "bias":
        values *= rng.random(tensor.shape, np.float32) < density
    return values.astype(tensor.type.dtype)


def integer_range(operation: Operation) -> tuple[int, float]:
    """(amplitude, density): whole numbers up to `amplitude`, and how many are not zero.

    `accumulations * amplitude**2` stays below what the accumulator holds exactly and the result
    holds at all. Where even amplitude 1 is too much, enough entries are zero that sums stay far
    below it.
    """
    types = operation.types
    room = float(types.accumulator.exact_integers)
    if not types.output.is_integer:
        room = min(room, float(types.output.finfo().max))
    room -= _LARGEST_INTEGER  # for a bias
    largest = min(_LARGEST_INTEGER, types.input.exact_integers)
    amplitude = min(largest, math.isqrt(max(0, int(room / operation.accumulations))))
    if amplitude >= 1:
        return amplitude, 1.0
    # A sum of about K * density**2 terms of magnitude 1: an eighth of the room on average.
    return 1, math.sqrt(room / 8.0 / operation.accumulations)
