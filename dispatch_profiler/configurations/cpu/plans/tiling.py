"""The plans of microkernels, from operations and tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from dispatch_profiler.configurations.cpu.plans.fours import FOURS
from dispatch_profiler.configurations.cpu.plans.microkernel import MicrokernelPlan
from dispatch_profiler.configurations.cpu.plans.tile_runs import Windows
from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry


class Tiling(Protocol):
    """The fields of a microkernel's configuration: see `Microkernel`."""

    @property
    def distribution(self) -> tuple[int, int]: ...
    @property
    def registers(self) -> tuple[int, int, int]: ...
    @property
    def unroll(self) -> int: ...
    @property
    def margin(self) -> int: ...
    @property
    def packed(self) -> bool: ...
    @property
    def lanes(self) -> int: ...
    @property
    def pairs(self) -> bool: ...
    @property
    def rounds(self) -> bool: ...


def microkernel_plan(operation: Operation, tiling: Tiling) -> MicrokernelPlan:
    """The plan for an operation that has no `shape_reason`, and whose channels can be multiplied together."""
    contraction = operation.contraction
    assert contraction is not None
    together = FOURS if contraction.types.inputs == "i8" else 2 if tiling.pairs else 1
    plan = partial(
        MicrokernelPlan,
        type=contraction.types.lhs,
        result=contraction.types.output.name,
        together=together,
        rounds=tiling.rounds,
        distribution=tiling.distribution,
        registers=tiling.registers,
        unroll=tiling.unroll,
        margin=tiling.margin,
        packed=tiling.packed,
        lanes=tiling.lanes,
    )
    product, convolution = operation.product, operation.convolution
    if product is not None:
        return _of_product(plan, product, together)
    forward = convolution and convolution.as_forward
    assert forward is not None
    return _of_convolution(plan, forward, together, is_reversed=forward is not convolution)


def _of_product(
    plan: Callable[..., MicrokernelPlan], product: ProductGeometry, together: int
) -> MicrokernelPlan:
    return plan(
        images=1,
        rows=product.m,
        columns=1,
        channels=product.k // together,
        filters=product.n,
        groups=1,
        is_depthwise=False,
        size=(product.m, 1),
        taps=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        low=(0, 0),
        planes=1,
        plane=Windows(1, 1, 1, 1, 0),
        is_reversed=False,
        lhs_is_transposed=product.lhs_layout == "n",
        rhs_is_transposed=product.rhs_layout == "n",
        has_taps_inside=False,
    )


def _of_convolution(
    plan: Callable[..., MicrokernelPlan],
    convolution: ConvolutionGeometry,
    together: int,
    *,
    is_reversed: bool,
) -> MicrokernelPlan:
    is_depthwise = convolution.variant == "depthwise"
    missing = 3 - convolution.spatial_rank  # An image has one plane, and a line also one row.
    planes, rows, columns = (1,) * missing + convolution.output_size
    axes = [Windows(1, 1, 1, 1, 0)] * missing + [
        Windows(*each)
        for each in zip(
            convolution.size,
            convolution.filter_size,
            convolution.stride,
            convolution.dilation,
            convolution.padding,
            strict=True,
        )
    ]
    down, right = axes[1:]
    return plan(
        images=convolution.batch,
        rows=rows,
        columns=columns,
        channels=convolution.channels_per_group // together,
        filters=convolution.filters,
        groups=1 if is_depthwise else convolution.groups,
        is_depthwise=is_depthwise,
        size=(down.size, right.size),
        taps=(down.taps, right.taps),
        stride=(down.stride, right.stride),
        dilation=(down.dilation, right.dilation),
        low=(down.low, right.low),
        planes=planes,
        plane=axes[0],
        is_reversed=is_reversed,
        lhs_is_transposed=False,
        rhs_is_transposed=convolution.filter_layout.startswith("f"),
        has_taps_inside=convolution.filter_layout.startswith(("c", "fc")),
    )
