"""References of random epilogues against torch in float64, which computes convolutions and steps its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from epilogue_helpers import random_epilogue
from naive_operations import operand_count, steps_in

from dispatch_profiler.operations import CONV_ROLES, BatchMatmul, Contraction, Convolution, Epilogue, Matmul
from dispatch_profiler.operations.contraction.reference import reference

torch: Any = pytest.importorskip("torch")
from torch_convolutions import F64, convolution_in_torch, in_order, random_fields, result_in_order  # noqa: E402

SEED = 14


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
        "gelu": torch.nn.GELU,
        "gelu_tanh": lambda: torch.nn.GELU(approximate="tanh"),
        "silu": torch.nn.SiLU,
        "sigmoid": torch.nn.Sigmoid,
        "tanh": torch.nn.Tanh,
    }
    if name == "scale_shift":
        eps = 2.0**-20  # some versions of torch reject 0; the variance and this add up to 1, exactly
        mean = torch.zeros(operands[0].shape[0], dtype=torch.float64)
        return functional.batch_norm(value, mean, mean + (1.0 - eps), operands[0], operands[1], eps=eps)
    if name == "bias":
        return value + operands[0].reshape(-1, *([1] * (value.ndim - 2)))
    return value + operands[0] if name == "residual" else modules[name]()(value)


def test_200_random_epilogues_agree_with_torch():
    """Of products and convolutions, all in float64; the bound is that of two float64 computations."""
    print(f"seeds ({SEED}, 0) to ({SEED}, 199)")
    kinds = set()
    for seed in range(200):
        rng = np.random.default_rng((SEED, seed))
        operation = random_operation(rng, random_epilogue(rng))
        inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
        found = reference(operation, inputs)
        expected, tolerance = found.expected, found.tolerance
        if isinstance(operation, Convolution):
            expected, tolerance = (result_in_order(operation, each) for each in (expected, tolerance))
        away = np.abs(in_torch(operation, inputs) - expected)
        assert (away <= tolerance).all(), f"seed {(SEED, seed)}: {operation.name}"
        assert tolerance.max() < 1e-9, operation.name
        kinds.add((operation.kind, getattr(operation, "mode", "forward")))
    assert len(kinds) == 2 + 3 * 2


@pytest.mark.parametrize("planted", ["leaky_relu(0.3)", "relu", "gelu"])
def test_another_step_does_not_agree(planted):
    """The check above can fail."""
    operation = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse("leaky_relu(0.2)"))
    wrong = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse(planted))
    rng = np.random.default_rng(SEED)
    inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
    found = reference(operation, inputs)
    assert (np.abs(in_torch(wrong, inputs) - found.expected) > found.tolerance).any()
