"""The loops and addresses of a kernel for the gradient of depthwise filters, which its template writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.plans.tile_runs import TileRun, Windows
from dispatch_profiler.operations import ConvolutionGeometry, Operation

#: MiB of the sums of all workgroups: each workgroup has its own.
_MAX_SUMS = 64
_MOST_AXES = 2


@dataclass(frozen=True)
class DepthwiseGradientPlan:
    """A depthwise convolution of nhwc images, whose filters' gradient is computed, and its tiles.

    images, channels   of both operands; a filter has one channel
    rows, columns      pixels of the output's gradient; `down` and `right` are the windows along them
    filters_first      whether the taps of a filter are side by side (fhwc), not the filters of a tap (hwcf)
    distribution       strips of rows, and channels, of a workgroup
    registers          rows of a strip; pixels of a row, and channels, that are multiplied at a time
    lanes              elements of a vector
    """

    images: int
    channels: int
    rows: int
    columns: int
    down: Windows
    right: Windows
    filters_first: bool
    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    lanes: int

    # -- extents ------------------------------------------------------------------------------

    @property
    def block(self) -> int:
        """Channels that are computed together; the last block may have fewer."""
        return self.registers[2]

    @property
    def vectors(self) -> int:
        """Vectors of a block."""
        return self.block // self.lanes

    @property
    def padded_channels(self) -> int:
        """Channels of all blocks, as if the last one had as many as others."""
        return -(-self.channels // self.block) * self.block

    @property
    def is_masked(self) -> bool:
        """Whether the last block has fewer channels than others."""
        return self.channels < self.padded_channels

    @property
    def taps(self) -> int:
        """Of a filter."""
        return self.down.taps * self.right.taps

    @property
    def strips_of_image(self) -> int:
        """Strips of rows of an image; the last one may have fewer rows."""
        return -(-self.rows // self.registers[0])

    @property
    def strips(self) -> int:
        """Of all images."""
        return self.images * self.strips_of_image

    @property
    def workgroups(self) -> tuple[int, int]:
        """Shares of the channels, and parts of the strips; the last ones may be smaller."""
        strips, channels = self.distribution
        return -(-self.padded_channels // channels), -(-self.strips // strips)

    @property
    def parts(self) -> int:
        """Partial sums of each element of the result."""
        return self.workgroups[1]

    @property
    def sums(self) -> int:
        """Elements of the sums of a workgroup: blocks of channels, taps, channels of a block."""
        return self.distribution[1] * self.taps

    @property
    def buffers(self) -> tuple[int, int, int, int]:
        """Elements of the output's gradient, of the images, of all partial sums, and of the sums of all workgroups."""
        return (
            self.images * self.rows * self.columns * self.channels,
            self.images * self.down.size * self.right.size * self.channels,
            self.parts * self.channels * self.taps,
            self.sums * math.prod(self.workgroups),
        )

    @property
    def longest_chain(self) -> int:
        """The most additions that a product goes through: in its strip, its workgroup, and of all workgroups."""
        return self.registers[0] * self.columns + self.distribution[0] + self.parts

    @property
    def column_runs(self) -> tuple[TileRun, ...]:
        return self.right.runs(self.columns, self.registers[1])

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self) -> str | None:
        """Why these tiles do not cover the operation, with the values; None if they do."""
        strips, channels = self.distribution
        rows, pixels, block = self.registers
        if block % self.lanes:
            return f"{block} channels of a block are not a multiple of {self.lanes}"
        if channels % block:
            return f"{block} channels of a block do not divide {channels} of a workgroup"
        for what, part, whole in (
            (f"{channels} channels of a workgroup", channels, self.padded_channels),
            (f"{strips} strips of a workgroup", strips, self.strips),
            (f"{rows} rows of a strip", rows, self.rows),
            (f"{pixels} pixels of a tile", pixels, self.columns),
        ):
            if part > whole:
                return f"{what}, but there are {whole}"
        mebibytes = self.buffers[3] * 4 / 2**20
        if mebibytes > _MAX_SUMS:
            return f"sums of {math.prod(self.workgroups)} workgroups take {mebibytes:.0f} MiB, but at most {_MAX_SUMS} are allowed"
        return None


def depthwise_gradient_plan(
    operation: Operation, distribution: tuple[int, int], registers: tuple[int, int, int], lanes: int
) -> DepthwiseGradientPlan:
    """The plan for an operation that has no `shape_reason`."""
    geometry = operation.convolution
    assert geometry is not None
    missing = _MOST_AXES - geometry.spatial_rank  # A line is an image with one row.
    rows, columns = (1,) * missing + geometry.output_size
    axes = [Windows(1, 1, 1, 1, 0)] * missing + [
        Windows(*each)
        for each in zip(
            geometry.size,
            geometry.filter_size,
            geometry.stride,
            geometry.dilation,
            geometry.padding,
            strict=True,
        )
    ]
    return DepthwiseGradientPlan(
        images=geometry.batch,
        channels=geometry.channels,
        rows=rows,
        columns=columns,
        down=axes[0],
        right=axes[1],
        filters_first=geometry.filter_layout.startswith("f"),
        distribution=distribution,
        registers=registers,
        lanes=lanes,
    )


def shape_reason(operation: Operation) -> str | None:
    """Why the kernel does not compute `operation`, whatever its tiles; None if it may."""
    geometry, contraction = operation.convolution, operation.contraction
    what = "depthwise gradients are for"
    if geometry is None or contraction is None or geometry.mode != "weight_backward":
        return f"{what} weight_backward of convolutions, not for {operation.kind}"
    if geometry.variant != "depthwise":
        return f"{what} depthwise convolutions, not for {geometry.groups} groups"
    if geometry.spatial_rank > _MOST_AXES:
        return f"{what} conv1d and conv2d, not for {operation.kind}"
    types = contraction.types
    if {types.input.name, types.accumulator.name, types.output.name} != {"f32"}:
        return f"{what} f32, not for {types.input.name} with {types.accumulator.name}"
    return _layout_reason(geometry, what)


def _layout_reason(geometry: ConvolutionGeometry, what: str) -> str | None:
    axes = geometry.spatial_letters
    layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
    images, filters = (f"n{axes}c",), (f"f{axes}c", f"fc{axes}", f"{axes}cf")
    if layouts[0] not in images or layouts[2] not in images or layouts[1] not in filters:
        return f"{what} channels last, and filters in {', '.join(filters)}, not for {'_'.join(layouts)}"
    return None
