"""Matrix products: mm, addmm and bmm, which linear layers become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from dispatch_profiler.boo.fusion.nodes import QUANTISED, Node, NotFusible, aten, check_alike, shape, value
from dispatch_profiler.boo.fusion.roots._base import Begin, Begun, RootFamily, RootTraits, read
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Matmul, Operation
from dispatch_profiler.operations.epilogues import Epilogue, Step

MATRIX_PRODUCT = "matrix_product"
#: Rows at most of products that read a quantised weight as it is stored. With more, kernels for f32 are faster.
_MOST_QUANTISED_ROWS = 16


def _product(node: Node) -> Begun:
    """mm, addmm or bmm. The bias of addmm is a step; an operand that is a transpose is read as it is stored.

    Raises NotFusible.
    """
    bias = None
    lhs, rhs = node.args[-2:]
    if node.target is aten.addmm.default:
        bias = node.args[0]
        if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
            raise NotFusible("its alpha or beta is not 1")
        if len(shape(bias)) != 1:
            raise NotFusible("what it adds is no vector")
        if shape(bias) != shape(node)[-1:]:
            raise NotFusible("what it adds broadcasts")
    type_ = check_alike(lhs, rhs, bias)
    (m, k), n = shape(lhs)[-2:], shape(rhs)[-1]
    (lhs, of_lhs), (rhs, of_rhs), weight_type = _stored_operand(lhs), _stored_operand(rhs), type_
    quantised = _quantised(rhs)
    if quantised is not None and of_lhs == "t" and m <= _MOST_QUANTISED_ROWS:
        stored, layout = quantised
        if (layout == "t") == (of_rhs == "n"):
            rhs, of_rhs, weight_type = stored, "n", QUANTISED
    types = ElementTypes(type_, weight_type, type_)

    def operation(epilogue: Epilogue) -> Operation:
        if node.target is aten.bmm.default:
            return BatchMatmul(shape(node)[0], m, n, k, types, of_lhs, of_rhs, epilogue)
        return Matmul(m, n, k, types, of_lhs, of_rhs, epilogue)

    operands = (read("rows", lhs), read("rows", rhs))
    return Begun(
        operation=operation,
        nodes=(node,),
        outputs=(node,),
        operands=(*operands, *([] if bias is None else [read("rows", bias)])),
        images="rows",
        steps=() if bias is None else (Step("bias"),),
        keeps_rows=node.target is not aten.bmm.default,
    )


def _stored_operand(node: Node) -> tuple[Node, str]:
    """An operand of a product as it is stored: what is transposed, and whether it is (`n`) or not (`t`).

    A backward transposes the weight again that its forward has transposed.
    """
    layout, other = "t", "n"
    while node.op == "call_function" and _swaps_last(node):
        node, layout, other = node.args[0], other, layout
    return node, layout


def _quantised(node: Node) -> tuple[Node, str] | None:
    """The matrix of i8 on the CPU that `node` converts, and whether it is transposed (`n`); None for other operands."""
    if node.op != "call_function" or node.target is not aten._to_copy.default:
        return None
    stored, layout = _stored_operand(node.args[0])
    matrix = value(stored)
    is_quantised = matrix.dtype == torch.int8 and matrix.dim() == 2 and matrix.device.type == "cpu"
    return (stored, layout) if is_quantised else None


def _swaps_last(node: Node) -> bool:
    if node.target is aten.t.default:
        return len(shape(node)) == 2
    axes = len(shape(node))
    if node.target is aten.transpose.int:
        return {axis % axes for axis in node.args[1:3]} == {axes - 1, axes - 2}
    if node.target is aten.permute.default:
        order = [axis % axes for axis in node.args[1]]
        return order == [*range(axes - 2), axes - 1, axes - 2]
    return False


class ProductRoots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {MATRIX_PRODUCT: RootTraits(has_steps=True)}
    operators: Mapping[Any, Begin] = {
        aten.mm.default: _product,
        aten.addmm.default: _product,
        aten.bmm.default: _product,
    }

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        product, (of_lhs, of_rhs, *_) = spec.operation.product, spec.operation.operands
        assert product is not None
        left, right = operands[0].reshape(of_lhs.shape), operands[1].reshape(of_rhs.shape)
        left = left if product.lhs_layout == "t" else left.mT
        right = right.to(left.dtype)  # a quantised weight
        return [left @ (right if product.rhs_layout == "t" else right.mT)]

    def flops(self, operation: Operation) -> int:
        """See `RootFamily.flops`."""
        product = operation.product
        assert product is not None
        return 2 * product.batch * product.m * product.n * product.k


FAMILY = ProductRoots()
