"""Input tensors, each drawn independently; one seed determines them all."""

from __future__ import annotations

import hashlib

import numpy as np

from dispatch_profiler.operations import Distribution, ElementType, Operation, Tensor


def draw(operation: Operation, distribution: Distribution, seed: int) -> tuple[np.ndarray, ...]:
    """Arrays for `operation.operands`, in its order, shapes and types.

    The same arguments give the same arrays on every machine; another tensor, operation,
    distribution or seed gives others.
    """
    return tuple(
        operation.draw(operand, distribution, _generator(operation, operand, distribution, seed))
        for operand in operation.operands
    )


def _generator(
    operation: Operation, operand: Tensor, distribution: Distribution, seed: int
) -> np.random.Generator:
    label = f"{operation.name} {operand.name} {distribution.value}".encode()
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(label).digest()[:8], "little")])


# -- poison ----------------------------------------------------------------------------------------

# Initial contents of a result's memory, so that an element that is never written is detected.


def poison(type_: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    """An array that no correct result equals anywhere.

    All bits set is NaN in every floating-point type here. In i32 it is -2**31 + 1, which no sum of i8
    products reaches.
    """
    if type_.is_integer:
        return np.full(shape, np.iinfo(type_.dtype).min + 1, type_.dtype)
    return np.full(int(np.prod(shape)) * type_.bytes, 0xFF, np.uint8).view(type_.dtype).reshape(shape)
