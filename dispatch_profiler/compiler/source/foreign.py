"""MLIR that this package did not render, such as an edited function or a tree of another user.

The compiler generates native code for whatever MLIR says: inline assembly, calls of foreign functions,
objects of other compilers, kernels with addresses of their own. So a function is compiled if the manifest's
operation and configuration render to the same text. Any other function must consist of the operations and
attributes listed here, which compute tensors of fixed shapes from tensors. It is checked in the IR that the
compiler parsed, in a compiler process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler._base import TRUST, BuildOutcome, BuildRequest
from dispatch_profiler.compiler.ir_module import (
    KERNEL_SOURCE,
    IrModule,
    attribute_names,
    operations_in,
    symbol_of,
)
from dispatch_profiler.dispatches import State

_FUNCTION = "func.func"
_MEMOIZED = "linalg.memoized_indexing_maps"
_CONVOLUTION = ("dilations", _MEMOIZED, "strides", "compilation_info")
_SLICE = ("static_offsets", "static_sizes", "static_strides")
#: Operation -> its attributes. `operandSegmentSizes` is allowed as well: it counts the operands.
_OPERATIONS: dict[str, tuple[str, ...]] = {
    _FUNCTION: ("arg_attrs", "function_type", "sym_name"),
    "func.return": (),
    **dict.fromkeys(
        ("arith.addf", "arith.divf", "arith.maximumf", "arith.minimumf", "arith.mulf"), ("fastmath",)
    ),
    **dict.fromkeys(("arith.negf", "arith.subf", "arith.extf", "arith.truncf"), ("fastmath", "roundingmode")),
    **dict.fromkeys(("arith.addi", "arith.muli", "arith.subi"), ("overflowFlags",)),
    **dict.fromkeys(("arith.extsi", "arith.maxsi", "arith.minsi", "arith.select"), ()),
    "arith.cmpf": ("fastmath", "predicate"),
    # Templates do not use these; edits that plant an error for a test do.
    "arith.cmpi": ("predicate",),
    **dict.fromkeys(("arith.andi", "arith.bitcast", "arith.ori", "arith.xori"), ()),
    "arith.constant": ("value",),
    **dict.fromkeys(("math.erf", "math.exp", "math.rsqrt", "math.tanh"), ("fastmath",)),
    **dict.fromkeys(("linalg.batch_matmul", "linalg.matmul"), ("indexing_maps", "compilation_info")),
    **dict.fromkeys(
        (
            "linalg.conv_2d_nhwc_hwcf",
            "linalg.conv_2d_nhwc_fhwc",
            "linalg.conv_2d_nchw_fchw",
            "linalg.conv_3d_ndhwc_dhwcf",
            "linalg.conv_3d_ncdhw_fcdhw",
            "linalg.depthwise_conv_2d_nhwc_hwc",
            "linalg.depthwise_conv_2d_nchw_chw",
        ),
        _CONVOLUTION,
    ),
    "linalg.fill": (),
    "linalg.generic": ("indexing_maps", "iterator_types", "compilation_info"),
    "linalg.index": ("dim",),
    "linalg.yield": (),
    "tensor.collapse_shape": ("reassociation",),
    "tensor.empty": (),
    "tensor.expand_shape": ("reassociation", "static_output_shape"),
    "tensor.extract": (),
    "tensor.extract_slice": _SLICE,
    "tensor.insert_slice": _SLICE,
    "tensor.pad": ("static_low", "static_high", "nofold"),
    "tensor.yield": (),
    "util.optimization_barrier": ("dispatch_profiler.packs",),
}
_SEGMENTS = "operandSegmentSizes"
#: Attributes and types of dialects that may be part of an attribute.
_PARTS = frozenset(
    {
        "#arith.fastmath",
        "#arith.overflow",
        "#iree_codegen.compilation_info",
        "#iree_codegen.lowering_config",
        "#iree_codegen.translation_info",
        "#iree_cpu.lowering_config",
        "#iree_cpu.pipeline",
        "#iree_gpu.lowering_config",
        "#iree_gpu.mma_layout",
        "#iree_gpu.pipeline",
        "#iree_gpu.pipeline_options",
        "#iree_gpu.spirv_pipeline",
        "#linalg.iterator_type",
    }
)
#: Attributes of a function's arguments: that they are results.
_ARGUMENT = re.compile(r"\{(iree\.abi\.output = \d+ : index)?\}")
_NUMBER = r"(?:index|i\d+|f\d+(?:E\w+)?|bf16|tf32)"
_TYPE = re.compile(rf"{_NUMBER}|tensor<(?:\d+x)*{_NUMBER}>")
#: Operations whose operands give extents and offsets at run time, with the allowed number of such operands: a
#: write outside of a tensor would change other memory.
_STATIC = {
    "tensor.extract_slice": 1,
    "tensor.insert_slice": 2,
    "tensor.pad": 1,
    "tensor.empty": 0,
    "tensor.expand_shape": 1,
}
#: Attributes with numbers -> the least that each may be. The verifier compares only the last element that is accessed with
#: the extent: a negative stride leads before the first one.
_LEAST = {
    **dict.fromkeys(("static_offsets", "static_sizes", "static_low", "static_high"), 0),
    **dict.fromkeys(("static_strides", "strides", "dilations"), 1),
}
#: The compiler and its verifier compute with 64 bits, and notice no overflow: a stride of 2**62 leads to any address. With
#: these limits, no product of an extent and a factor, and no sum of such products, is larger.
_LARGEST, _LARGEST_FACTOR, _MOST_ELEMENTS = 2**30, 2**24, 2**40
_FACTORS = frozenset(("static_strides", "strides", "dilations", "indexing_maps"))


class _Refused(Exception):
    """A function is not compiled; its text is the reason."""


def keep_allowed(source: IrModule, request: BuildRequest) -> dict[str, BuildOutcome]:
    """Erase functions that are not requested or that `refused_functions` returns; returns the latter's outcomes."""
    names = [*(dispatch.name for dispatch in request.dispatches), *request.helpers]
    source.keep_functions(names)
    refused = refused_functions(source, request)
    if refused:
        source.keep_functions([name for name in names if name not in refused])
    # With --trust they compile, so this outcome is neither cached nor kept.
    return {
        name: BuildOutcome(State.NOT_COMPILED, reason, is_transient=True) for name, reason in refused.items()
    }


