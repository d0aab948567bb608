"""Matrix products: mm, addmm and bmm, which linear layers become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from dispatch_profiler.boo.fusion.nodes import (
    QUANTISED,
    Node,
    NotFusible,
    aten,
    check_alike,
    only_user,
    shape,
    value,
)
from dispatch_profiler.boo.fusion.roots._base import (
    Begin,
    Begun,
    RootFamily,
    RootTraits,
    read,
)
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Matmul, Operation
from dispatch_profiler.operations.epilogues import Epilogue, Step

_torch: Any = torch
MATRIX_PRODUCT = "matrix_product"
#: Rows at most of products that read a quantised weight as it is stored. With more, kernels for f32 are faster.
_MOST_QUANTISED_ROWS = 16
#: What makes numbers of i8 unsigned.
_OFFSET = 128


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


def _integer_product(node: Node) -> Begun:
    """A product of i8, also of numbers that were made unsigned for torch's kernel. Raises NotFusible.

    Where its sums are converted to f32, steps may follow.
    """
    lhs, rhs = node.args
    if value(lhs).device.type != "cpu":
        raise NotFusible("products of i8 have kernels on CPUs only")
    nodes = [node]
    if value(lhs).dtype == torch.uint8:
        lhs, corrected = _signed_factors(node)
        nodes.append(corrected)
    real = only_user(nodes[-1])
    is_real = real is not None and _converted(real, torch.float32) is nodes[-1]
    if is_real:
        nodes.append(real)
    (m, k), n = shape(lhs), shape(rhs)[1]
    (lhs, of_lhs), (rhs, of_rhs) = _stored_operand(lhs), _stored_operand(rhs)
    types = ElementTypes(QUANTISED, QUANTISED, "f32" if is_real else "i32")
    return Begun(
        operation=lambda epilogue: Matmul(m, n, k, types, of_lhs, of_rhs, epilogue),
        nodes=tuple(nodes),
        outputs=(nodes[-1],),
        operands=(read("rows", lhs), read("rows", rhs)),
        images="rows",
        has_steps=is_real,
        keeps_rows=True,
    )


def _signed_factors(product: Node) -> tuple[Node, Node]:
    """The elements of i8 that 128 was added to, as torchao does, and the node that subtracts what that adds to the product.

    Raises NotFusible if the product is made of other numbers from 0 to 255.
    """
    unsigned, weight = product.args
    signed = _added_to(_converted(unsigned, torch.uint8), aten.add.Tensor, _OFFSET)
    signed = None if signed is None else _converted(signed, torch.int32)
    corrected = only_user(product)
    if signed is None or value(signed).dtype != torch.int8 or corrected is None:
        raise NotFusible("it multiplies unsigned numbers")
    if corrected.target is not aten.sub.Tensor or corrected.args[0] is not product or corrected.kwargs:
        raise NotFusible("it multiplies unsigned numbers")
    sums = _added_to(corrected.args[1], aten.mul.Tensor, _OFFSET)
    if sums is None or sums.target is not aten.sum.dim_IntList or list(sums.args[1]) != [0]:
        raise NotFusible("it multiplies unsigned numbers")
    if sums.args[0] is not weight or value(sums).dtype != torch.int32:
        raise NotFusible("it multiplies unsigned numbers")
    return signed, corrected


def _converted(node: Node, dtype: Any) -> Node | None:
    """What a node converts to `dtype`; None if it does something else."""
    is_copy = node.op == "call_function" and node.target is aten._to_copy.default
    return node.args[0] if is_copy and value(node).dtype == dtype else None


def _added_to(node: Node | None, operator: Any, number: int) -> Node | None:
    """The first argument of a node that applies `operator` to it and `number`; None for other nodes."""
    if node is None or node.op != "call_function" or node.target is not operator:
        return None
    return node.args[0] if node.args[1] == number and not node.kwargs else None


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
        aten._int_mm.default: _integer_product,
    }

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        product, (of_lhs, of_rhs, *_) = spec.operation.product, spec.operation.operands
        assert product is not None
        left, right = operands[0].reshape(of_lhs.shape), operands[1].reshape(of_rhs.shape)
        left = left if product.lhs_layout == "t" else left.mT
        if left.dtype == torch.int8:
            sums = _torch._int_mm(left, right if product.rhs_layout == "t" else right.mT)
            return [sums if spec.operation.results[0].type.is_integer else sums.float()]
        right = right.to(left.dtype)  # a quantised weight
        return [left @ (right if product.rhs_layout == "t" else right.mT)]

    def flops(self, operation: Operation) -> int:
        """See `RootFamily.flops`."""
        product = operation.product
        assert product is not None
        return 2 * product.batch * product.m * product.n * product.k


FAMILY = ProductRoots()
