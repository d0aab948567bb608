"""Launches of matrix products whose operands have two types, which neither torch nor numpy multiplies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dispatch_profiler.boo import get_launchable
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.errors import OperationError, UnsupportedFeature, UsageError

A, B = (6, 40), (40, 24)
#: The types of a and b, and of the result.
TYPES = [
    (torch.float16, torch.float8_e4m3fn, torch.float16),
    (torch.float8_e5m2, torch.float8_e4m3fn, torch.float32),
    (torch.int8, torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.float16, torch.float32),
]


def drawn(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, whose sums every type of a result represents."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).to(dtype)


@pytest.mark.some(2)
@pytest.mark.parametrize(("a_type", "b_type", "result"), TYPES)
def test_tensors_and_arrays_of_two_types_are_multiplied(
    a_type: torch.dtype, b_type: torch.dtype, result: torch.dtype
):
    """torch multiplies the same numbers in float64."""
    signature = GEMMSignature(a_shape=A, b_shape=B, transpose_b=True, dtype=a_type, b_dtype=b_type)
    a, b = drawn(A, a_type, 1), drawn(B[::-1], b_type, 2)
    expected = a.double() @ b.double().T
    launch = get_launchable(signature)

    of_tensors = launch(a, b)
    assert of_tensors.dtype == result
    assert torch.equal(of_tensors.double(), expected)

    specs = signature.launch.arguments
    arrays = [
        each.view(torch.uint8).numpy().view(spec.type.dtype) for each, spec in zip((a, b), specs, strict=True)
    ]
    assert np.array_equal(launch(*arrays).astype(np.float64), expected.numpy())


def test_a_tensor_of_the_other_type_is_an_error():
    launch = get_launchable(GEMMSignature(a_shape=A, b_shape=B, dtype="f16", b_dtype="f32"))
    with pytest.raises(UsageError, match=r"argument b .* expected f32"):
        launch(drawn(A, torch.float16, 1), drawn(B, torch.float16, 2))


def test_what_two_types_lack_is_said():
    mixed = GEMMSignature(a_shape=A, b_shape=B, dtype="f16", b_dtype="f32")
    assert mixed == GEMMSignature(**mixed.as_init_kwargs())
    with pytest.raises(UnsupportedFeature, match="no command for gemm of f16 and f32"):
        _ = mixed.command
    backward = GEMMSignature(**{**mixed.as_init_kwargs(), "mode": "a_backward"})
    with pytest.raises(OperationError, match="a product of f16 and f32 has no input_backward"):
        _ = backward.operation
    with pytest.raises(UsageError, match=r"unsupported type torch\.int32"):
        GEMMSignature(a_shape=A, b_shape=B, b_dtype=torch.int32)
