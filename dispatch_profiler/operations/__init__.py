"""Operations: what is computed. A new kind needs one file here, one template, and one line in `KINDS`.

What else a kind needs, for commands, libraries and PyTorch, is in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_profiler.errors import OperationError, did_you_mean
from dispatch_profiler.operations._base import (
    DEFAULT_SEED,
    IN_ACCUMULATOR,
    ContractFunction,
    Contraction,
    ContractionBound,
    Distribution,
    ErrorBound,
    Loop,
    Operation,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.attention.attention import Attention
from dispatch_profiler.operations.contraction.int4_matmul import GroupedIntegers, Int4Matmul
from dispatch_profiler.operations.contraction.matmul import BatchMatmul, Matmul, check_layouts
from dispatch_profiler.operations.contraction.panel_matmul import PanelMatmul
from dispatch_profiler.operations.convolution.bias_backward import BiasBackward
from dispatch_profiler.operations.convolution.convolution import Conv1d, Conv2d, Conv3d, Convolution
from dispatch_profiler.operations.convolution.layouts import (
    CONV_LAYOUTS,
    filter_letters,
    joined_layout,
    layout_rank,
    layout_triple,
    read_layout,
    words_of,
)
from dispatch_profiler.operations.element_types import (
    ELEMENT_TYPES,
    ElementType,
    ElementTypes,
    element_type,
    is_below_a_byte,
    is_element_type,
    natural_result,
)
from dispatch_profiler.operations.epilogue_steps import STEP_KINDS
from dispatch_profiler.operations.epilogues import Epilogue, EpilogueOperand, Step
from dispatch_profiler.operations.geometry import (
    CONV_ROLES,
    AttentionGeometry,
    AttentionPlaces,
    ConvolutionGeometry,
    Int4Geometry,
    NormGeometry,
    ProductGeometry,
    RowSums,
)
from dispatch_profiler.operations.norm.layer_norm import LayerNorm
from dispatch_profiler.operations.norm.layer_norm_backward import (
    LayerNormInputBackward,
    LayerNormWeightBackward,
)
from dispatch_profiler.operations.options import (
    DEFAULT_TYPES,
    ShapeOption,
    SweepOptions,
    parse_range,
    parse_tuples,
    unreached_ends,
)
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike
from dispatch_profiler.operations.softmax import Softmax

KINDS: dict[str, type[Operation]] = {
    kind.kind: kind
    for kind in (
        Matmul,
        BatchMatmul,
        Conv1d,
        Conv2d,
        Conv3d,
        LayerNorm,
        LayerNormInputBackward,
        LayerNormWeightBackward,
        BiasBackward,
        Softmax,
        Attention,
        Int4Matmul,
    )
}

#: Number of spatial axes -> kind of convolution.
CONVOLUTION_KINDS = {kind.rank: kind.kind for kind in (Conv1d, Conv2d, Conv3d)}


def operation_kind(name: str) -> type[Operation]:
    """The class of operation kind `name`. Raises OperationError, which lists the available kinds."""
    if name not in KINDS:
        raise OperationError(f"unknown operation kind {name!r}", hint=did_you_mean(name, KINDS))
    return KINDS[name]


def operation_from_dict(data: Mapping[str, Any]) -> Operation:
    """Inverse of `Operation.to_dict`."""
    values = dict(data)
    kind = operation_kind(values.pop("kind"))
    return kind.from_dict(values)


__all__ = [
    "CONVOLUTION_KINDS",
    "CONV_LAYOUTS",
    "CONV_ROLES",
    "DEFAULT_SEED",
    "DEFAULT_TYPES",
    "ELEMENT_TYPES",
    "IN_ACCUMULATOR",
    "KINDS",
    "STEP_KINDS",
    "Attention",
    "AttentionGeometry",
    "AttentionPlaces",
    "BatchMatmul",
    "BiasBackward",
    "ContractFunction",
    "Contraction",
    "ContractionBound",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Convolution",
    "ConvolutionGeometry",
    "Distribution",
    "ElementType",
    "ElementTypes",
    "Epilogue",
    "EpilogueOperand",
    "ErrorBound",
    "GroupedIntegers",
    "Int4Geometry",
    "Int4Matmul",
    "LayerNorm",
    "LayerNormInputBackward",
    "LayerNormWeightBackward",
    "Loop",
    "Matmul",
    "NormGeometry",
    "Operation",
    "PanelMatmul",
    "ProductGeometry",
    "Reference",
    "RowSums",
    "ShapeOption",
    "Softmax",
    "Step",
    "SweepOptions",
    "Tensor",
    "accumulation_factor",
    "are_alike",
    "check_layouts",
    "element_type",
    "filter_letters",
    "is_below_a_byte",
    "is_element_type",
    "joined_layout",
    "layout_rank",
    "layout_triple",
    "natural_result",
    "operation_from_dict",
    "operation_kind",
    "parse_range",
    "parse_tuples",
    "read_layout",
    "unreached_ends",
    "words_of",
]
