"""Split reductions: a product's reduction is cut into slices, which are computed in parallel and then added up.

Long sums are always split where a configuration allows it. A sum of n products that are added one after another has an
error of up to n roundoffs; of s slices of n / s products, of up to n / s + s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dispatch_profiler.operations import ElementType, ErrorBound, Loop, Operation

#: The most products that are added one after another, by the bits of their factors. The products of 16-bit factors are
#: rounded to 16 bits in the end, which hides the errors of longer sums.
_LONGEST = {32: 768, 16: 2**16}
#: Products in a slice, at least; more if the slices of a long sum would otherwise outnumber the products of a slice.
SLICE = 512
#: Lengths of slices are multiples of this where they can be chosen.
_TILE = 16
#: Slices of channels: a step of a convolution multiplies up to this many channels.
_ALIGNED = 8


@dataclass(frozen=True)
class SlicedSums(ErrorBound):
    """Sums of slices, each in order: no partial sum has more than `longest` additions."""

    longest: int

    def longest_chain(self, operation: Operation) -> int:
        return min(self.longest, operation.accumulations)


def split_suffix(split_k: int) -> str:
    """The suffix of a configuration's name for a split reduction: `_splitk4`, or empty."""
    return f"_splitk{split_k}" if split_k > 1 else ""


def split_loops(operation: Operation, split_k: int) -> tuple[Loop, ...]:
    """Loops of `operation` with its reduction split into `split_k` parallel slices.

    split_k=4:  m, n, k=128  ->  split=4, m, n, k=32

    A reduction that the slices do not divide is filled up with zeros.
    """
    if split_k == 1:
        return operation.loops
    cut = (
        Loop(loop.name, -(-loop.extent // split_k), loop.iterator) if loop.iterator == "reduction" else loop
        for loop in operation.loops
    )
    return (Loop("split", split_k, "parallel"), *cut)


def slices_of_long_sum(operation: Operation, *, multiple: int = 1) -> int:
    """Slices in which the products of a long sum are added up; 1 for other operations.

    A slice has a multiple of `multiple` products. All slices together have no more elements than the operands, so that
    they take no more time to read.
    """
    terms, contraction = operation.accumulations, operation.contraction
    if contraction is None or contraction.convolution is not None or operation.accumulator.name != "f32":
        return 1
    if terms <= longest_sum(operation.element_type):
        return 1
    read = sum(each.elements for each in operation.operands[:2])
    wanted = min(_wanted_slices(terms), read // contraction.result.elements)
    fitting = [each for each in range(wanted, 2 * wanted) if each > 1 and -(-terms // each) % multiple == 0]
    exact = (each for each in fitting if terms % each == 0)
    return next(exact, fitting[0] if fitting else 1)


def longest_sum(type_: ElementType) -> int:
    """The most products of factors of `type_` that are added one after another."""
    return _LONGEST.get(type_.bits, _LONGEST[16])


def _wanted_slices(terms: int) -> int:
    """Slices of about sqrt(terms) products each, and of at least `SLICE`."""
    return -(-terms // max(SLICE, 2 ** round(math.log2(terms) / 2.0)))


def sliceable_extent(terms: int, type_: ElementType) -> int:
    """The least extent from `terms` on that equal slices of a long sum divide, whose lengths suit tiles."""
    if terms <= longest_sum(type_):
        return terms
    slices = _wanted_slices(terms)
    return slices * (-(-terms // (slices * _TILE)) * _TILE)


def lengths_of_slices(extent: int, products: int, type_: ElementType, *, most: int) -> tuple[int, ...]:
    """Lengths of at most `most` slices of an axis of `extent` elements, each of which adds `products` products.

    No slice adds more products of factors of `type_` than `longest_sum`, if `most` is enough. Slices of one
    length are preferred, then lengths with the largest common divisor with `_ALIGNED`.
    """
    count = min(-(-extent * products // longest_sum(type_)), most, extent)
    if count == 1:
        return (extent,)
    equal = [each for each in range(count, 1 + min(2 * count - 1, most, extent)) if extent % each == 0]
    if equal:
        chosen = max(equal, key=lambda each: math.gcd(extent // each, _ALIGNED))
        return (extent // chosen,) * chosen
    length = -(-extent // count)
    if length >= 4 * _ALIGNED:
        length = -(-length // _ALIGNED) * _ALIGNED
    whole, rest = divmod(extent, length)
    return (*(length,) * whole, *([rest] if rest else []))


def sliced_bound(operation: Operation, slices: int) -> ErrorBound | None:
    """The bound on the error of sums of slices; None without slices."""
    return SlicedSums(-(-operation.accumulations // slices) + slices) if slices > 1 else None


def split_invalid_reason(operation: Operation, split_k: int) -> str | None:
    """Why `operation` cannot be split; only a plain matmul can, into slices of equal length."""
    if split_k == 1:
        return None
    if operation.product is None or operation.product.is_batched:
        return f"split-k is defined for matmul, not for {operation.kind}"
    if operation.accumulations % split_k:
        return f"{split_k} slices do not divide k={operation.accumulations}"
    return None
