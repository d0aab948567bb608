"""Nodes of an aten graph as operations: convolutions, layer norms and matrix products, and gradients of the first two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.boo.fusion.nodes import (
    Node,
    NotFusible,
    argument,
    aten,
    check_alike,
    is_getitem,
    shape,
    value,
)
from dispatch_profiler.boo.fusion.schema import Root
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.epilogues import Step
from dispatch_profiler.operations.norm.normalization import affine_of

#: (reading, inputs, eps): see `spec.READINGS`.
Operand = tuple[str, tuple[Node | None, ...], float]
_CONVOLUTIONS: dict[int, Any] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
_PIXELS = {1: "w", 2: "hw", 3: "dhw"}
_TAPS = {1: "s", 2: "rs", 3: "trs"}
#: Channels last, as torch's channels_last has images and filters.
_LAYOUTS = {1: "nwc_fwc_nwc", 2: "nhwc_fhwc_nhwc", 3: "ndhwc_fdhwc_ndhwc"}


@dataclass(frozen=True, eq=False)
class Begun:
    """A root as an operation, whose epilogue is still open.

    `steps` are part of the node itself, such as the bias of a convolution. `outputs` yield the results; None for those
    that nothing reads. `images` is the reading of results and residuals. With `keeps_rows`, views that keep the last
    axis may stand between the steps. `several` has the parts of a node that several kernels compute.
    """

    operation: Callable[[Epilogue], Operation]
    nodes: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    operands: tuple[Operand, ...]
    images: str
    steps: tuple[Step, ...] = ()
    has_steps: bool = True
    keeps_rows: bool = False
    values: tuple[Any, ...] = ()
    several: tuple[Begun, ...] = ()


def kind(node: Node) -> Root:
    """The root that a node of one of the operators below is."""
    if node.target is aten.convolution.default:
        return Root.TRANSPOSED_CONVOLUTION if argument(node, 6, "transposed", False) else Root.CONVOLUTION
    return {
        aten.native_layer_norm.default: Root.LAYER_NORM,
        aten.convolution_backward.default: Root.CONVOLUTION_BACKWARD,
        aten.native_layer_norm_backward.default: Root.LAYER_NORM_BACKWARD,
    }.get(node.target, Root.MATRIX_PRODUCT)


def _read(reading: str, node: Node) -> Operand:
    return reading, (node,), 0.0


# -- convolutions -----------------------------------------------------------------------------


def convolution(node: Node) -> Begun:
    """A convolution, or a transposed one, whose bias is a step. Raises NotFusible."""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    type_ = check_alike(x, weight, bias)
    if len(shape(x)) != len(shape(weight)):
        raise NotFusible("it has no batch axis")
    fields = _fields(shape(x), shape(weight), type_, is_transposed=bool(transposed), groups=groups)
    rank = len(shape(x)) - 2
    fields |= {
        "stride": _each(stride, rank),
        "padding": _each(padding, rank),
        "dilation": _each(dilation, rank),
    }
    if transposed:
        extra = _each(output_padding, rank)
        made = _CONVOLUTIONS[rank].transposed(output_padding=extra, **fields)
    else:
        made = _CONVOLUTIONS[rank](**fields)
    operands = [_read("channels", x), _read("filter", weight)]
    return Begun(
        operation=lambda epilogue: replace(made, epilogue=epilogue),
        nodes=(node,),
        outputs=(node,),
        operands=(*operands, *([_read("rows", bias)] if bias is not None else [])),
        images="channels",
        steps=(Step("bias"),) if bias is not None else (),
    )


def _fields(
    x: Sequence[int], weight: Sequence[int], type_: str, *, is_transposed: bool, groups: int
) -> dict[str, Any]:
    rank = len(x) - 2
    if rank not in _CONVOLUTIONS:
        raise NotFusible(f"it has {rank} spatial axes")
    return {
        "n": x[0],
        "c": x[1],
        "k": weight[1] * groups if is_transposed else weight[0],
        **dict(zip(_PIXELS[rank], x[2:], strict=True)),
        **dict(zip(_TAPS[rank], weight[2:], strict=True)),
        "groups": groups,
        "types": ElementTypes(type_, type_, type_),
        "layout": _LAYOUTS[rank],
    }


def _each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    found = tuple(values)
    if not all(type(each) is int for each in found):
        raise NotFusible("its stride or padding is dynamic")
    return found * rank if len(found) == 1 else found


def convolution_backward(node: Node) -> Begun:
    """The gradients of a convolution's input and weight, each by a kernel of its own. Raises NotFusible.

    That of the bias is left to torch, which sums.
    """
    dy, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, mask = node.args
    type_ = check_alike(x, dy, weight)
    rank = len(shape(x)) - 2
    if len(shape(x)) != len(shape(weight)):
        raise NotFusible("it has no batch axis")
    fields = _fields(shape(x), shape(weight), type_, is_transposed=bool(transposed), groups=groups)
    fields |= {
        "stride": _each(stride, rank),
        "padding": _each(padding, rank),
        "dilation": _each(dilation, rank),
    }
    if transposed:
        # A transposed convolution is the gradient of the mirrored one, whose input has the shape of dy.
        mirrored = _CONVOLUTIONS[rank].transposed(output_padding=_each(output_padding, rank), **fields)
        of_input = replace(mirrored, mode="forward")
        of_weight = replace(mirrored, mode="weight_backward")
        gradient, image = x, dy
    else:
        of_input = _CONVOLUTIONS[rank](**fields, mode="input_backward")
        of_weight = _CONVOLUTIONS[rank](**fields, mode="weight_backward")
        gradient, image = dy, x
    results = {at: each for each in node.users for at in range(3) if is_getitem(each, at) and each.users}
    parts = []
    if 0 in results and mask[0]:
        operands = (_read("channels", dy), _read("filter", weight))
        parts.append(_gradient(of_input, (results[0],), operands, (), "channels"))
    if 1 in results and mask[1]:
        operands = (_read("channels", gradient), _read("channels", image))
        parts.append(_gradient(of_weight, (results[1],), operands, (), "channels"))
    if not parts:
        raise NotFusible("no gradient is read")
    return replace(parts[0], several=tuple(parts))


# -- layer norms ------------------------------------------------------------------------------


def layer_norm(node: Node) -> Begun:
    """A layer norm, with its statistics. Raises NotFusible."""
    x, normalized, weight, bias, eps = node.args
    type_ = check_alike(x, weight, bias)
    size = math.prod(normalized)
    rows = math.prod(shape(x)) // size
    made = LayerNorm(rows, size, type_, float(eps), affine_of(weight is not None, bias is not None))
    affine = [_read("rows", each) for each in (weight, bias) if each is not None]
    found = {at: each for each in node.users for at in range(3) if is_getitem(each, at) and each.users}
    outputs = tuple(found.get(at) for at in range(3))
    if outputs[0] is None:
        raise NotFusible("its result is not read")
    return Begun(
        operation=lambda epilogue: made,
        nodes=(node, *(each for each in outputs if each is not None)),
        outputs=outputs,
        operands=(_read("rows", x), *affine),
        images="rows",
        has_steps=False,
        values=tuple(node.meta["val"]),
    )


def layer_norm_backward(node: Node) -> Begun:
    """The gradients of a layer norm's input, and of its weight and bias. Raises NotFusible."""
    dy, x, normalized, mean, rstd, weight, bias, mask = node.args
    type_ = check_alike(x, dy, weight, bias)
    size = math.prod(normalized)
    rows = math.prod(shape(x)) // size
    found = {at: each for each in node.users for at in range(3) if is_getitem(each, at) and each.users}
    statistics = (_read("rows", mean), _read("rows", rstd))
    both = (_read("rows", dy), _read("rows", x))
    parts = []
    if 0 in found and mask[0]:
        scale = () if weight is None else (_read("rows", weight),)
        made = LayerNormInputBackward(rows, size, type_, weight is not None)
        parts.append(_gradient(made, (found[0],), (*both, *statistics, *scale), ()))
    wants_bias = 2 in found and bool(mask[2])
    if 1 in found and mask[1]:
        of_weight = LayerNormWeightBackward(rows, size, type_, affine_of(True, wants_bias))
        outputs = (found[1], *([found[2]] if wants_bias else []))
        values = (value(weight),) * len(outputs)
        parts.append(_gradient(of_weight, outputs, (*both, *statistics), values))
    elif wants_bias:
        of_bias = BiasBackward(rows, size, 1, type_)
        parts.append(_gradient(of_bias, (found[2],), (both[0],), (value(bias),)))
    if not parts:
        raise NotFusible("no gradient is read")
    return replace(parts[0], several=tuple(parts))


