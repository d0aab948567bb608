"""Convolutions against torch in float64, which has kernels, gradients and transposed convolutions of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naive_convolutions import ROLES, SPATIAL

from dispatch_profiler.operations import Distribution, ElementTypes
from dispatch_profiler.operations.contraction.reference import reference

torch: Any = pytest.importorskip("torch")
from torch_convolutions import FUNCTIONS, convolution_in_torch, random_fields, result_in_order  # noqa: E402

SEED = 20
MODES = tuple(ROLES)


def compare_with_torch(count: int, first: int) -> None:
    for seed in range(first, first + count):
        rng = np.random.default_rng((SEED, seed))
        kind, fields = random_fields(rng)
        operation = kind(**fields, mode=MODES[seed % 3])
        lhs, rhs = (rng.uniform(-1, 1, tensor.shape) for tensor in operation.operands)
        found = operation.contract(lhs, rhs)
        expected = convolution_in_torch(operation, lhs, rhs).numpy()
        message = f"seed {(SEED, seed)}: {operation.name}"
        assert found.shape == operation.result.shape, message
        np.testing.assert_allclose(
            result_in_order(operation, found), expected, rtol=1e-12, atol=1e-12, err_msg=message
        )


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_random_convolutions_agree_with_torch(count: int):
    """Every parameter is drawn: rank, mode, layouts, paddings, strides, dilations, groups."""
    print(f"seeds ({SEED}, 1000) to ({SEED}, {999 + count})")
    compare_with_torch(count, 1000)


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
        operation = kind(**{**fields, "types": ElementTypes()}, mode=MODES[seed % 3])
        for distribution in Distribution:
            lhs, rhs = (operation.draw(tensor, distribution, rng) for tensor in operation.operands)
            found = reference(operation, [lhs, rhs])
            expected = convolution_in_torch(operation, lhs.astype(np.float64), rhs.astype(np.float64)).numpy()
            error = np.abs(result_in_order(operation, found.expected.astype(np.float64)) - expected)
            if distribution is Distribution.INTEGERS:
                assert found.tolerance is None and not error.any(), operation.name
            else:
                assert (error <= result_in_order(operation, found.tolerance)).all(), operation.name
