"""Ranges of sizes: their texts, the sizes at which kernels are measured, and what they do not apply to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import BatchMatmul, Conv2d, Matmul, Operation, Softmax
from dispatch_profiler.operations.size_range import SizeRange

PRODUCT = Matmul(3, 4, 5)
IMAGES = Conv2d(1, 4, 4, 8, 8, 1, 1, layout="nhwc_fhwc_nhwc")


def test_the_text_is_read_back():
    assert SizeRange.parse("m=17:256") == SizeRange("m", 17, 256)
    assert SizeRange("n", 1, 64).text == "n=1:64"


@pytest.mark.parametrize("text", ["m=5", "m=:5", "m=1:", "1:5", "m=1:5:7", "m=a:b", "m=1.5:3", ""])
def test_other_texts_are_errors_with_the_form(text: str):
    with pytest.raises(OperationError, match="expected DIMENSION=LEAST:MOST, such as m=1:4096"):
        SizeRange.parse(text)


def test_an_empty_range_names_the_other_order():
    with pytest.raises(OperationError, match="m=10:1: the range is empty; did you mean m=1:10"):
        SizeRange.parse("m=10:1")
    with pytest.raises(OperationError, match="sizes of at least 1"):
        SizeRange.parse("m=0:4")


def test_samples_have_both_ends_even_and_odd_sizes_and_similar_ratios():
    samples = SizeRange("m", 1, 4096).samples(13)
    assert samples == (1, 3, 4, 9, 16, 33, 64, 129, 256, 513, 1024, 2049, 4096)
    assert SizeRange("m", 17, 19).samples(13) == (17, 18, 19)
    assert SizeRange("m", 9, 9).samples(13) == (9,)


def test_both_ends_are_in_the_range():
    sizes = SizeRange("m", 17, 256)
    assert [each for each in (16, 17, 256, 257) if each in sizes] == [17, 256]


def test_the_largest_operation_has_the_last_size():
    assert SizeRange("m", 1, 64).largest_of(PRODUCT) == replace(PRODUCT, m=64)
    assert SizeRange("n", 1, 64).largest_of(IMAGES) == replace(IMAGES, n=64)


OTHERS: dict[str, tuple[str, Operation, str]] = {
    "columns": ("n=1:64", PRODUCT, "one kernel is for several m, not for several n"),
    "terms": ("k=1:64", PRODUCT, "one kernel is for several m, not for several k"),
    "softmax": ("m=1:64", Softmax.smallest(), "no kernel of such an operation is for several sizes"),
    "batch": ("m=1:64", BatchMatmul(2, 4, 4, 4), "no kernel of such an operation"),
    "transposed": ("m=1:64", replace(PRODUCT, lhs_layout="n"), "no kernel of such an operation"),
    "gradient": ("n=1:64", replace(IMAGES, mode="input_backward"), "no kernel of such an operation"),
}


@pytest.mark.parametrize(("text", "operation", "message"), OTHERS.values(), ids=OTHERS)
def test_it_does_not_apply_to_other_dimensions(text: str, operation: Operation, message: str):
    with pytest.raises(OperationError, match=message):
        SizeRange.parse(text).largest_of(operation)
