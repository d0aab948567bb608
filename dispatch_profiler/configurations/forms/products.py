"""The forms of a matrix product."""

from __future__ import annotations

from dispatch_profiler.configurations.forms.builder import Builder, Reduction
from dispatch_profiler.configurations.forms.forward import product, with_wide_result
from dispatch_profiler.configurations.forms.steps import Labeled
from dispatch_profiler.operations import Contraction, Operation


def transposed_rejects(operation: Operation) -> str | None:
    """Why the product of `operation` is not computed transposed; None if it can be."""
    geometry = operation.product
    if geometry is None:
        return f"the form transposed is for matrix products, not {operation.kind}"
    if geometry.rhs_layout != "n":
        return "the form transposed is for products whose rhs is stored as n x k, in layout n"
    return None


def transposed(operation: Contraction) -> Reduction:
    """rhs (n x k) times lhs (k x m): n x m, which is then permuted. Of the operands, only lhs is permuted."""
    geometry = operation.product
    assert geometry is not None  # `transposed_rejects`
    batch = ("g",) if geometry.is_batched else ()
    lhs, rhs = operation.operands[:2]
    builder = Builder()
    stored = Labeled(lhs, (*batch, *("mk" if geometry.lhs_layout == "t" else "km")))
    columns = builder.arrange("columns", stored, (*batch, "k", "m"), store=True)
    rows = Labeled(rhs, (*batch, "n", "k"))
    sums = product(builder, rows, columns, ("n", "m", "k"), with_wide_result(operation.types))
    result = (*batch, "m", "n")
    if builder.moves(sums, result):
        sums = builder.barrier(sums)
    sums = builder.arrange("arranged", sums, result)
    return Reduction(tuple(builder.steps), sums.tensor)
