"""Checks a signature: launches it on random arguments, and compares its errors with torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.boo.driver.devices import CPU, has_torch
from dispatch_profiler.boo.driver.memory_check import check_memory
from dispatch_profiler.boo.driver.numerics.error_spread import (
    ComparedKernel,
    Deviates,
    ErrorSpread,
    Precision,
    ResultVerdict,
    judge,
    which,
)
from dispatch_profiler.boo.driver.torch_functions import load_torch, to_numpy, to_torch, torch_function
from dispatch_profiler.errors import reason_of
from dispatch_profiler.operations import DEFAULT_SEED, Distribution, ErrorBound, Operation, Reference
from dispatch_profiler.profiler.providers.protocol import NotSupported
from dispatch_profiler.profiler.verification.inputs import draw

if TYPE_CHECKING:
    from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec

#: Arguments are drawn at most this many times, however small the results are.
_MOST_DRAWS = 32

#: float64 copies of all tensors: the drawn operands, the reference, its bounds and the errors.
_WIDE_COPIES = 4

#: Operands -> results, both in the order and shapes of the operation; None for results that are not returned.
Compute = Callable[[Sequence[np.ndarray]], Sequence["np.ndarray | None"]]


@dataclass(frozen=True)
class CheckOptions:
    """The device (`cpu` or `cuda:N`), the first seed, and the least number of elements compared for each result."""

    device: str = CPU
    seed: int = DEFAULT_SEED
    min_samples: int = 1000


@dataclass(frozen=True)
class NumericsVerdict:
    """The comparison of every result of a signature. `notes` says why torch was not compared, if so."""

    results: tuple[ResultVerdict, ...]
    notes: str = ""

    @property
    def deviates(self) -> Deviates:
        """The sides that deviate in any result."""
        return which({side for result in self.results for side, reason in result.reasons.items() if reason})

    @property
    def has_failed(self) -> bool:
        """Whether IREE deviates."""
        return self.deviates in (Deviates.IREE, Deviates.BOTH)

    @property
    def reason(self) -> str:
        """`iree: result: 3 of 512 elements are NaN or infinite`; empty if neither deviates."""
        return "; ".join(
            f"{side.value}: {result.name}: {reason}"
            for result in self.results
            for side, reason in result.reasons.items()
            if reason
        )

    def __str__(self) -> str:
        told = "neither deviates" if self.deviates is Deviates.NEITHER else self.reason
        return f"numerics: {told}" + (f" ({self.notes})" if self.notes else "")


def check_numerics(
    spec: LaunchSpec,
    launchable: Callable[..., Any],
    options: CheckOptions,
    error_bound: ErrorBound | None = None,
) -> NumericsVerdict:
    """Compare `launchable`, which launches `spec`, and torch with the float64 reference.

    `error_bound` is needed for a kernel that computes sums in another way than the operation defines. Without torch, or
    if torch does not compute the operation, only IREE is compared. Raises DispatchProfilerError if a launch fails.
    """
    sides: dict[ComparedKernel, Compute] = {ComparedKernel.IREE: launched(spec, launchable, options.device)}
    notes = ""
    if not has_torch():
        notes = "torch is not installed"
    else:
        try:
            sides[ComparedKernel.TORCH] = by_torch(spec.operation, options.device)
        except NotSupported as error:
            notes = reason_of(error)
    return compare_sides(spec, sides, options, error_bound, notes)


def compare_sides(
    spec: LaunchSpec,
    sides: dict[ComparedKernel, Compute],
    options: CheckOptions,
    error_bound: ErrorBound | None = None,
    notes: str = "",
) -> NumericsVerdict:
    """Compare `sides` on arguments that are drawn until each result has `min_samples` elements."""
    operation = spec.operation
    check_memory(operation, wide_copies=_WIDE_COPIES)
    spreads = {(each.position, side): ErrorSpread() for each in spec.results for side in sides}
    smallest = min(operation.results[each.position].elements for each in spec.results)
    draws = min(_MOST_DRAWS, -(-options.min_samples // max(1, smallest)))
    for seed in range(options.seed, options.seed + draws):
        operands = draw(operation, Distribution.REALS, seed)
        references = operation.reference(operands)
        for side, compute in sides.items():
            own = _references(operation, operands, references, side, error_bound)
            results = compute(operands)
            for each in spec.results:
                actual, reference = results[each.position], own[each.position]
                assert actual is not None
                at = each.position, side
                spreads[at] += ErrorSpread.of(actual, reference.expected, reference.tolerance)
    return NumericsVerdict(tuple(_judged(spec, each, sides, spreads) for each in spec.results), notes)


def _judged(
    spec: LaunchSpec,
    result: TensorSpec,
    sides: dict[ComparedKernel, Compute],
    spreads: dict[tuple[int, ComparedKernel], ErrorSpread],
) -> ResultVerdict:
    operation = spec.operation
    precision = Precision.of(result.type, operation.accumulator, operation.accumulations)
    return judge(result.name, {side: spreads[result.position, side] for side in sides}, precision)


def _references(
    operation: Operation,
    operands: Sequence[np.ndarray],
    references: Sequence[Reference],
    side: ComparedKernel,
    error_bound: ErrorBound | None,
) -> Sequence[Reference]:
    """`references` with the error bounds of `side`: torch may round between steps, a kernel may have its own bound."""
    if side is ComparedKernel.TORCH and operation.rounds_between_steps:
        return operation.reference(operands, stepwise=True)
    if side is ComparedKernel.IREE and error_bound is not None:
        return operation.reference(operands, error_bound=error_bound)
    return references


def launched(spec: LaunchSpec, launchable: Callable[..., Any], device: str) -> Compute:
    """Compute with launches on torch's tensors, or on arrays if torch is not installed."""
    on = load_torch().device(device) if has_torch() else None

    def compute(operands: Sequence[np.ndarray]) -> Sequence[np.ndarray | None]:
        arguments = []
        for each in spec.arguments:
            array = operands[each.position]
            argument = array if on is None else to_torch(array, each.type, on)
            arguments.append(argument.reshape(each.shape))
        returned = launchable(*arguments)
        results = returned if isinstance(returned, tuple) else (returned,)
        ordered: list[np.ndarray | None] = [None] * len(spec.operation.results)
        for each, result in zip(spec.results, results, strict=True):
            ordered[each.position] = to_numpy(result, each.type).reshape(each.kernel_shape)
        return ordered

    return compute


def by_torch(operation: Operation, device: str) -> Compute:
    """Compute with torch in full precision, without TF32. Raises NotSupported if torch does not compute `operation`."""
    torch = load_torch()
    on = torch.device(device)
    function = torch_function(operation, on)

    def compute(operands: Sequence[np.ndarray]) -> Sequence[np.ndarray | None]:
        typed = zip(operands, operation.operands, strict=True)
        tensors = [to_torch(array, tensor.type, on) for array, tensor in typed]
        with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
            results = function(tensors)
        typed_results = zip(results, operation.results, strict=True)
        return [to_numpy(each, result.type).reshape(result.shape) for each, result in typed_results]

    return compute
