"""References of convolutions, epilogues and layer norms against what torch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from epilogue_helpers import random_epilogue
from naive_convolutions import ROLES, SPATIAL
from naive_operations import operand_count, steps_in

from dispatch_profiler.operations import (
    CONV_ROLES,
    BatchMatmul,
    Contraction,
    Convolution,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.operations.reductions import TYPES

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


from torch_convolutions import F64, in_order  # noqa: E402

SEED_OF_EPILOGUES = 14


def random_operation(rng: np.random.Generator, epilogue: Epilogue) -> Contraction:
    """A small matrix product in any layout, or a convolution of any rank and layout, forward or by its input."""
    extents = [int(value) for value in rng.integers(1, 6, 4)]
    number = rng.random()
    if number < 0.5:
        layouts = rng.choice(list("tn"), 2).tolist()
        kind, shape = (Matmul, extents[:3]) if number < 0.3 else (BatchMatmul, extents)
        return kind(*shape, F64, *layouts, epilogue)
    kind, fields = random_fields(rng)
    return kind(**fields, epilogue=epilogue, mode=("forward", "input_backward")[int(rng.integers(2))])


def in_torch(operation: Contraction, inputs: list[np.ndarray]) -> np.ndarray:
    """The operation in torch's order of axes, where channels are axis 1 of an image."""
    lhs, rhs, *rest = inputs
    if isinstance(operation, Convolution):
        value = convolution_in_torch(operation, lhs, rhs)
        operands = [
            in_order(operation, CONV_ROLES[operation.mode][2], each)
            if each.ndim > 1
            else torch.from_numpy(each)
            for each in rest
        ]
    else:
        layouts = zip((lhs, rhs), (operation.lhs_layout, operation.rhs_layout), strict=True)
        a, b = (
            torch.from_numpy(each if layout == "t" else each.swapaxes(-1, -2)) for each, layout in layouts
        )
        value, operands = a @ b, [torch.from_numpy(each) for each in rest]
    channels = 1 if isinstance(operation, Convolution) else value.ndim - 1
    for step in steps_in(operation.epilogue):
        count = operand_count(step)
        value = step_in_torch(
            step,
            value.movedim(channels, 1),
            *(each.movedim(channels, 1) if each.ndim > 1 else each for each in operands[:count]),
        ).movedim(1, channels)
        operands = operands[count:]
    return value.detach().contiguous().numpy()


def step_in_torch(step: str, value: Any, *operands: Any) -> Any:
    functional = torch.nn.functional
    name, _, listed = step.rstrip(")").partition("(")
    numbers = [float(number) for number in listed.split(",")] if listed else []
    modules: dict[str, Callable[[], Any]] = {
        "relu": torch.nn.ReLU,
        "relu6": torch.nn.ReLU6,
        "clamp": lambda: lambda each: each.clamp(*numbers),
        "leaky_relu": lambda: torch.nn.LeakyReLU(*numbers),
        "hardswish": torch.nn.Hardswish,
        "hardsigmoid": torch.nn.Hardsigmoid,
        "gelu": torch.nn.GELU,
        "gelu_tanh": lambda: torch.nn.GELU(approximate="tanh"),
        "silu": torch.nn.SiLU,
        "sigmoid": torch.nn.Sigmoid,
        "tanh": torch.nn.Tanh,
    }
    if name == "row_scale":
        return value * operands[0]
    if name == "channel_scale":
        return value * operands[0].reshape(-1, *([1] * (value.ndim - 2)))
    if name == "scale_shift":
        eps = 2.0**-20  # some versions of torch reject 0; the variance and this add up to 1, exactly
        mean = torch.zeros(operands[0].shape[0], dtype=torch.float64)
        return functional.batch_norm(value, mean, mean + (1.0 - eps), operands[0], operands[1], eps=eps)
    if name == "bias":
        return value + operands[0].reshape(-1, *([1] * (value.ndim - 2)))
    if name == "residual":
        return value + operands[0] * (numbers[0] if numbers else 1.0)
    return value * numbers[0] if name == "scale" else modules[name]()(value)


@pytest.mark.slow
def test_200_random_epilogues_agree_with_torch():
    """Of products and convolutions, all in float64; the bound is that of two float64 computations."""
    print(f"seeds ({SEED_OF_EPILOGUES}, 0) to ({SEED_OF_EPILOGUES}, 199)")
    kinds = set()
    for seed in range(200):
        rng = np.random.default_rng((SEED_OF_EPILOGUES, seed))
        operation = random_operation(rng, random_epilogue(rng))
        inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
        found = reference(operation, inputs)
        expected, tolerance = found.expected, found.tolerance
        if isinstance(operation, Convolution):
            expected, tolerance = (result_in_order(operation, each) for each in (expected, tolerance))
        away = np.abs(in_torch(operation, inputs) - expected)
        assert (away <= tolerance).all(), f"seed {(SEED_OF_EPILOGUES, seed)}: {operation.name}"
        assert tolerance.max() < 1e-9, operation.name
        kinds.add((operation.kind, getattr(operation, "mode", "forward")))
    assert len(kinds) == 2 + 3 * 2


@pytest.mark.parametrize("planted", ["leaky_relu(0.3)", "relu", "gelu"])
def test_another_step_does_not_agree(planted):
    """The check above can fail."""
    operation = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse("leaky_relu(0.2)"))
    wrong = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse(planted))
    rng = np.random.default_rng(SEED_OF_EPILOGUES)
    inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
    found = reference(operation, inputs)
    assert (np.abs(in_torch(wrong, inputs) - found.expected) > found.tolerance).any()


