"""An explanation in short lines: shares, where kernels come from, and what tuning is expected to bring."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from dispatch_profiler.boo.backends import ChoiceReport, Explanation, RegionReport
from dispatch_profiler.boo.capture.explanation_lines import kernels_of, lines_of
from dispatch_profiler.boo.kernels.uses import KernelOrigin, KernelUse
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul, Operation

CONV, PRODUCT = Conv2d(1, 14, 14, 256, 256, 3, 3), Matmul(128, 768, 3072)


def region(
    operation: Operation, origin: KernelOrigin, ms: float | None, *, missed: bool = True
) -> RegionReport:
    use = KernelUse(operation, "tile_config_x", origin, "", missed)
    seconds = None if ms is None else ms / 1e3
    beside = None if seconds is None else 2 * seconds
    return RegionReport("inference", ("a", "b"), "root", operation, "x", "", seconds, beside, use=use)


LEFT = RegionReport("inference", ("softmax_1",), "softmax", reason="torch is faster")
ENTRY = region(CONV, KernelOrigin.ENTRY, 6.0, missed=False)
UNTUNED = region(PRODUCT, KernelOrigin.UNTUNED, 1.4)


def test_equal_regions_are_one_line_and_the_largest_expected_saving_comes_first():
    """Two untuned products of 1.4 ms save 0.8 ms of 8.8; the convolution has its entry, so nothing."""
    title, header, first, second, third = lines_of(Explanation((ENTRY, UNTUNED, LEFT, UNTUNED)))
    assert (
        title
        == "3 of 4 regions are computed by kernels of this package, in 8.8 ms; tuning is expected to save 9 %"
    )
    assert header.split() == ["%", "us", "torch", "tuning", "kernel", "from", "operation"]
    assert first.split() == ["31.8", "2800", "2.00x", "1.40x", "untuned", "matmul", "128x768x3072", "x2"]
    assert second.split() == [
        "68.2",
        "6000",
        "2.00x",
        "exact",
        "entry",
        "conv",
        "3x3",
        "256->256",
        "14x14",
        "s1",
    ]
    assert third.split() == [
        "-",
        "-",
        "-",
        "left",
        "to",
        "torch",
        "softmax",
        "(softmax_1):",
        "torch",
        "is",
        "faster",
    ]


def test_equal_regions_of_several_modules_have_the_first_path():
    """The operation is never cut for a path."""
    residual = replace(CONV, padding=(1, 1), epilogue=Epilogue.parse("residual+relu"))
    layers = [
        replace(region(residual, KernelOrigin.ENTRY, 1.0), module=f"layer3.{at}.conv2") for at in range(4)
    ]
    (kernel,) = kernels_of(Explanation(tuple(layers)))
    assert (kernel.count, kernel.modules) == (4, tuple(f"layer3.{at}.conv2" for at in range(4)))
    *_, line = lines_of(Explanation(tuple(layers)))
    assert line.endswith(" conv 3x3 256->256 14x14 s1 +residual relu (...0.conv2) x4")
    *_, line = lines_of(Explanation(tuple(layers[:1])))
    assert line.endswith(" conv 3x3 256->256 14x14 s1 +residual relu (layer3.0.conv2)") and len(line) == 100


def test_a_predicted_kernel_beside_an_entry_has_nothing_to_gain():
    """It was measured to be faster than the entry."""
    (kernel,) = kernels_of(Explanation((region(CONV, KernelOrigin.PREDICTED, 1.0, missed=False),)))
    assert kernel.expected == 1.0 and kernel.saved == 0.0
    title, *_ = lines_of(Explanation((ENTRY,)))
    assert title.endswith("nothing is left to tune")


def test_what_connects_kernels_cannot_be_tuned():
    (kernel,) = kernels_of(Explanation((replace(ENTRY, use=None),)))
    assert (kernel.origin, kernel.expected) == ("connects", None)


def test_without_times_there_are_no_shares():
    title, _, line = lines_of(Explanation((region(CONV, KernelOrigin.NEAR, None),)))
    assert title == "1 of 1 regions are computed by kernels of this package"
    assert line.split()[:5] == ["-", "-", "-", "1.05x", "near"]


def test_no_line_is_longer_than_100_characters():
    choice = ChoiceReport(
        "inference", "fused", {f"candidate number {number}": 1.0 for number in range(12)} | {"fused": 0.5}
    )
    long = replace(LEFT, reason="because " * 40)
    lines = list(lines_of(Explanation((ENTRY, long), (choice,))))
    assert max(map(len, lines)) <= 100 and len(lines) > 5
    assert any(line.endswith("...") for line in lines)
