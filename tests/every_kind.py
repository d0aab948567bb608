"""Small operations: every mode of every kind. A kind that is missing here fails `test_end_to_end.py`."""

from __future__ import annotations

from typing import Any

from dispatch_profiler.operations import (
    CONV_ROLES,
    Attention,
    BatchMatmul,
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    Int4Matmul,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
    Softmax,
)
from dispatch_profiler.operations.norm.normalization import affine_suffix

#: The filter reads every pixel, and extents differ, so that no two axes can be exchanged unnoticed.
_WINDOWS: dict[type[Any], dict[str, Any]] = {
    Conv1d: {"n": 2, "w": 9, "c": 4, "k": 6, "s": 3, "stride": (2,), "padding": (1,), "groups": 2},
    Conv2d: {
        "n": 2, "h": 7, "w": 5, "c": 3, "k": 4, "r": 3, "s": 2, "stride": (2, 1), "padding": (1, 0),
        "padding_after": (1, 1), "layout": "nhwc_fhwc_nhwc",
    },
    Conv3d: {
        "n": 2, "d": 3, "h": 5, "w": 6, "c": 2, "k": 3, "t": 2, "r": 3, "s": 2, "stride": (1, 2, 1),
        "padding": (1, 1, 1), "dilation": (1, 1, 2),
    },
}  # fmt: skip

#: Gradients of matrix products are matrix products with a transposed operand.
EVERY_MODE: tuple[Operation, ...] = (
    Matmul(5, 7, 6),
    Matmul(5, 6, 7, rhs_layout="n"),
    Matmul(6, 7, 5, lhs_layout="n"),
    BatchMatmul(2, 5, 7, 6),
    BatchMatmul(2, 5, 6, 7, rhs_layout="n"),
    BatchMatmul(2, 6, 7, 5, lhs_layout="n"),
    *(kind(**window, mode=mode) for kind, window in _WINDOWS.items() for mode in CONV_ROLES),
    LayerNorm(3, 5),
    LayerNorm(3, 5, affine=False),
    LayerNorm(3, 5, affine="weight"),
    LayerNorm(3, 5, affine="bias"),
    LayerNormInputBackward(3, 5),
    LayerNormInputBackward(3, 5, affine=False),
    LayerNormWeightBackward(4, 5),
    LayerNormWeightBackward(4, 5, affine="weight"),
    BiasBackward(3, 5, 7),
    Softmax(3, 5),
    Softmax(3, 5, scale=0.25),
    Int4Matmul(3, 64, 32, 16),
    Attention(2, 4, 3, 5, 6, key_heads=2),
    Attention(2, 2, 3, 5, 6, value_size=4, causal="lower_right", mask="add", mask_axes="h", layout="bshd"),
)
IDS = [
    "_".join((each.kind, *(getattr(each, name, "") for name in ("mode", "lhs_layout", "rhs_layout")))).rstrip(
        "_"
    )
    + affine_suffix(getattr(each, "affine", True))
    + ("_scaled" if getattr(each, "is_scaled", False) else "")
    + ("_causal" if getattr(each, "causal", "") else "")
    for each in EVERY_MODE
]


def arguments_of(operation: Operation) -> list[str]:
    """Arguments that generate `operation` and nothing else."""
    given = {"op-kind": operation.kind, **operation.arguments()}
    return [f"--{name}={value}" for name, value in given.items()]
