"""Pools and resized images are one kernel, which computes what torch computes in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import check_close, launched
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.windows import window_axes, window_plan
from dispatch_profiler.boo.fusion.resizing import restore_resizing
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
KERNEL = "hal.executable.source"
resize: Any = functional.interpolate

#: Of images with 8 x 12 pixels.
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: functional.max_pool2d(x, (2, 3), (1, 2), 1, 2),
    "max, ceil": lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    "avg": lambda x: functional.avg_pool2d(x, 3, (2, 1), 1),
    "avg, long": lambda x: functional.avg_pool2d(x, (2, 4)),
    "avg, ceil": lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True),
    "avg of the image": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg, ceil, of the image": lambda x: functional.avg_pool2d(
        x, (2, 3), 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "avg, ceil, padded": lambda x: functional.avg_pool2d(x, 3, (3, 2), 1, ceil_mode=True),
    "avg, divided by 5": lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive, unequal": lambda x: functional.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive, larger": lambda x: functional.adaptive_avg_pool2d(x, (9, 13)),
    "bilinear": lambda x: resize(x, size=(15, 7), mode="bilinear"),
    "bilinear, corners": lambda x: resize(x, size=(15, 23), mode="bilinear", align_corners=True),
    "bilinear by 1.7": lambda x: resize(x, scale_factor=1.7, mode="bilinear"),
    "bicubic": lambda x: resize(x, scale_factor=2, mode="bicubic"),
    "nearest": lambda x: resize(x, scale_factor=2, mode="nearest"),
    "nearest-exact": lambda x: resize(x, size=(5, 30), mode="nearest-exact"),
}
#: Of each operator one that differs in more than one argument from what the others have by default.
SOME = (
    "max, dilated", "avg, ceil, of the image", "avg, divided by 5", "adaptive, unequal", "bilinear, corners", "bicubic",
    "nearest-exact",
)  # fmt: skip
#: Of volumes with 4 x 3 x 5 pixels.
VOLUMES: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: functional.max_pool3d(x, (1, 3, 2), (1, 2, 2), (0, 1, 1)),
    "avg": lambda x: functional.avg_pool3d(x, (1, 2, 3), ceil_mode=True),
    "trilinear": lambda x: resize(x, scale_factor=2, mode="trilinear"),
    "nearest": lambda x: resize(x, size=(4, 6, 5), mode="nearest"),
}


def program_of(
    function: Callable[[Any], Any], channels: int, pixels: tuple[int, ...] = (8, 12), *, is_read: bool = False
) -> OperatorProgram:
    """The program behind a convolution, whose result another convolution reads with `is_read`, or torch."""
    convolve = functional.conv2d if len(pixels) == 2 else functional.conv3d
    weight = torch.randn(channels, 3, *[1] * len(pixels))

    def compute(x: Any, weight: Any) -> Any:
        y = function(convolve(x, weight))
        return convolve(y, torch.ones(2, channels, *[1] * len(pixels))) if is_read else y

    graph = inference_graph(compute, torch.randn(2, 3, *pixels), weight).graph
    restore_resizing(graph)
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    (found,) = find_glue(graph, regions)
    assert isinstance(found.spec.operation, OperatorProgram)
    return found.spec.operation


def check(program: OperatorProgram) -> None:
    """The kernel computes what torch computes, also of NaN and infinities."""
    rng = np.random.default_rng(3)
    for spoils in (False, True):
        (operand,) = (program.draw(each, program.distributions[0], rng) for each in program.operands)
        if spoils:
            operand.reshape(2, -1, operand.shape[-1])[0, 7, 1] = np.nan
            operand.reshape(2, -1, operand.shape[-1])[1, 54, 2] = np.inf
        (found,), (reference,) = launched(program, [operand]), program.reference([operand])
        check_close(found, reference)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in SOME else pytest.mark.slow) for each in WINDOWS]
)
def test_pools_and_resized_images(name: str) -> None:
    program = program_of(WINDOWS[name], 21, is_read=True)
    assert KERNEL in program.mlir("f")
    check(program)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str) -> None:
    program = program_of(VOLUMES[name], 5, (4, 3, 5), is_read=True)
    assert KERNEL in program.mlir("f")
    check(program)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [4, 16, 31, 48, 128])
@pytest.mark.parametrize("name", ["max", "avg, ceil", "bilinear", "bicubic"])
def test_any_number_of_channels(name: str, channels: int) -> None:
    for is_read in (False, True):
        program = program_of(WINDOWS[name], channels, is_read=is_read)
        assert KERNEL in program.mlir("f")
        check(program)


@pytest.mark.parametrize(("name", "channels"), [("bilinear", 21), ("bilinear by 1.7", 16), ("max", 5)])
def test_a_result_whose_channels_come_first_is_transposed(name: str, channels: int) -> None:
    program = program_of(WINDOWS[name], channels)
    assert program.outputs[0].reading == "rows"
    assert window_plan(program).is_transposed
    check(program)


def test_views_before_and_behind_are_read_and_written_in_place() -> None:
    """Tokens as an image, and windows as vectors."""
    program = program_of(
        lambda x: functional.avg_pool2d(x.flatten(2).transpose(1, 2).mT.reshape(2, 8, 12, 8), 2).flatten(1), 8
    )
    assert KERNEL in program.mlir("f")
    assert [name for name, _, _ in program.parsed_calls][-1] in ("reshape", "view")
    check(program)


def test_few_rows_are_divided_by_channels() -> None:
    plan = window_plan(program_of(WINDOWS["adaptive"], 256, is_read=True))
    assert (plan.rows, plan.block, plan.units) == (8, 64, 32)
    check(program_of(WINDOWS["adaptive"], 256, is_read=True))


def test_windows_along_an_axis_are_those_of_torch() -> None:
    first, second = window_axes("avg_pool2d", (1, 1, 4, 3), [None, [3, 1], [2, 1], [1, 0]])
    assert first.taps == ((0, 1, 1), (1, 2, 3))
    assert np.allclose(first.weights, [[1 / 3, 1 / 6, 1 / 6], [1 / 3, 1 / 3, 1 / 3]])
    assert second.taps == ((0,), (1,), (2,))
    assert second.is_copied
    (axis,) = window_axes("upsample_linear1d", (1, 1, 2), [None, [4], False, None])
    assert axis.taps == ((0, 1), (0, 1), (0, 1), (1, 1))
    assert np.allclose(axis.weights, [[1, 0], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    with pytest.raises(NotFusible, match="more than"):
        window_axes("avg_pool2d", (1, 1, 9, 9), [None, [7, 7]])
    with pytest.raises(NotFusible, match="avg_pool2d"):
        window_axes("avg_pool2d", (1, 1, 9, 9), [None, [3, 3], [1, 1], [2, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["avg, ceil", "adaptive"])
def test_iree_compiles_pools_of_few_channels(name: str) -> None:
    program = program_of(WINDOWS[name], 3)
    assert KERNEL not in program.mlir("f")
    check(program)


def test_maxima_of_few_channels_are_left_to_torch() -> None:
    """Most lanes of the kernel's vectors would be empty."""
    graph = inference_graph(
        lambda x: functional.max_pool2d(functional.relu(x), 3), torch.randn(2, 3, 8, 12)
    ).graph
    assert find_glue(graph, find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)[0]) == []


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.slow)],
)
def test_a_network_that_resizes_is_one_run(dtype: torch.dtype, tolerance: float) -> None:
    """As decoders of segmentation: nothing is left to torch."""
    first, second = (torch.nn.Conv2d(*each, dtype=dtype) for each in ((3, 8, 3, 2, 1), (8, 5, 3, 1, 1)))

    def model(x: Any) -> Any:
        y = functional.max_pool2d(resize(first(x), size=(9, 7), mode="bilinear"), 3, 1, 1)
        return resize(second(y), size=x.shape[-2:], mode="bicubic")

    left: list[str] = []

    def nested(module: Any, _: Any) -> Any:
        left.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    ours = backend(nested_backend=nested, autotune=False, strict=True)
    compiled: Any = torch.compile(model, backend=ours, dynamic=False)
    x = torch.randn(2, 3, 12, 10, dtype=dtype)
    with torch.inference_mode():
        expected = model(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected, rtol=tolerance, atol=tolerance)
    assert not any("upsample" in each or "pool" in each for each in left)
