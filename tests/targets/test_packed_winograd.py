"""Winograd's form is a candidate where its products have enough rows to pay for the transforms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Formed, rejection_reason
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul
from dispatch_profiler.targets import packed_winograd, parse_target

CPU = parse_target("llvm-cpu")
#: 196 tiles of 4x4 pixels.
LARGE = Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")


@pytest.mark.parametrize(
    ("pixels", "images", "form", "rows"),
    [
        (56, 1, "winograd", (49, 64)),
        (28, 1, "winograd", (49, 64)),
        (32, 1, "winograd", (64, 128)),
        (14, 1, "winograd_2", (49, 64)),
        (14, 8, "winograd", (64, 128)),
        (7, 1, None, ()),
    ],
)
def test_tiles_follow_the_number_of_rows(
    pixels: int, images: int, form: str | None, rows: tuple[int, ...]
) -> None:
    operation = replace(LARGE, n=images, h=pixels, w=pixels)
    found = packed_winograd(operation, CPU)
    if form is None:
        assert found is None
        return
    assert isinstance(found, Formed) and found.packed
    assert (found.form, found.inner.distribution) == (form, rows)  # type: ignore[attr-defined]
    assert rejection_reason(found, operation, CPU.limits) is None


@pytest.mark.parametrize(
    "operation",
    [
        replace(LARGE, stride=(2, 2)),
        replace(LARGE, r=1, s=1, padding=(0, 0)),
        replace(LARGE, groups=2),
        replace(LARGE, c=3),
        replace(LARGE, k=8),
        replace(LARGE, mode="input_backward"),
        replace(LARGE, types=ElementTypes("f16", "f16", "f32")),
        Matmul(64, 64, 64),
    ],
)
def test_other_operations_have_none(operation: object) -> None:
    assert packed_winograd(operation, CPU) is None  # type: ignore[arg-type]


def test_other_targets_have_none() -> None:
    assert packed_winograd(LARGE, parse_target("cuda:sm_90")) is None
