"""Convolutions against torch in float64, which has kernels, gradients and transposed convolutions of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naive_convolutions import SPATIAL, conv_layout

from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Convolution, Distribution, ElementTypes
from dispatch_profiler.operations.contraction_reference import reference

torch: Any = pytest.importorskip("torch")
SEED = 20
F64 = ElementTypes("f64", "f64", "f64")
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


def in_torch(operation: Convolution, lhs: np.ndarray, rhs: np.ndarray) -> Any:
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


def compare_with_torch(count: int, first: int) -> None:
    for seed in range(first, first + count):
        rng = np.random.default_rng((SEED, seed))
        kind, fields = random_fields(rng)
        mode = ("forward", "input_backward", "weight_backward")[seed % 3]
        operation = kind(**fields, mode=mode)
        lhs, rhs = (rng.uniform(-1, 1, tensor.shape) for tensor in operation.operands)
        found = operation.contract(lhs, rhs)
        role = {"forward": "output", "input_backward": "input", "weight_backward": "filter"}[mode]
        expected = in_torch(operation, lhs, rhs).numpy()
        message = f"seed {(SEED, seed)}: {operation.name}"
        assert found.shape == operation.result.shape, message
        np.testing.assert_allclose(
            in_order(operation, role, found).numpy(), expected, rtol=1e-12, atol=1e-12, err_msg=message
        )


def test_random_convolutions_agree_with_torch():
    """Every parameter is drawn: rank, mode, layouts, paddings, strides, dilations, groups."""
    print(f"seeds ({SEED}, 0) to ({SEED}, 59)")
    compare_with_torch(60, 0)


@pytest.mark.slow
def test_five_hundred_random_convolutions_agree_with_torch():
    print(f"seeds ({SEED}, 1000) to ({SEED}, 1499)")
    compare_with_torch(500, 1000)


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_transposed_convolutions_agree_with_torch(first):
    """With output padding; layouts are those of torch."""
    compared = 0
    for seed in range(first, first + (30 if first == 0 else 200)):
        rng = np.random.default_rng((SEED, seed))
        kind, fields = random_fields(rng)
        axes = SPATIAL[kind][0]
        fields |= {"padding_after": None, "layout": f"nc{axes}_fc{axes}_nc{axes}"}
        extra = tuple(
            int(rng.integers(max(pair))) for pair in zip(fields["stride"], fields["dilation"], strict=True)
        )
        sizes = [
            (fields[axis] - 1) * stride - 2 * padding + (fields[tap] - 1) * dilation + 1 + more
            for axis, tap, stride, padding, dilation, more in zip(
                *SPATIAL[kind], fields["stride"], fields["padding"], fields["dilation"], extra, strict=True
            )
        ]
        surplus = [more // stride * stride for more, stride in zip(extra, fields["stride"], strict=True)]
        if min(sizes) < 1 or any(most > low for most, low in zip(surplus, fields["padding"], strict=True)):
            continue
        operation = kind.transposed(**fields, output_padding=extra)
        lhs, rhs = (rng.uniform(-1, 1, tensor.shape) for tensor in operation.operands)
        expected = FUNCTIONS[kind][1](
            torch.from_numpy(lhs), torch.from_numpy(rhs), None, fields["stride"], fields["padding"], extra,
            fields["groups"], fields["dilation"],
        )  # fmt: skip
        message = f"seed {(SEED, seed)}: {operation.name}"
        np.testing.assert_allclose(
            operation.contract(lhs, rhs), expected, rtol=1e-12, atol=1e-12, err_msg=message
        )
        compared += 1
    assert compared > 10


def test_drawn_operands_give_references_within_their_bounds_of_torch():
    """Integers exactly, and reals within the tolerance of the reference."""
    for seed in range(12):
        rng = np.random.default_rng((SEED, seed))
        kind, fields = random_fields(rng)
        mode = ("forward", "input_backward", "weight_backward")[seed % 3]
        operation = kind(**{**fields, "types": ElementTypes()}, mode=mode)
        role = {"forward": "output", "input_backward": "input", "weight_backward": "filter"}[mode]
        for distribution in Distribution:
            lhs, rhs = (operation.draw(tensor, distribution, rng) for tensor in operation.operands)
            found = reference(operation, [lhs, rhs])
            expected = in_torch(operation, lhs.astype(np.float64), rhs.astype(np.float64)).numpy()
            error = np.abs(in_order(operation, role, found.expected.astype(np.float64)).numpy() - expected)
            if distribution is Distribution.INTEGERS:
                assert found.tolerance is None and not error.any(), operation.name
            else:
                assert (error <= in_order(operation, role, found.tolerance).numpy()).all(), operation.name
