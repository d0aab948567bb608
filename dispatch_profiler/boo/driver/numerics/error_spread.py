"""Pure statistics: how far results are from a reference, and which of two kernels deviates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dispatch_profiler.operations import ElementType

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
