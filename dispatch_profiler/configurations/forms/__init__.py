"""Forms of an operation: ways to compute it with kernels of other operations. A new form is one entry of `FORMS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from dispatch_profiler.configurations.forms import products
from dispatch_profiler.configurations.forms.builder import Kernel, Reduction, Step, packed_by
from dispatch_profiler.configurations.forms.convolutions import (
    CONV2D,
    CONV2D_PER_BLOCK,
    CONV2D_PER_GROUP,
    PRODUCT,
    PRODUCT_OF_FILTERS,
    PRODUCTS_OF_TAPS,
    ROUNDED_PRODUCT,
    ConvolutionLowering,
    filter_blocks,
    forward,
    geometry_along,
    input_backward,
    input_backward_of_many_phases,
    phases_along,
    weight_backward,
    weight_backward_by_taps,
)
from dispatch_profiler.configurations.forms.packing import packing_rejects, with_packed_weight
from dispatch_profiler.configurations.forms.winograd import (
    FOUR,
    TWO,
    winograd,
    winograd_rejects,
    winograd_rejects_type,
)
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, ElementType, Operation

__all__ = [
    "FORMS",
    "NOTHING_READ",
    "Form",
    "Kernel",
    "Reduction",
    "Step",
    "packed_by",
    "packed_reduction_of",
    "packing_reason",
    "reduction_of",
]


#: More would be too small to be fast, and take long to compile.
_MOST_KERNELS = 32
#: With more taps, writing and reading the products of all taps and pixels takes longer than collecting windows.
_MOST_FILTERS_OF_TAPS, _MOST_TAPS = 16, 64
#: Why a convolution has no form if its result is zero.
NOTHING_READ = "no pixel of the output reads the input, so that every element of the result is 0"


@dataclass(frozen=True)
class Form:
    """A way to compute an operation with kernels of other operations.

    `rejects` gives the reason why an operation does not have the form, None if it has it; then `reduce` gives its
    steps. `backend` is the only backend with the form, if the form was made for its code generator.
    """

    name: str
    rejects: Callable[[Operation], str | None]
    reduce: Callable[[Contraction], Reduction]
    backend: str | None = None

    def invalid_reason(self, operation: Operation, backend: str | None = None) -> str | None:
        """Why `operation` does not have this form, on `backend` if that is given; None if it has."""
        if backend and self.backend and backend != self.backend:
            return f"the form {self.name} is for {self.backend}, but the target is {backend}"
        return self.rejects(operation)


def _with_products(form: Form, rejects: products.Reason, reduce: Callable[[Contraction], Reduction]) -> Form:
    """A form of convolutions, extended to products; `rejects` gives the reason for a product."""
    of_product = products.rejects(form.name, rejects)

    def reason(operation: Operation) -> str | None:
        return of_product(operation) if operation.product else form.rejects(operation)

    def reduction(operation: Contraction) -> Reduction:
        return reduce(operation) if operation.product else form.reduce(operation)

    return replace(form, rejects=reason, reduce=reduction)


def _of_convolutions(
    name: str,
    rejects: Callable[[ConvolutionGeometry], str | None],
    reduce: Callable[[Contraction, ConvolutionGeometry], Reduction],
    rejects_type: Callable[[ElementType], str | None] = lambda type_: None,
) -> Form:
    """A form of convolutions; `rejects_type` gives the reason for the type of the inputs."""

    def reason(operation: Operation) -> str | None:
        geometry = operation.convolution
        if geometry is None:
            return f"the form {name} is for convolutions, not {operation.kind}"
        return rejects(geometry) or rejects_type(operation.element_type) or _zero_reason(geometry)

    def reduction(operation: Contraction) -> Reduction:
        assert operation.convolution is not None  # `reason`
        return reduce(operation, operation.convolution)

    return Form(name, reason, reduction)


def _zero_reason(geometry: ConvolutionGeometry) -> str | None:
    """A reason if the only window along some axis lies in the padding: no kernel would read anything."""
    axes = zip(geometry.output_size, geometry.padding, geometry.window, strict=True)
    if geometry.mode != "input_backward" and any(out == 1 and low >= window for out, low, window in axes):
        return NOTHING_READ
    return None


def _permuted_rejects(geometry: ConvolutionGeometry) -> str | None:
    if geometry.is_nhwc:
        return "the form permuted is for other convolutions than forward conv2d in nhwc"
    if geometry.mode == "weight_backward":
        return "the form permuted is not for weight_backward: use taps, im2col or im2col_t"
    if geometry.mode == "input_backward" and max(geometry.stride) > 1:
        return f"the form permuted is not for input_backward with stride {_by(geometry.stride)}: use phases"
    return None


def _blocked_rejects(geometry: ConvolutionGeometry) -> str | None:
    if geometry.variant != "dense":
        return f"the form blocked is for convolutions without groups, but this one is {geometry.variant}"
    if geometry.mode == "weight_backward":
        return "the form blocked is not for weight_backward: use taps, im2col or im2col_t"
    is_gradient = geometry.mode == "input_backward"
    filters, what = (geometry.channels, "channels") if is_gradient else (geometry.filters, "filters")
    blocks = filter_blocks(filters)
    if blocks == 1:
        return (
            f"the form blocked needs a multiple of 32 {what} and more than one block of them, not {filters}"
        )
    return _too_many("blocked", blocks, geometry)


def _phases_rejects(geometry: ConvolutionGeometry) -> str | None:
    what = "the form phases is for input_backward with a stride above 1, not for"
    if geometry.mode != "input_backward":
        return f"{what} {geometry.mode}"
    return f"{what} stride {_by(geometry.stride)}" if max(geometry.stride) == 1 else None


def _shuffled_rejects(geometry: ConvolutionGeometry) -> str | None:
    what = "the form shuffled is for input_backward with a stride above 1 and dilation 1, not for"
    if geometry.mode != "input_backward":
        return f"{what} {geometry.mode}"
    if max(geometry.stride) == 1:
        return f"{what} stride {_by(geometry.stride)}"
    if max(geometry.dilation) > 1:
        return f"{what} dilation {_by(geometry.dilation)}"
    return None if all(map(phases_along, *geometry_along(geometry))) else NOTHING_READ


def _per_group_rejects(geometry: ConvolutionGeometry) -> str | None:
    if geometry.variant != "grouped":
        return f"the form per_group is for several groups, but this convolution is {geometry.variant}"
    if geometry.mode == "weight_backward":
        return "the form per_group is not for weight_backward: use taps, im2col or im2col_t"
    return _too_many("per_group", geometry.groups, geometry)


def _too_many(form: str, kernels: int, geometry: ConvolutionGeometry) -> str | None:
    """A reason if a form has too many kernels: `kernels`, in a strided gradient for each phase."""
    if geometry.mode == "input_backward":
        kernels *= math.prod(geometry.stride)
    if kernels > _MOST_KERNELS:
        return f"the form {form} would have up to {kernels} kernels, but at most {_MOST_KERNELS} are allowed"
    return None


def _rounded_rejects(geometry: ConvolutionGeometry) -> str | None:
    if geometry.mode == "weight_backward":
        return "the form im2col_t32 is not for weight_backward: use taps, im2col or im2col_t"
    is_gradient = geometry.mode == "input_backward"
    pixels = geometry.batch * math.prod(geometry.size if is_gradient else geometry.output_size)
    has_phases = is_gradient and max(geometry.stride) > 1
    if pixels % 32 == 0 and not has_phases:
        return f"the form im2col_t32 is not for {pixels} pixels, a multiple of 32: use im2col_t"
    return None


def _taps_rejects(geometry: ConvolutionGeometry) -> str | None:
    what = "the form taps is for weight_backward with stride 1 and without groups, not for"
    if geometry.mode != "weight_backward":
        return f"{what} {geometry.mode}"
    if max(geometry.stride) > 1:
        return f"{what} stride {_by(geometry.stride)}"
    if geometry.variant != "dense":
        return f"{what} {geometry.variant}"
    return _too_many("taps", math.prod(geometry.filter_size), geometry)


def _kn2row_rejects(geometry: ConvolutionGeometry) -> str | None:
    if geometry.mode == "weight_backward":
        return "the form kn2row is not for weight_backward: use taps, im2col or im2col_t"
    if max(geometry.stride) > 1:
        return f"the form kn2row is for stride 1, not {_by(geometry.stride)}"
    is_gradient = geometry.mode == "input_backward"
    inner, outer = geometry.channels_per_group, geometry.filters_per_group
    what = "filters"
    if is_gradient:
        inner, outer, what = outer, inner, "channels of a gradient"
    if inner == 1:
        return f"the form kn2row is for sums over {'filters' if is_gradient else 'channels'}, but there is one in a group"
    if outer > _MOST_FILTERS_OF_TAPS:
        return f"the form kn2row is for at most {_MOST_FILTERS_OF_TAPS} {what} in a group, not {outer}"
    taps = math.prod(geometry.filter_size)
    if not 1 < taps <= _MOST_TAPS:
        return f"the form kn2row is for 2 to {_MOST_TAPS} taps, not {taps}"
    return None


def _any(geometry: ConvolutionGeometry) -> str | None:
    return None


def _with(lowering: ConvolutionLowering) -> Callable[[Contraction, ConvolutionGeometry], Reduction]:
    """`reduce` of a form that computes forward convolutions by `lowering`."""

    def reduce(operation: Contraction, geometry: ConvolutionGeometry) -> Reduction:
        if geometry.mode == "input_backward":
            return input_backward(operation, geometry, lowering)
        if geometry.mode == "weight_backward":
            return weight_backward(operation, geometry, filters_left=lowering is PRODUCT_OF_FILTERS)
        return forward(operation, geometry, lowering)

    return reduce


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


#: Name -> form.
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        # As one conv2d (nhwc, hwcf), or as one product (m x k, k x n), after permutations of its operands.
        _with_products(
            _of_convolutions("permuted", _permuted_rejects, _with(CONV2D)),
            products.needs_transposed_rhs,
            products.permuted,
        ),
        # As one conv2d for each block of 64 or 32 filters, and in a strided gradient for each block and offset.
        _of_convolutions("blocked", _blocked_rejects, _with(CONV2D_PER_BLOCK)),
        # As one conv2d for each offset of an input pixel from a multiple of the stride.
        _of_convolutions("phases", _phases_rejects, _with(CONV2D)),
        # As one matrix product for all phases that equally many taps reach, pixels x (channels of all these phases).
        _of_convolutions(
            "shuffled",
            _shuffled_rejects,
            lambda operation, geometry: input_backward_of_many_phases(operation, geometry, PRODUCT),
        ),
        # As one conv2d for each group, and in a strided gradient for each group and offset.
        _of_convolutions("per_group", _per_group_rejects, _with(CONV2D_PER_GROUP)),
        # As a matrix product whose left operand has the window of each pixel as a row: pixels x filters.
        # Of a filter's gradient, the left operand has an element of every window as a row: taps x filters.
        _of_convolutions("im2col", _any, _with(PRODUCT)),
        # As the transposed product: filters x pixels, and filters x taps.
        _of_convolutions("im2col_t", _any, _with(PRODUCT_OF_FILTERS)),
        # Like im2col_t, with more pixels: a multiple of 32.
        _of_convolutions("im2col_t32", _rounded_rejects, _with(ROUNDED_PRODUCT)),
        # As one matrix product of all taps, (filters x taps) x pixels, and the sum of each tap's products
        # with its pixels.
        _of_convolutions("kn2row", _kn2row_rejects, _with(PRODUCTS_OF_TAPS)),
        # A filter's gradient as one matrix product for each tap.
        _of_convolutions("taps", _taps_rejects, weight_backward_by_taps),
        # As a batch of matrix products, tiles x filters, one for each element of a transformed tile (see `winograd`).
        *(
            _of_convolutions(
                name,
                partial(winograd_rejects, name),
                winograd(transforms),
                partial(winograd_rejects_type, name),
            )
            for name, transforms in (("winograd", FOUR), ("winograd_2", TWO))
        ),
        # A matrix product as the transposed one: rhs, which is stored as n x k, times the permuted lhs.
        Form(
            "transposed",
            products.rejects("transposed", products.needs_transposed_rhs),
            products.transposed,
        ),
        # The same with lhs stored as panels of 32 of its rows.
        Form(
            "transposed_panels",
            products.rejects(
                "transposed_panels", products.needs_transposed_rhs, products.needs_panels_of_rows
            ),
            products.transposed_panels,
            "llvm-cpu",
        ),
        # A matrix product whose rhs is stored as panels of 32 columns.
        Form(
            "panels",
            products.rejects("panels", products.needs_panels_of_columns),
            products.panels,
            "llvm-cpu",
        ),
    )
}


@lru_cache(maxsize=1024)
def reduction_of(form: str, operation: Operation) -> Reduction:
    """The steps of `operation` in a form. Raises ValueError if it does not have the form."""
    reason = FORMS[form].invalid_reason(operation)
    if reason:
        raise ValueError(reason)
    return FORMS[form].reduce(operation.as_contraction())


def packing_reason(form: str, operation: Operation) -> str | None:
    """Why the weight of a form of `operation` cannot be packed at load time; None if it can."""
    return packing_rejects(form, operation, reduction_of(form, operation))


@lru_cache(maxsize=1024)
def packed_reduction_of(form: str, operation: Operation) -> Reduction:
    """The steps of `operation` in a form, with the weight packed first. Raises ValueError if it has no such form."""
    reason = packing_reason(form, operation)
    if reason:
        raise ValueError(reason)
    return with_packed_weight(operation, reduction_of(form, operation))
