"""Launches are compared with torch and the reference, whatever the shapes and the order of their arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from launch_helpers import plain_spec

from dispatch_profiler.boo.driver.numerics.check import CheckOptions, ComparedKernel, Deviates, check_numerics
from dispatch_profiler.boo.interface import LaunchSpec
from dispatch_profiler.operations import ElementTypes, LayerNorm, Matmul

torch = pytest.importorskip("torch")

PRODUCT = Matmul(16, 24, 32, types=ElementTypes("bf16", "bf16", "bf16"))


def test_a_correct_kernel_does_not_deviate():
    verdict = check_numerics(plain_spec(PRODUCT), torch.matmul, CheckOptions())

    assert verdict.deviates is Deviates.NEITHER
    assert not verdict.has_failed
    assert str(verdict) == "numerics: neither deviates"


def test_a_wrong_kernel_is_named():
    verdict = check_numerics(
        plain_spec(PRODUCT), lambda lhs, rhs: torch.matmul(lhs, rhs) * 1.5, CheckOptions()
    )

    assert verdict.deviates is Deviates.IREE
    assert verdict.has_failed
    assert verdict.reason.startswith("iree: result: ")
    assert "exceed their error bound" in str(verdict)


def test_sums_in_a_narrow_type_deviate():
    """Each element may lie within a bound for sums in any order; all of them together show it."""

    def narrow(lhs, rhs):
        sums = torch.zeros(PRODUCT.result.shape, dtype=torch.bfloat16)
        for k in range(PRODUCT.k):
            sums += lhs[:, k : k + 1] * rhs[k : k + 1]
        return sums

    assert check_numerics(plain_spec(PRODUCT), narrow, CheckOptions()).deviates is Deviates.IREE


def test_small_results_are_drawn_until_there_are_enough_elements():
    small = plain_spec(Matmul(2, 2, 4))

    (default,) = check_numerics(small, torch.matmul, CheckOptions()).results
    (few,) = check_numerics(small, torch.matmul, CheckOptions(min_samples=10)).results

    assert default.spreads[ComparedKernel.IREE].elements == 32 * 4
    assert few.spreads[ComparedKernel.IREE].elements == 3 * 4


def test_arguments_have_the_order_and_shapes_of_the_launch():
    """A launch of a layer norm that takes the weight first and (2, 3, 8) instead of rows, and returns only y."""
    norm = LayerNorm(6, 8)
    plain = plain_spec(norm)
    x, weight, bias = plain.arguments
    (y, *_) = plain.results
    spec = LaunchSpec(norm, (weight, replace(x, shape=(2, 3, 8)), bias), (replace(y, shape=(2, 3, 8)),))
    seen = []

    def launch(weight, x, bias):
        seen.append((tuple(weight.shape), tuple(x.shape), tuple(bias.shape)))
        return torch.nn.functional.layer_norm(x, (8,), weight, bias, norm.eps)

    verdict = check_numerics(spec, launch, CheckOptions())

    assert verdict.deviates is Deviates.NEITHER
    assert set(seen) == {((8,), (2, 3, 8), (8,))}
    assert [result.name for result in verdict.results] == ["y"]


def test_without_torch_only_iree_is_compared(monkeypatch):
    monkeypatch.setattr("dispatch_profiler.boo.driver.numerics.check.has_torch", lambda: False)
    seen = []

    def launch(lhs, rhs):
        seen.append(type(lhs))
        return (lhs.astype(np.float64) @ rhs).astype(lhs.dtype)

    verdict = check_numerics(plain_spec(Matmul(16, 24, 32)), launch, CheckOptions())

    assert set(seen) == {np.ndarray}
    assert list(verdict.results[0].spreads) == [ComparedKernel.IREE]
    assert str(verdict) == "numerics: neither deviates (torch is not installed)"


def test_what_torch_does_not_compute_is_noted():
    from dispatch_profiler.operations import LayerNormWeightBackward

    operation = LayerNormWeightBackward(8, 16, "bf16")

    def launch(*operands):
        arrays = [operand.float().double().numpy() for operand in operands]
        found = operation.reference(arrays)
        return tuple(torch.from_numpy(each.expected).bfloat16() for each in found)

    verdict = check_numerics(plain_spec(operation), launch, CheckOptions(min_samples=1))

    assert verdict.deviates is Deviates.NEITHER
    assert "torch sums gradients" in verdict.notes
