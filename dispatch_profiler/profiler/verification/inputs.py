"""Input tensors, each drawn independently; one seed determines them all."""

from __future__ import annotations

import hashlib

import numpy as np

from dispatch_profiler.operations import Distribution, Operation, Tensor


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