def refused_functions(source: IrModule, request: BuildRequest) -> dict[str, str]:
    """Function of `request.foreign` -> why it is not compiled, for functions that may do more than compute.

    Erases everything in `source` except the functions of the request and their kernels.
    """
    foreign = [dispatch.name for dispatch in request.dispatches if dispatch.name in request.foreign]
    if not foreign:
        return {}
    others = dict.fromkeys(_erase_others(source, {*_own_symbols(request), *foreign}))
    if others:
        return dict.fromkeys(foreign, f"the source has {', '.join(others)}, which is not allowed; {TRUST}")
    refused = {}
    functions = source.symbols(_FUNCTION)
    for name in foreign:
        try:
            _check_function(functions[name])
        except _Refused as error:
            refused[name] = f"it was not rendered from its configuration, and {error}; {TRUST}"
    return refused


def _erase_others(source: IrModule, allowed: Collection[str]) -> Iterator[str]:
    """Erase everything that belongs to no function of `allowed`; yields descriptions of the erased parts."""
    for name in attribute_names(source.operation):
        del source.operation.attributes[name]
        yield f"the attribute {name} of the whole module"
    for op in list(source.top()):
        is_kernel = op.name == KERNEL_SOURCE
        if symbol_of(op) not in allowed or not (is_kernel or op.name == _FUNCTION):
            yield op.name
            op.erase()


def _own_symbols(request: BuildRequest) -> Iterator[str]:
    """Functions that this package rendered, and their kernels."""
    yield from request.helpers
    for dispatch in request.dispatches:
        if dispatch.name not in request.foreign:
            yield dispatch.name
            yield from dispatch.configuration.kernel_names(dispatch.name)


