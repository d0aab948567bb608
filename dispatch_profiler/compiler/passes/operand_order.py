"""The order of the two operands of a product, which decides whether IREE's kernels for NVIDIA's tensor cores are right.

In IREE 3.13, the kernel of a product whose result ends with an axis of its first operand exchanges elements:
it stores the value of row 0, column 8 at row 1, column 0 (seen on an H200, f16 and bf16). Exchanging the
operands does not change the product.
"""

from __future__ import annotations

from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule, operations_in

_PRODUCTS = {"arith.mulf", "arith.muli"}
_SUMS = {"arith.addf", "arith.addi"}
_CONVERSIONS = {"arith.extf", "arith.extsi", "arith.extui"}
_YIELD = "linalg.yield"
#: Types that tensor cores multiply.
_NARROW = ("f16", "bf16", "f8")


def order_operands(module: IrModule) -> None:
    """Exchange the operands of each sum of products in `module` whose result ends with an axis of the first."""
    for op in operations_in(module.operation):
        if op.name == "linalg.generic" and len(op.operands) == 3 and is_sum_of_products(op):
            _order(op)


def is_sum_of_products(op: Any) -> bool:
    """Whether exchanging the operands of a generic operation changes nothing else."""
    block = op.regions[0].blocks[0]
    names = [each.operation.name for each in block.operations]
    conversions = sum(name in _CONVERSIONS for name in names)
    left, right, _ = (each.type for each in block.arguments)
    return (
        sum(name in _PRODUCTS for name in names) == sum(name in _SUMS for name in names) == 1
        and set(names) <= _PRODUCTS | _SUMS | _CONVERSIONS | {_YIELD}
        and left == right
        and str(left).startswith(_NARROW)
        and conversions in (0, 2)
    )


def _order(op: Any) -> None:
    maps = [each.value for each in op.attributes["indexing_maps"]]
    left, right, result = axes_of(op)
    if None in (*left, *right, *result):
        return  # a convolution, whose image comes first
    own = [axis for axis in result if (axis in left) != (axis in right)]
    if own and own[-1] in left:
        first, second = op.operands[0], op.operands[1]
        op.operands[0], op.operands[1] = second, first
        swapped = [ir.AffineMapAttr.get(each) for each in (maps[1], maps[0], maps[2])]
        op.attributes["indexing_maps"] = ir.ArrayAttr.get(swapped, op.context)


def axes_of(op: Any) -> list[list[int | None]]:
    """The loop that indexes each axis of each operand; None for a sum of several loops."""
    return [[_axis(each) for each in map_.value.results] for map_ in op.attributes["indexing_maps"]]


def _axis(expression: Any) -> int | None:
    """The loop that an index consists of; None for a sum of several loops."""
    return int(expression.position) if isinstance(expression, ir.AffineDimExpr) else None
