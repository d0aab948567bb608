"""Checks a signature: launches it on random arguments, and compares its errors with torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.boo.driver.memory_check import check_memory
from dispatch_profiler.boo.driver.torch_functions import (
    CPU,
    has_torch,
    load_torch,
    to_numpy,
    to_torch,
    torch_function,
)
from dispatch_profiler.errors import reason_of
from dispatch_profiler.operations import DEFAULT_SEED, Distribution, ErrorBound, Operation, Reference
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.verification.inputs import draw

if TYPE_CHECKING:
    from dispatch_profiler.boo.interface import LaunchSpec

import math
from collections.abc import Mapping
from enum import Enum

from dispatch_profiler.operations import ElementType

# -- error spread ----------------------------------------------------------------------------------

# Pure statistics: how far results are from a reference, and which of two kernels deviates.


#: Standard deviations of errors count as equal up to this multiple of the other kernel's.
_STDDEV_FACTOR = 1.2
#: A mean error up to this part of the standard deviation is not a bias.
_BIAS_PART = 0.2
#: Nor is a mean error of up to this many standard errors, which random errors reach by chance.
_STANDARD_ERRORS = 4.0
#: Roundoffs of the accumulator that a reciprocal square root or a division may be off by.
_APPROXIMATIONS = 8.0
#: Correct rounding to the result's type has no bias; roundings in the accumulator may add this part of a roundoff.
_ROUNDING_BIAS = 0.1


@dataclass(frozen=True)
class ErrorSpread:
    """Sums over the errors `actual - expected` of finite elements. Spreads of the same result can be added.

    `total` and `squares` sum the errors and their squares, `inward` the errors towards zero (positive if the result is
    too small), and `expected_squares` the squares of the reference. `worst` is the largest absolute error, and
    `worst_part` the largest error divided by its bound. `beyond` counts the elements that exceed their bound, and
    `not_finite` the elements that are NaN, or infinite on one side only.
    """

    elements: int = 0
    total: float = 0.0
    squares: float = 0.0
    inward: float = 0.0
    expected_squares: float = 0.0
    worst: float = 0.0
    worst_part: float = 0.0
    beyond: int = 0
    not_finite: int = 0

    @staticmethod
    def of(actual: np.ndarray, expected: np.ndarray, bound: np.ndarray | None) -> ErrorSpread:
        """The spread of one result. `bound` limits the error of each element; None allows no error."""
        wide, should = (array.astype(np.float64).reshape(-1) for array in (actual, expected))
        finite = np.isfinite(wide) & np.isfinite(should)
        not_finite = int(np.count_nonzero(~finite & ~(wide == should)))  # NaN equals nothing
        limit = (
            np.zeros(should.shape) if bound is None else np.broadcast_to(bound, expected.shape).reshape(-1)
        )
        wide, should, limit = wide[finite], should[finite], limit[finite]
        errors = wide - should
        sizes = np.abs(errors)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(sizes == 0.0, 0.0, sizes / limit)  # an error where none is allowed is infinite
        return ErrorSpread(
            elements=int(actual.size),
            total=float(errors.sum()),
            squares=float(errors @ errors),
            inward=float(-(errors * np.sign(should)).sum()),
            expected_squares=float(should @ should),
            worst=float(sizes.max(initial=0.0)),
            worst_part=float(parts.max(initial=0.0)),
            beyond=int(np.count_nonzero(~(sizes <= limit))),
            not_finite=not_finite,
        )

    def __add__(self, other: ErrorSpread) -> ErrorSpread:
        return ErrorSpread(
            elements=self.elements + other.elements,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            inward=self.inward + other.inward,
            expected_squares=self.expected_squares + other.expected_squares,
            worst=max(self.worst, other.worst),
            worst_part=max(self.worst_part, other.worst_part),
            beyond=self.beyond + other.beyond,
            not_finite=self.not_finite + other.not_finite,
        )

    @property
    def _finite(self) -> int:
        return max(1, self.elements - self.not_finite)

    @property
    def mean(self) -> float:
        """The mean error."""
        return self.total / self._finite

    @property
    def stddev(self) -> float:
        """The standard deviation of the errors."""
        return math.sqrt(max(0.0, self.squares / self._finite - self.mean**2))

    @property
    def inward_mean(self) -> float:
        """The mean error towards zero."""
        return self.inward / self._finite

    @property
    def scale(self) -> float:
        """The root mean square of the reference."""
        return math.sqrt(self.expected_squares / self._finite)


@dataclass(frozen=True)
class Precision:
    """What determines the errors of a correct kernel: unit roundoffs of result and accumulator, and terms per sum."""

    roundoff: float
    accumulator_roundoff: float
    terms: int

    @staticmethod
    def of(result: ElementType, accumulator: ElementType, terms: int) -> Precision:
        """The precision of a result that is rounded once, from sums of `terms` terms."""
        return Precision(result.unit_roundoff, accumulator.unit_roundoff, max(1, terms))

    @property
    def _sums(self) -> float:
        """Relative error of a sum: adding terms one by one in random order errs by sqrt(terms / 2) roundoffs."""
        return self.accumulator_roundoff * (_APPROXIMATIONS + math.sqrt(self.terms))

    def largest_stddev(self, scale: float) -> float:
        """The largest standard deviation of errors to expect of results with the root mean square `scale`."""
        return scale * (self.roundoff + self._sums)

    def largest_bias(self, spread: ErrorSpread) -> float:
        """The largest mean error that is no sign of a bias."""
        chance = _STANDARD_ERRORS * spread.stddev / math.sqrt(max(1, spread.elements))
        roundings = spread.scale * (_ROUNDING_BIAS * self.roundoff + self._sums)
        return _BIAS_PART * spread.stddev + chance + roundings


class ComparedKernel(str, Enum):
    """A kernel whose results are compared with the reference."""

    IREE = "iree"
    TORCH = "torch"


class Deviates(str, Enum):
    """The kernels that deviate from the reference."""

    NEITHER = "neither"
    IREE = "iree"
    TORCH = "torch"
    BOTH = "both"


@dataclass(frozen=True)
class ResultVerdict:
    """The comparison of one result: the spread of each side, and why the side deviates (empty if it does not)."""

    name: str
    spreads: Mapping[ComparedKernel, ErrorSpread]
    reasons: Mapping[ComparedKernel, str]

    @property
    def deviates(self) -> Deviates:
        """The sides that deviate."""
        return which({side for side, reason in self.reasons.items() if reason})


def which(sides: set[ComparedKernel]) -> Deviates:
    """The set of deviating sides as a member of Deviates."""
    if len(sides) == len(ComparedKernel):
        return Deviates.BOTH
    return Deviates(next(iter(sides)).value) if sides else Deviates.NEITHER


def judge(name: str, spreads: Mapping[ComparedKernel, ErrorSpread], precision: Precision) -> ResultVerdict:
    """Compare the spreads of a result with its error bound, with each other, and with the expected errors."""
    wrong = {side: _wrong(spread) for side, spread in spreads.items()}
    reasons = {}
    for side, spread in spreads.items():
        # The spread of a wrong kernel is no yardstick.
        others = {other: spreads[other] for other in spreads if other is not side and not wrong[other]}
        reasons[side] = wrong[side] or _spread_reason(spread, others, precision) or _bias(spread, precision)
    return ResultVerdict(name, spreads, reasons)


def _wrong(spread: ErrorSpread) -> str:
    if spread.not_finite:
        return f"{spread.not_finite} of {spread.elements} elements are NaN or infinite"
    if spread.beyond:
        part = (
            f"{spread.worst_part:.3g} times" if math.isfinite(spread.worst_part) else "which allows no error"
        )
        return f"{spread.beyond} of {spread.elements} elements exceed their error bound, the worst {part}"
    return ""


def _spread_reason(
    spread: ErrorSpread, others: Mapping[ComparedKernel, ErrorSpread], precision: Precision
) -> str:
    expected = precision.largest_stddev(spread.scale)
    largest = max([expected, *(_STDDEV_FACTOR * other.stddev for other in others.values())])
    if spread.stddev <= largest:
        return ""
    ratios = [
        f"{spread.stddev / other.stddev:.3g} times {side.value}'s"
        for side, other in others.items()
        if other.stddev > 0.0
    ]
    if expected > 0.0:
        ratios.append(f"{spread.stddev / expected:.3g} times the expected one")
        reason = f"is {' and '.join(ratios)}"
    else:
        reason = "should be 0" + "".join(f" and is {ratio}" for ratio in ratios)
    return f"the standard deviation of its errors, {spread.stddev:.3g}, {reason}"


def _bias(spread: ErrorSpread, precision: Precision) -> str:
    largest = precision.largest_bias(spread)
    if abs(spread.mean) > largest:
        return f"its errors have a mean of {spread.mean:.3g}, where at most {largest:.3g} is expected"
    if abs(spread.inward_mean) > largest:
        way = "towards zero" if spread.inward_mean > 0.0 else "away from zero"
        return f"its results are off {way} by {abs(spread.inward_mean):.3g} on average, where at most {largest:.3g} is expected"
    return ""


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
        notes = f" ({self.notes})" if self.notes else ""
        return f"numerics: {self.reason or 'neither deviates'}{notes}"


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
    notes = "" if has_torch() else "torch is not installed"
    if not notes:
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
                spreads[each.position, side] += ErrorSpread.of(
                    actual, reference.expected, reference.tolerance
                )
    return NumericsVerdict(
        tuple(
            judge(
                each.name,
                {side: spreads[each.position, side] for side in sides},
                Precision.of(each.type, operation.accumulator, operation.accumulations),
            )
            for each in spec.results
        ),
        notes,
    )


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
        arrays = [(each, operands[each.position]) for each in spec.arguments]
        arguments = [array if on is None else to_torch(array, each.type, on) for each, array in arrays]
        returned = launchable(
            *(given.reshape(of.shape) for given, (of, _) in zip(arguments, arrays, strict=True))
        )
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
        tensors = [
            to_torch(array, tensor.type, on)
            for array, tensor in zip(operands, operation.operands, strict=True)
        ]
        with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
            results = function(tensors)
        return [
            to_numpy(each, result.type).reshape(result.shape)
            for each, result in zip(results, operation.results, strict=True)
        ]

    return compute
