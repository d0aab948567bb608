"""bf16 on CPUs that multiply pairs of it, and on those that convert each element."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Configuration, Flow, Formed
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import fastest_form, parse_target

WITH, WITHOUT = parse_target("llvm-cpu:znver4"), parse_target("llvm-cpu:cascadelake")
TYPES = ElementTypes("bf16", "bf16", "bf16")
PAIRS = (Flow("data_tiling"), Flow("ukernels"))
LAYOUTS = ("nchw_fchw_nchw", "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc")


def product(m: int, n: int, k: int, layout: str) -> Operation:
    return Matmul(m, n, k, TYPES, rhs_layout=layout)


def convolution(mode: str, layout: str, filters: int = 64, stride: int = 1) -> Operation:
    return Conv2d(
        2, 14, 14, 48, filters, 3, 3, stride=(stride, stride), types=TYPES, layout=layout, mode=mode
    )


def multiplies_pairs(found: Configuration | None) -> bool:
    return getattr(found, "inner", found) in PAIRS


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 256), (43, 68, 439), (407, 817, 27), (53, 55, 1028)])
def test_products_are_tiled_for_pairs_where_the_cpu_multiplies_them(m: int, n: int, k: int, layout: str):
    assert fastest_form(product(m, n, k, layout), WITH) == Flow("data_tiling")


@pytest.mark.parametrize(
    "operation",
    [product(4, 128, 256, "t"), product(1, 300, 200, "t"), product(3, 5, 7, "t"), product(18, 55, 36, "t")],
)
def test_a_few_rows_and_little_work_are_not_packed(operation: Operation):
    assert fastest_form(operation, WITH) != Flow("data_tiling")


@pytest.mark.parametrize("filters", [64, 51])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("mode", "form"), [("forward", "im2col_t"), ("weight_backward", "im2col_t"), ("input_backward", "im2col")]
)
def test_convolutions_are_products_of_pairs(mode: str, form: str, layout: str, filters: int):
    assert fastest_form(convolution(mode, layout, filters), WITH) == Formed(form, Flow("data_tiling"))


def test_an_inputs_gradient_with_a_stride_is_not_gathered():
    operation = replace(convolution("input_backward", "nchw_fchw_nchw", stride=2), h=40, w=40)
    assert getattr(fastest_form(operation, WITH), "form", "") in ("phases", "shuffled")


@pytest.mark.parametrize("mode", ["forward", "input_backward", "weight_backward"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("filters", [1, 6, 51, 64])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_cpu_without_the_instructions_converts_no_element_by_itself(mode, layout, filters, stride):
    """It takes some 100 times as long."""
    assert not multiplies_pairs(fastest_form(convolution(mode, layout, filters, stride), WITHOUT))


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 256), (43, 68, 439), (328, 1, 235), (1, 137, 708)])
def test_nor_does_a_product_there(m: int, n: int, k: int, layout: str):
    assert not multiplies_pairs(fastest_form(product(m, n, k, layout), WITHOUT))


@pytest.mark.parametrize("layout", ["t", "n"])
def test_batches_of_products_are_tiled_too(layout: str):
    assert fastest_form(BatchMatmul(12, 128, 128, 64, TYPES, rhs_layout=layout), WITH) == Flow("data_tiling")
