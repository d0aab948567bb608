"""References of random epilogues against torch in float64, which computes convolutions and steps its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from epilogue_helpers import random_epilogue
from naive_operations import operand_count, steps_in

from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.operations.contraction_reference import reference

torch: Any = pytest.importorskip("torch")
SEED = 14
F64 = ElementTypes("f64", "f64", "f64")


def random_operation(rng: np.random.Generator, epilogue: Epilogue) -> Operation:
    """A small matmul, or a convolution with any layout, groups, stride, padding and dilation."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    extents = [int(value) for value in rng.integers(1, 6, 6)]
    if rng.random() < 0.5:
        return Matmul(*extents[:3], F64, one("t", "n"), one("t", "n"), epilogue)
    groups, (c, k) = one(1, 2, 3), extents[4:]
    pair = lambda *values: (one(*values), one(*values))  # noqa: E731
    return Conv2d(
        extents[0], 5 + extents[1], 5 + extents[2], c * groups, k * groups, one(1, 2, 3), one(1, 2, 3),
        pair(1, 2), pair(0, 1, 2), pair(1, 2), groups, one("nhwc", "nchw"), F64, epilogue,
    )  # fmt: skip


def in_torch(operation: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    """The operation in torch's order of axes, where channels are axis 1 of an image."""
    lhs, rhs, *rest = (torch.from_numpy(each) for each in inputs)
    last = isinstance(operation, Conv2d) and operation.layout == "nhwc"
    if isinstance(operation, Conv2d):
        images, filters = (lhs.permute(0, 3, 1, 2), rhs.permute(3, 2, 0, 1)) if last else (lhs, rhs)
        window = (operation.stride, operation.padding, operation.dilation, operation.groups)
        value = torch.nn.functional.conv2d(images, filters, None, *window)
        rest = [each.permute(0, 3, 1, 2) if last and each.ndim == 4 else each for each in rest]
    else:
        value = (lhs if operation.lhs_layout == "t" else lhs.T) @ (
            rhs if operation.rhs_layout == "t" else rhs.T
        )
    for step in steps_in(operation.epilogue):
        count = operand_count(step)
        value, rest = step_in_torch(step, value, *rest[:count]), rest[count:]
    return (value.permute(0, 2, 3, 1) if last else value).contiguous().numpy()


def step_in_torch(step: str, value: Any, *operands: Any) -> Any:
    functional = torch.nn.functional
    name, _, listed = step.rstrip(")").partition("(")
    numbers = [float(number) for number in listed.split(",")] if listed else []
    modules: dict[str, Callable[[], Any]] = {
        "relu": torch.nn.ReLU,
        "relu6": torch.nn.ReLU6,
        "clamp": lambda: torch.nn.Hardtanh(*numbers),
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
    """Of matmuls and convolutions, all in float64; the bound is that of two float64 computations."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    for number in range(200):
        operation = random_operation(rng, random_epilogue(rng))
        inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
        found = reference(operation, inputs)
        away = np.abs(in_torch(operation, inputs) - found.expected)
        assert (away <= found.tolerance).all(), f"seed {SEED}, number {number}: {operation.name}"
        assert found.tolerance.max() < 1e-9, operation.name


@pytest.mark.parametrize("planted", ["leaky_relu(0.3)", "relu", "gelu"])
def test_another_step_does_not_agree(planted):
    """The check above can fail."""
    operation = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse("leaky_relu(0.2)"))
    wrong = Matmul(8, 8, 8, F64, epilogue=Epilogue.parse(planted))
    rng = np.random.default_rng(SEED)
    inputs = [rng.normal(size=tensor.shape) for tensor in operation.operands]
    found = reference(operation, inputs)
    assert (np.abs(in_torch(wrong, inputs) - found.expected) > found.tolerance).any()
