"""Batched products on NVIDIA GPUs whose reduction the compiler would pad, so that they read memory behind an operand.

Tensor cores multiply 16 elements of a reduction at a time, and IREE pads others with zeros. In IREE 3.13, a
canonical form loses the mask of reads of one row of an operand that has a batch and whose reduction is not
its last axis: rows of the padding come from whatever follows in memory, times zero. That is NaN if it happens
to be infinite or NaN (seen on an H200 in f16). Such products get tiles for the ordinary instructions of each
thread, which need no padding. With them, pointwise convolutions in f16 with 8, 24, 40 and 72 channels became
1.2 to 1.7 times as fast, one with 200 channels 1.4 times slower (H200).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.compiler.passes.applied import loops_of
from dispatch_profiler.compiler.passes.sharing import INFO

# -- operand order ---------------------------------------------------------------------------------

# The order of the two operands of a product, which decides whether IREE's kernels for NVIDIA's tensor cores are right.
#
# In IREE 3.13, the kernel of a product whose result ends with an axis of its first operand exchanges elements:
# it stores the value of row 0, column 8 at row 1, column 0 (seen on an H200, f16 and bf16). Exchanging the
# operands does not change the product.


_MULTIPLICATIONS = {"arith.mulf", "arith.muli"}
_SUMS = {"arith.addf", "arith.addi"}
_CONVERSIONS = {"arith.extf", "arith.extsi", "arith.extui"}
_YIELD = "linalg.yield"
#: Types that tensor cores multiply.
_NARROW_PREFIXES = ("f16", "bf16", "f8")


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
        sum(name in _MULTIPLICATIONS for name in names) == sum(name in _SUMS for name in names) == 1
        and set(names) <= _MULTIPLICATIONS | _SUMS | _CONVERSIONS | {_YIELD}
        and left == right
        and str(left).startswith(_NARROW_PREFIXES)
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


_PRODUCTS = ("linalg.generic", "linalg.batch_matmul")
#: Elements of a reduction that tensor cores take at a time, and types that they multiply.
_STEP = 16
_NARROW = ("f16", "bf16")
#: Elements of the result for each thread along an axis, threads of a workgroup along its two axes, elements of the
#: reduction that are loaded at a time.
_OF_THREAD = 4
_THREADS = (8, 32)
_OF_REDUCTION = 8

#: (extent, is_reduction) for each loop.
_Loops = Sequence[tuple[int, bool]]


def avoid_padding(module: IrModule) -> None:
    """Set tiles of each such product without tiles in `module`, at phase `executable-sources`."""
    with module.operation.context:
        for op in operations_in(module.operation):
            if op.name in _PRODUCTS and INFO not in op.attributes and len(op.operands) == 3:
                _set_tiles(op)


def _set_tiles(op: Any) -> None:
    loops = loops_of(op) if is_sum_of_products(op) else None
    if loops is None or str(op.regions[0].blocks[0].arguments[0].type) not in _NARROW:
        return
    left, right, result = axes_of(op)
    if None in (*left, *right):
        return  # a convolution of several taps, whose masks stay
    # Tensor cores take elements of the last reduction.
    last = max((axis for axis, (_, is_reduction) in enumerate(loops) if is_reduction), default=None)
    padded = last if last is not None and loops[last][0] % _STEP else None
    rows, columns = (_last(result, axes, other) for axes, other in ((left, right), (right, left)))
    if rows is None or columns is None or 1 in (loops[rows][0], loops[columns][0]):
        return  # the product of a matrix and a vector, which tensor cores do not compute
    if padded is None or not any(len(axes) > 2 and padded in axes[:-1] for axes in (left, right)):
        return
    op.attributes[INFO] = ir.Attribute.parse(_info(loops, *sorted((rows, columns), key=result.index)))


def _last(
    result: Sequence[int | None], axes: Sequence[int | None], other: Sequence[int | None]
) -> int | None:
    """The last axis of the result that one operand has, and the other has not."""
    return next(
        (axis for axis in reversed(result) if axis is not None and axis in axes and axis not in other), None
    )


def _info(loops: _Loops, outer: int, inner: int) -> str:
    """Tiles and pipeline for a product whose result has these two as its last axes; others are a batch."""
    thread, workgroup, reduction = [0] * len(loops), [0] * len(loops), [0] * len(loops)
    threads = 1
    for axis, (extent, is_reduction) in enumerate(loops):
        if is_reduction:
            reduction[axis] = _divisor(extent, _OF_REDUCTION)
            continue
        of_thread, most = (_OF_THREAD, _THREADS[axis == inner]) if axis in (outer, inner) else (1, 1)
        thread[axis] = _divisor(extent, of_thread)
        along = _divisor(extent // thread[axis], most)
        workgroup[axis] = thread[axis] * along
        threads *= along
    return (
        f"#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{{reduction = {reduction}, "
        f"thread = {thread}, workgroup = {workgroup}}}>, translation_info = #iree_codegen.translation_info<"
        f"pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [{threads}, 1, 1] subgroup_size = 32>>"
    )


def _divisor(extent: int, most: int) -> int:
    """The largest divisor of `extent` that is at most `most`."""
    return next(each for each in range(min(extent, most), 0, -1) if extent % each == 0)
