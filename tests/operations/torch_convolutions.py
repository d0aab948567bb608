"""Random convolutions, and what torch computes for them in float64, in its own order of axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naive_convolutions import SPATIAL, conv_layout

from dispatch_profiler.operations import CONV_ROLES, Conv1d, Conv2d, Conv3d, Convolution, ElementTypes

torch: Any = pytest.importorskip("torch")
F64 = ElementTypes("f64", "f64", "f64")
#: Convolutions and transposed convolutions.
FUNCTIONS = {
    Conv1d: (torch.nn.functional.conv1d, torch.nn.functional.conv_transpose1d),
    Conv2d: (torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d),
    Conv3d: (torch.nn.functional.conv3d, torch.nn.functional.conv_transpose3d),
}


def random_fields(rng: np.random.Generator) -> tuple[type[Convolution], dict[str, Any]]:
    """A kind, and fields of a small convolution without its mode."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    kind = one(Conv1d, Conv2d, Conv3d)
    axes, taps = SPATIAL[kind]

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(rng.integers(low, high + 1)) for _ in axes)

    def shuffled(letters: str) -> str:
        return "".join(rng.permutation(list(letters)))

    groups, letters = one(1, 1, 2, 3), (f"nc{axes}", f"fc{axes}", f"nc{axes}")
    padding, dilation, sizes = each(0, 2), each(1, 3), each(1, 3)
    after = one(padding, each(0, 2))
    smallest = [
        max(1, (size - 1) * step + 1 - low - high)
        for size, step, low, high in zip(sizes, dilation, padding, after, strict=True)
    ]
    fields = {
        "n": one(1, 2, 3), "c": groups * one(1, 2, 3), "k": groups * one(1, 2, 4), "groups": groups,
        "stride": each(1, 3), "padding": padding, "padding_after": after, "dilation": dilation, "types": F64,
        "layout": one("_".join(map(shuffled, letters)), "_".join(letters)),
        **{axis: size + int(rng.integers(4)) for axis, size in zip(axes, smallest, strict=True)},
        **dict(zip(taps, sizes, strict=True)),
    }  # fmt: skip
    return kind, fields


def in_order(operation: Convolution, role: str, array: np.ndarray) -> Any:
    """A tensor in torch's order of axes."""
    stored = conv_layout(operation, role)
    wanted = ("fc" if role == "filter" else "nc") + SPATIAL[type(operation)][0]
    return torch.from_numpy(np.ascontiguousarray(array.transpose([stored.index(x) for x in wanted])))


def result_in_order(operation: Convolution, array: np.ndarray) -> np.ndarray:
    """The result, or an array of its shape, in torch's order of axes."""
    return np.asarray(in_order(operation, CONV_ROLES[operation.mode][2], array))


def convolution_in_torch(operation: Convolution, lhs: np.ndarray, rhs: np.ndarray) -> Any:
    """The result by torch's convolution, or by its automatic differentiation."""
    forward, _ = FUNCTIONS[type(operation)]
    rank = len(SPATIAL[type(operation)][0])
    after = operation.padding_after or operation.padding
    margins = [each for pair in zip(operation.padding[::-1], after[::-1], strict=True) for each in pair]

    def convolved(images: Any, filters: Any) -> Any:
        padded = torch.nn.functional.pad(images, margins)
        return forward(padded, filters, None, operation.stride, 0, operation.dilation, operation.groups)

    if operation.mode == "forward":
        return convolved(in_order(operation, "input", lhs), in_order(operation, "filter", rhs))
    extents = [getattr(operation, axis) for axis in SPATIAL[type(operation)][0]]
    taps = [getattr(operation, tap) for tap in SPATIAL[type(operation)][1]]
    shapes = {
        "input": (operation.n, operation.c, *extents),
        "filter": (operation.k, operation.c // operation.groups, *taps),
    }
    wanted, known = ("input", "filter") if operation.mode == "input_backward" else ("filter", "input")
    variable = torch.zeros(shapes[wanted], dtype=torch.float64, requires_grad=True)
    other = in_order(operation, known, rhs)
    with torch.enable_grad():
        result = convolved(*((variable, other) if wanted == "input" else (other, variable)))
        assert result.ndim == rank + 2
        (gradient,) = torch.autograd.grad(result, variable, in_order(operation, "output", lhs))
    return gradient
