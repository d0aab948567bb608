"""The values that an index computed in a `linalg.generic` can have."""

from __future__ import annotations

from typing import Any

from iree.compiler import ir

Range = tuple[int, int]
#: Sums beyond it may overflow on some target.
_LARGEST = 2**31 - 1


def index_range(value: Any) -> Range | None:
    """The least and the largest value of `value`, if it is a sum of constants and loop indices; otherwise None."""
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    found = None
    if op.name == "arith.constant":
        found = _of_constant(op.attributes["value"])
    elif op.name == "linalg.index":
        found = _of_loop(op)
    elif op.name in ("arith.addi", "arith.subi"):
        found = _of_sum(*map(index_range, op.operands), is_difference=op.name == "arith.subi")
    return found if found is not None and max(map(abs, found)) <= _LARGEST else None


def _of_constant(attribute: Any) -> Range | None:
    if not isinstance(attribute, ir.IntegerAttr):
        return None
    number = ir.IntegerAttr(attribute).value
    return number, number


def _of_sum(left: Range | None, right: Range | None, *, is_difference: bool) -> Range | None:
    if left is None or right is None:
        return None
    low, high = (-right[1], -right[0]) if is_difference else right
    return left[0] + low, left[1] + high


def _of_loop(index: Any) -> Range | None:
    """The iterations of the loop that `linalg.index` names: the extent of the operand's axis that the loop runs along."""
    loop, generic = ir.IntegerAttr(index.attributes["dim"]).value, index.parent.operation
    if generic.name != "linalg.generic":
        return None
    maps = ir.ArrayAttr(generic.attributes["indexing_maps"])
    for each, operand in zip(maps, generic.operands, strict=True):
        for axis, result in enumerate(ir.AffineMapAttr(each).value.results):
            if isinstance(result, ir.AffineDimExpr) and result.position == loop:
                return 0, ir.RankedTensorType(operand.type).get_dim_size(axis) - 1
    return None
