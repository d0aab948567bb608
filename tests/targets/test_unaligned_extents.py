"""Operations whose extents fill no vectors do not fall back to the compiler's default, which may be scalar code."""

from __future__ import annotations

import random

import pytest

from dispatch_profiler.configurations import Default, Flow, Formed
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul
from dispatch_profiler.targets import fastest_form, parse_target
from dispatch_profiler.targets.unaligned_extents import unaligned_configurations

CPU = parse_target("llvm-cpu:x86-64-v4")


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(65, 1023, 1021), (197, 768, 768), (167, 1023, 253), (510, 1000, 64)]
)
def test_products_are_peeled_or_padded(m: int, n: int, k: int, layout: str):
    found = fastest_form(Matmul(m, n, k, rhs_layout=layout), CPU)
    if layout == "t":
        assert found is not None
        assert getattr(found, "peel", False)
    else:
        assert found == Flow("ukernels")


def test_short_sums_are_not_packed():
    found = fastest_form(Matmul(422, 131, 6, rhs_layout="n"), CPU)
    assert found is not None
    assert getattr(found, "peel", False)


def test_what_fills_vectors_or_is_tiny_is_left_to_other_rules():
    for operation in (
        Matmul(128, 768, 768),
        Matmul(3, 5, 7),
        Conv2d(1, 14, 14, 64, 64, 3, 3, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 14, 14, 64, 36, 3, 3, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 14, 14, 64, 63, 3, 3, layout="nhwc_fhwc_nhwc", mode="input_backward"),
        Conv2d(1, 14, 14, 63, 64, 3, 3, layout="nhwc_fhwc_nhwc"),
    ):
        assert not list(unaligned_configurations(operation))


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc", "nchw_fchw_nchw"])
def test_convolutions_with_an_odd_number_of_filters_become_padded_products(layout: str):
    operation = Conv2d(1, 31, 31, 63, 127, 3, 3, padding=(1, 1), layout=layout)
    assert fastest_form(operation, CPU) == Formed("im2col_t", Flow("data_tiling"))


def test_a_gradient_of_an_odd_number_of_channels_becomes_a_peeled_product():
    operation = Conv2d(
        1, 31, 31, 63, 128, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc", mode="input_backward"
    )
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form == "im2col"


def test_whatever_is_chosen_is_valid_for_the_operation():
    rng = random.Random(0)
    for _ in range(200):
        m, n, k = (rng.randint(1, 1100) for _ in range(3))
        lhs, rhs, kind = rng.choice("tn"), rng.choice("tn"), rng.choice(["f32", "f16", "bf16", "f64", "i8"])
        result = {"i8": "i32"}.get(kind, kind)
        operation = Matmul(m, n, k, ElementTypes(kind, kind, result), lhs_layout=lhs, rhs_layout=rhs)
        found = fastest_form(operation, CPU) or Default()
        assert found.invalid_reason(operation, CPU.limits) is None