def _gradient(
    made: Operation,
    outputs: tuple[Node | None, ...],
    operands: tuple[Operand, ...],
    values: tuple[Any, ...],
    images: str = "rows",
) -> Begun:
    nodes = tuple(each for each in outputs if each is not None)
    return Begun(lambda epilogue: made, nodes, outputs, operands, images, has_steps=False, values=values)


# -- matrix products --------------------------------------------------------------------------


def product(node: Node) -> Begun:
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
    (lhs, of_lhs), (rhs, of_rhs) = map(_stored_operand, (lhs, rhs))
    types = ElementTypes(type_, type_, type_)

    def operation(epilogue: Epilogue) -> Operation:
        if node.target is aten.bmm.default:
            return BatchMatmul(shape(node)[0], m, n, k, types, of_lhs, of_rhs, epilogue)
        return Matmul(m, n, k, types, of_lhs, of_rhs, epilogue)

    operands = (_read("rows", lhs), _read("rows", rhs))
    return Begun(
        operation=operation,
        nodes=(node,),
        outputs=(node,),
        operands=(*operands, *([] if bias is None else [_read("rows", bias)])),
        images="rows",
        steps=() if bias is None else (Step("bias"),),
        keeps_rows=node.target is not aten.bmm.default,
    )


def _stored_operand(node: Node) -> tuple[Node, str]:
    """An operand of a product as it is stored: what is transposed, and whether it is (`n`) or not (`t`)."""
    if node.op == "call_function" and _swaps_last(node):
        return node.args[0], "n"
    return node, "t"


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
