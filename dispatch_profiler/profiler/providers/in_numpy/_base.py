"""What numpy needs to know of a family of operations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import numpy as np

from dispatch_profiler.families import find_family
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.protocol import NotSupported

#: (operands, results) -> None: writes the results.
NumpyComputation = Callable[..., None]


class NumpyFamily(abc.ABC):
    """How numpy computes a family of operations. Raises NotSupported if numpy computes something else."""

    @abc.abstractmethod
    def method(self, kind: str) -> str:
        """The method that computes a kind of the family, as tables name it: `im2col`."""

    @abc.abstractmethod
    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The operands as `computation` reads them, in memory of their own."""

    @abc.abstractmethod
    def computation(self, operation: Operation) -> NumpyComputation:
        """A function of `operands` and results; other memory that it needs is allocated once."""

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`."""
        return False


class NumpyReduction(NumpyFamily):
    """A family that numpy computes in a few passes over its operands, which stay as they are."""

    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """See `NumpyFamily.operands`. numpy converts other types element by element, and sums in themselves."""
        if operation.element_type != operation.accumulator:
            raise NotSupported(
                f"numpy computes {operation.element_type.name} one element at a time, and sums in that type"
            )
        return [np.array(each, order="C") for each in arrays]


def numpy_family(operation: Operation) -> NumpyFamily:
    """How numpy computes the family of `operation`. Raises NotSupported."""
    found = find_family(__package__, operation.family, NumpyFamily)  # type: ignore[type-abstract]
    if found is None:
        raise NotSupported(f"numpy does not support {operation.kind}")
    return found