SEED_OF_NORMS = 24
AFFINE = {
    LayerNorm: (True, False, "weight", "bias"),
    LayerNormInputBackward: (True, False),
    LayerNormWeightBackward: (True, "weight"),
}
KINDS = tuple(AFFINE)
#: Operands that a forward layer norm reads, rather than statistics of its rows.
GIVEN = ("x", "dy", "weight", "bias")


def random_norm(rng: np.random.Generator, kind: type[Operation], type_: str) -> Operation:
    """Up to 9 rows of up to 40 elements; eps, and with or without parameters, where the kind has them."""
    shape = {"rows": int(rng.integers(1, 10)), "size": int(rng.integers(1, 41)), "type": type_}
    given = AFFINE[kind]
    affine = {"affine": given[rng.integers(len(given))]}
    eps = {"eps": float(rng.choice([1e-8, 1e-6, 1e-5, 1e-3, 0.5]))} if kind is LayerNorm else {}
    return kind(**shape, **affine, **eps)


def random_operands(rng: np.random.Generator, operation: Operation) -> dict[str, np.ndarray]:
    """Rows at any place and of any scale; mean and rstd are those of x, rounded to their type."""
    drawn = {
        tensor.name: rng.uniform(-1, 1, tensor.shape).astype(tensor.type.dtype)
        for tensor in operation.operands
        if tensor.name in GIVEN
    }
    scale, place = rng.choice([0.1, 1.0, 30.0]), rng.uniform(-3, 3, (operation.rows, 1))
    drawn["x"] = (drawn["x"].astype(np.float64) * scale + place).astype(drawn["x"].dtype)
    if operation.kind != LayerNorm.kind:
        x = drawn["x"].astype(np.float64)
        statistics = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + rng.choice([1e-5, 1e-3]))
        types = (tensor.type.dtype for tensor in operation.operands[2:4])
        drawn |= dict(zip(("mean", "rstd"), map(np.ndarray.astype, statistics, types), strict=True))
    return {tensor.name: drawn[tensor.name] for tensor in operation.operands}


def norm_in_torch(operation: Operation, operands: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """Every result by torch's kernels for float64."""
    given = {name: torch.from_numpy(array.astype(np.float64)) for name, array in operands.items()}
    shape = (operation.size,)
    if operation.kind == LayerNorm.kind:
        results = torch.native_layer_norm(
            given["x"], shape, given.get("weight"), given.get("bias"), operation.eps
        )
    else:
        by_input = operation.kind == LayerNormInputBackward.kind
        wants = (by_input, not by_input, not by_input and operation.affine is True)
        ones = torch.ones(shape, dtype=torch.float64)
        results = torch.ops.aten.native_layer_norm_backward(
            given["dy"], given["x"], shape, given["mean"][:, None], given["rstd"][:, None],
            given.get("weight", ones), ones, wants,
        )  # fmt: skip
    return [each.numpy() for each in results if each is not None]


def disagreement(
    operation: Operation, operands: dict[str, np.ndarray], theirs: Sequence[np.ndarray]
) -> float:
    """The largest distance between a reference and torch's result, relative to the bound of a kernel in float64.

    The bound is that of the same operation in f64, for a library that may cancel terms.
    """
    wide = replace(operation, type="f64").reference(
        [array.astype(np.float64) for array in operands.values()], stepwise=True
    )
    found = operation.reference(list(operands.values()))
    worst = 0.0
    for ours, bounded, expected in zip(found, wide, theirs, strict=True):
        values = expected.reshape(ours.expected.shape)
        assert bounded.tolerance.max() < 1e-9 * max(1.0, np.abs(values).max()), operation.name
        worst = max(worst, float((np.abs(ours.expected - values) / bounded.tolerance).max()))
    return worst


def test_200_random_layer_norms_agree_with_torch():
    """All three kinds, every type, with and without parameters; operands are widened to float64 for torch."""
    print(f"seeds ({SEED_OF_NORMS}, 0) to ({SEED_OF_NORMS}, 199)")
    seen = set()
    for seed in range(200):
        rng = np.random.default_rng((SEED_OF_NORMS, seed))
        operation = random_norm(rng, KINDS[seed % 3], TYPES[seed // 3 % len(TYPES)])
        operands = random_operands(rng, operation)
        found = disagreement(operation, operands, norm_in_torch(operation, operands))
        assert found <= 1.0, (
            f"seed {(SEED_OF_NORMS, seed)}: {operation.name} differs by {found} times the bound"
        )
        seen.add((operation.kind, operation.type, operation.affine))
    assert len(seen) == len(TYPES) * (4 + 2 + 2)


@pytest.mark.parametrize("planted", ["eps", "affine", "mean", "rows"])
def test_another_layer_norm_does_not_agree(planted):
    """The check above can fail."""
    rng = np.random.default_rng(SEED_OF_NORMS)
    operation, other = {
        "eps": (LayerNorm(4, 8, "f64", 1e-5), LayerNorm(4, 8, "f64", 1e-4)),
        "affine": (LayerNormInputBackward(4, 8, "f64"), LayerNormInputBackward(4, 8, "f64", False)),
    }.get(planted, 2 * (LayerNormWeightBackward(4, 8, "f64"),))
    operands = random_operands(rng, operation)
    changed = dict(operands)
    if planted == "mean":
        changed["mean"] = operands["mean"] + 1e-6
    if planted == "rows":
        changed["dy"] = operands["dy"][::-1].copy()
    used = {name: changed[name] for name in (tensor.name for tensor in other.operands)}
    assert disagreement(operation, operands, norm_in_torch(other, used)) > 1.0