def _check_function(function: Any) -> None:
    """Raise _Refused unless the function only computes."""
    if not function.regions[0].blocks:
        raise _Refused("is a foreign function, without a body")
    operations = operations_in(function)
    others = [op.name for op in operations if op.name not in _OPERATIONS]
    others += [op.name for op in operations if op.name == _FUNCTION and op != function]
    if others:
        raise _Refused(f"has operations that are not allowed: {', '.join(dict.fromkeys(others))}")
    _forget_maps(function, operations)
    for op in operations:
        if len(op.operands) > _STATIC.get(op.name, len(op.operands)):
            raise _Refused(f"its {op.name} has extents or offsets that are known only at run time")
        for name in attribute_names(op):
            if name != _SEGMENTS and name not in _OPERATIONS[op.name]:
                raise _Refused(f"its {op.name} has the attribute {name}, which is not allowed")
            _check_attribute(op.name, name, op.attributes[name])
        if not _is_within(op):
            raise _Refused(f"its {op.name} has an index that may be outside of the tensor")
        for value in _values(op):
            _check_type(op.name, value.type)


def _check_type(operation: str, type_: Any) -> None:
    text = str(type_)
    if not _TYPE.fullmatch(text):
        raise _Refused(f"its {operation} has a value of type {text[:100]}, which is not allowed")
    extents = [int(each) for each in re.findall(r"(\d+)x", text)]
    if max(extents, default=0) > _LARGEST or math.prod(extents) > _MOST_ELEMENTS:
        raise _Refused(f"its {operation} has a value of type {text[:100]}, which is too large")


def _forget_maps(function: Any, operations: Iterable[Any]) -> None:
    """Let the compiler derive the maps of convolutions from their strides, instead of trusting the source's maps."""
    for op in operations:
        if _MEMOIZED in op.attributes:
            del op.attributes[_MEMOIZED]
    try:
        function.operation.verify()
    except ir.MLIRError as error:
        raise _Refused("has a convolution whose strides do not fit its tensors") from error


def _is_within(op: Any) -> bool:
    """Whether an access to one element is known to be within its tensor."""
    if op.name != "tensor.extract":
        return True
    tensor, *indices = op.operands
    for axis, index in enumerate(indices):
        found = index_range(index)
        if found is None or found[0] < 0 or found[1] >= ir.RankedTensorType(tensor.type).get_dim_size(axis):
            return False
    return True


def _values(op: Any) -> Iterator[Any]:
    yield from op.operands
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.arguments


def _check_attribute(operation: str, name: str, attribute: Any) -> None:
    what = f"its {operation} has a value of {name} that is not allowed"
    if name == "value":
        if not isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr, ir.DenseElementsAttr)):
            raise _Refused(what)
        return
    if name in _LEAST and min(_numbers(attribute), default=_LEAST[name]) < _LEAST[name]:
        raise _Refused(f"its {operation} has a number below {_LEAST[name]} in {name}")
    text = str(attribute)
    if name == "sym_name":
        return
    largest = _LARGEST_FACTOR if name in _FACTORS else _LARGEST
    if any(int(number) > largest for number in re.findall(r"\d+", text)):
        raise _Refused(f"its {operation} has a number above {largest} in {name}")
    if name == "arg_attrs":
        if not all(_ARGUMENT.fullmatch(str(each)) for each in ir.ArrayAttr(attribute)):
            raise _Refused(what)
        return
    if '"' in text or "@" in text or not _PARTS.issuperset(re.findall(r"[#!][a-zA-Z_][\w.$-]*", text)):
        raise _Refused(what)
    if name.endswith("indexing_maps") and not all(map(_is_monotonic, ir.ArrayAttr(attribute))):
        raise _Refused(f"its {operation} has an indexing map whose bounds the compiler does not check")


def _numbers(attribute: Any) -> Iterator[int]:
    if not isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseIntElementsAttr)):
        raise _Refused("has an attribute of another type than the compiler writes")
    yield from attribute


def _is_monotonic(attribute: Any) -> bool:
    """Whether a map consists of sums of loops with factors, so that the last iteration has the largest values."""
    text = str(attribute)
    return not re.search(r"\bmod\b|div|-(?!>)|\[", text)


# -- index ranges ----------------------------------------------------------------------------------

# The values that an index computed in a `linalg.generic` can have.


Range = tuple[int, int]
#: Sums beyond it may overflow on some target.
_LARGEST_INDEX = 2**31 - 1


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
    return found if found is not None and max(map(abs, found)) <= _LARGEST_INDEX else None


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
