"""The forms of a matrix product."""

from __future__ import annotations

from collections.abc import Callable

from dispatch_profiler.configurations.forms.builder import Builder, Labeled, Reduction
from dispatch_profiler.configurations.forms.forward import product, with_wide_result
from dispatch_profiler.operations import Contraction, ElementTypes, Operation, PanelMatmul, ProductGeometry

#: Columns of a panel: two vectors of f32 with AVX-512, so that the kernel reads a panel from its start to its end.
PANEL = 32
#: Why a product does not have a form, by its name and geometry.
Reason = Callable[[str, ProductGeometry], str | None]


# -- which products have a form ------------------------------------------------------------------------


def rejects(form: str, *reasons: Reason) -> Callable[[Operation], str | None]:
    """Why an operation does not have `form`: it is no matrix product, or the first of `reasons` that is not None."""

    def reason(operation: Operation) -> str | None:
        geometry = operation.product
        if geometry is None:
            return f"the form {form} is for matrix products, not {operation.kind}"
        return next(filter(None, (each(form, geometry) for each in reasons)), None)

    return reason


def needs_transposed_rhs(form: str, geometry: ProductGeometry) -> str | None:
    """A reason unless rhs is stored as n x k."""
    if geometry.rhs_layout == "n":
        return None
    return f"the form {form} is for products whose rhs is stored as n x k, in layout n"


def needs_panels_of_rows(form: str, geometry: ProductGeometry) -> str | None:
    """A reason unless the rows of lhs are several whole panels."""
    return _panels_reason(form, geometry, "rows", geometry.m)


def needs_panels_of_columns(form: str, geometry: ProductGeometry) -> str | None:
    """A reason unless the columns of rhs are several whole panels."""
    return _panels_reason(form, geometry, "columns", geometry.n)


def _panels_reason(form: str, geometry: ProductGeometry, what: str, extent: int) -> str | None:
    if geometry.is_batched:
        return f"the form {form} is for matmul, not for batch_matmul"
    if extent % PANEL or extent == PANEL:
        return (
            f"the form {form} needs a multiple of {PANEL} {what} and more than {PANEL} of them, not {extent}"
        )
    return None


# -- forms ---------------------------------------------------------------------------------------------


def permuted(operation: Contraction) -> Reduction:
    """lhs as it is stored times the permuted rhs, k x n."""
    builder, geometry = Builder(), _geometry(operation)
    lhs, rhs = _operands(operation, geometry)
    columns = builder.arrange("columns", rhs, (*rhs.axes[:-2], "k", "n"), store=True)
    layouts = (geometry.lhs_layout, "t")
    sums = product(builder, lhs, columns, ("m", "n", "k"), with_wide_result(operation.types), layouts)
    return Reduction(tuple(builder.steps), sums.tensor)


def transposed(operation: Contraction) -> Reduction:
    """rhs (n x k) times lhs (k x m): n x m, which is then permuted. Of the operands, only lhs is permuted."""
    builder = Builder()
    lhs, rhs = _operands(operation, _geometry(operation))
    columns = builder.arrange("columns", lhs, (*lhs.axes[:-2], "k", "m"), store=True)
    sums = product(builder, rhs, columns, ("n", "m", "k"), with_wide_result(operation.types.exchanged))
    result = builder.permuted(sums, (*lhs.axes[:-2], "m", "n"), operation.epilogue)
    return Reduction(tuple(builder.steps), result.tensor)


def panels(operation: Contraction) -> Reduction:
    """lhs times rhs, which is stored as panels of 32 columns: elements that the kernel reads in turn lie side by side.

    rhs 768 x 3072 -> columns 96 x 768 x 32
    """
    builder = Builder()
    lhs, rhs = _operands(operation, _geometry(operation))
    sums = _panel_product(builder, lhs, rhs, ("m", "n"), with_wide_result(operation.types))
    return Reduction(tuple(builder.steps), sums.tensor)


def transposed_panels(operation: Contraction) -> Reduction:
    """As `transposed`, with lhs stored as panels of 32 of its rows.

    lhs 384 x 768 -> columns 12 x 768 x 32
    """
    builder = Builder()
    lhs, rhs = _operands(operation, _geometry(operation))
    sums = _panel_product(builder, rhs, lhs, ("n", "m"), with_wide_result(operation.types.exchanged))
    result = builder.permuted(sums, ("m", "n"), operation.epilogue)
    return Reduction(tuple(builder.steps), result.tensor)


def _panel_product(
    builder: Builder, rows: Labeled, columns: Labeled, axes: tuple[str, str], types: ElementTypes
) -> Labeled:
    """The product with `axes`: the rows of the result and, in panels, its columns."""
    row, column = axes
    sizes = {**rows.extents, **columns.extents}
    count = sizes[column] // PANEL
    divided = builder.split(columns, column, {"p": count, column: PANEL})
    packed = builder.arrange("columns", divided, ("p", "k", column), store=True)
    read = builder.arrange("rows", rows, (row, "k"), store=True)
    kernel = PanelMatmul(sizes[row], count, PANEL, sizes["k"], types)
    sums = builder.kernel(kernel, read, packed, (row, "p", column))
    return builder.merge(sums, {row: (row,), column: ("p", column)})


def _geometry(operation: Contraction) -> ProductGeometry:
    assert operation.product is not None  # `rejects`
    return operation.product


def _operands(operation: Contraction, geometry: ProductGeometry) -> tuple[Labeled, Labeled]:
    """lhs and rhs with the axes m, n and k, and g if they are batched."""
    batch = ("g",) if geometry.is_batched else ()
    lhs, rhs = operation.operands[:2]
    return (
        Labeled(lhs, (*batch, *("mk" if geometry.lhs_layout == "t" else "km"))),
        Labeled(rhs, (*batch, *("kn" if geometry.rhs_layout == "t" else "nk"))),
    )
