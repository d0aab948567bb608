"""Pools and resized images as one kernel: a pixel of the result is made of a window of pixels of an image.

    avg_pool2d: means        max_pool2d: maxima        upsample_bilinear2d: weighted sums of 2 x 2 pixels

Windows are products of pixels along each axis, and so are weights. The pixels and weights along an axis are read from
torch: from its results for images that have a one, or a NaN, in one pixel. Channels of the image are consecutive in memory,
and lanes of vectors are channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import OPERATORS, POOLS, RESIZING
from dispatch_profiler.boo.fusion.programs.strided import places, result_places, strided
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, VECTOR, KernelWriter
from dispatch_profiler.operations.strided import Strided

#: Names of the operators in programs.
WINDOWS = POOLS | RESIZING
#: Channels of an image at least, since lanes are channels.
_FEWEST_CHANNELS = 4
#: Pixels of a window at most, which are unrolled.
_MOST_TAPS = 36
#: Elements of the images that are computed to find the windows along an axis at most.
_MOST_PROBED = 2**24
#: Pixels times channels that a workgroup reads, workgroups at most, and workgroups that are enough for the threads.
_ELEMENTS, _MOST_WORKGROUPS, _ENOUGH_WORKGROUPS = 16384, 128, 32
#: Vectors of channels from which on the kernel has a loop over them.
_UNROLLED = 4
#: Arguments with a value for each axis: place -> the value that reads each pixel of an axis with one pixel once.
_OF_AXES: dict[str, dict[int, int]] = {
    "avg_pool": {1: 1, 2: 1, 3: 0},
    "max_pool": {1: 1, 2: 1, 3: 0, 4: 1},
    "_adaptive_avg_pool": {1: 1},
    "": {1: 1},
}


def windows_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    plan = window_plan(program)
    return _WindowKernel(function, program.operands, program.results).kernel(plan)


# -- windows ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowAxis:
    """The pixels along an axis that each pixel of the result reads, equally many, and their weights; maxima have none."""

    taps: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]

    @property
    def count(self) -> int:
        """Pixels of a window."""
        return len(self.taps[0])

    @property
    def is_copied(self) -> bool:
        """Whether each pixel of the result is a pixel of the image."""
        return self.count == 1 and all(each == (1.0,) for each in self.weights)


def window_axes(name: str, shape: Sequence[int], arguments: Sequence[Any]) -> tuple[WindowAxis, ...]:
    """The windows of an operator with `arguments`, the first of which is an image of this shape, along each axis.

    Raises NotFusible if they are too large, or if torch does not support the arguments.
    """
    try:
        axes = _window_axes(name, tuple(shape[2:]), repr(list(arguments[1:])))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NotFusible(f"{name}: {error}"[:200]) from error
    if math.prod(each.count for each in axes) > _MOST_TAPS:
        raise NotFusible(f"its windows have more than {_MOST_TAPS} pixels")
    return axes


@lru_cache(maxsize=256)
def _window_axes(name: str, extents: tuple[int, ...], options: str) -> tuple[WindowAxis, ...]:
    from ast import literal_eval

    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    arguments: list[Any] = [None, *literal_eval(options)]
    with unset(), torch.no_grad():
        return tuple(
            _along(name, extent, _of_axis(name, arguments, at, len(extents)), at, len(extents))
            for at, extent in enumerate(extents)
        )


def _of_axis(name: str, arguments: Sequence[Any], axis: int, axes: int) -> list[Any]:
    """The arguments for an image with one pixel along all other axes."""
    found = list(arguments[1:])
    kind = next(each for each in _OF_AXES if name.startswith(each))
    for place, neutral in _OF_AXES[kind].items():
        if place <= len(found):
            given = found[place - 1]
            values = list(given) if isinstance(given, (list, tuple)) else [given]
            if not values:  # strides of pools that are their windows
                continue
            values = values * axes if len(values) == 1 else values
            found[place - 1] = [values[at] if at == axis else neutral for at in range(axes)]
    if name in RESIZING:
        first = len(found) - axes
        found[first:] = [each if at == axis else None for at, each in enumerate(found[first:])]
    elif kind == "avg_pool" and len(found) > 5 and found[5]:
        found[5] = found[5] if axis == 0 else 1
    return found


def _along(name: str, extent: int, options: Sequence[Any], axis: int, axes: int) -> WindowAxis:
    """Compute an axis of images with a channel for each pixel along it."""
    if extent * extent > _MOST_PROBED:
        raise NotFusible("its images are too large")
    is_maximum = name.startswith("max_pool")
    shape = (1, extent, *(extent if at == axis else 1 for at in range(axes)))
    basis = torch.eye(extent, dtype=torch.float64)

    def computed(values: Tensor) -> list[list[float]]:
        found = OPERATORS[name](values.reshape(shape), *options)
        found = found[0] if is_maximum else found
        rows: list[list[float]] = found.reshape(extent, -1).t().tolist()
        return rows

    marked = torch.where(basis > 0, torch.nan, torch.zeros_like(basis))
    is_read = [[math.isnan(each) for each in row] for row in computed(marked)]
    taps = [[at for at, each in enumerate(row) if each] for row in is_read]
    values = computed(basis)
    weights = [[row[each] for each in pixels] for row, pixels in zip(values, taps, strict=True)]
    count = max(map(len, taps))
    if not all(taps):
        raise NotFusible("a window is empty")
    for pixels, factors in zip(taps, weights, strict=True):
        while len(pixels) < count:  # the last pixel twice, with half of its weight: an infinity stays one
            pixels.append(pixels[-1])
            factors[-1] /= 2
            factors.append(factors[-1])
    return WindowAxis(tuple(map(tuple, taps)), () if is_maximum else tuple(map(tuple, weights)))


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowPlan:
    """An image, a result, and the windows in between. Their axes are those of torch: images, channels, pixels."""

    images: int
    channels: int
    axes: tuple[WindowAxis, ...]
    source: Strided
    result: Strided

    @property
    def is_transposed(self) -> bool:
        """Whether consecutive elements of the result are pixels."""
        return self.result.strides[1] != 1

    @property
    def rows(self) -> int:
        """Rows of pixels of all results."""
        return self.images * math.prod(len(each.taps) for each in self.axes[:-1])

    @property
    def columns(self) -> int:
        """Pixels of a row."""
        return len(self.axes[-1].taps)

    @property
    def block(self) -> int:
        """Channels that are computed together: fewer than all if there are few rows."""
        parts = [
            each
            for each in range(1, self.channels // LANES + 1)
            if self.channels % each == 0 and self.channels // each % LANES == 0
        ]
        if self.is_transposed or not parts:
            return self.channels
        enough = [each for each in parts if self.rows * each >= _ENOUGH_WORKGROUPS]
        return self.channels // (enough or parts[-1:])[0]

    @property
    def units(self) -> int:
        """Blocks of channels of all rows."""
        return self.rows * (self.channels // self.block)

    @property
    def units_of_workgroup(self) -> int:
        """Each workgroup computes so many."""
        work = self.columns * self.block * math.prod(each.count for each in self.axes)
        return max(1, _ELEMENTS // work, -(-self.units // _MOST_WORKGROUPS))


@lru_cache(maxsize=64)
def window_plan(program: Calls) -> WindowPlan:
    """The plan of a program. Raises NotFusible if it is not one of these operators, with views, on consecutive channels."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        try:
            return _plan(program)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise NotFusible(f"a window: {error}"[:200]) from error


def _plan(program: Calls) -> WindowPlan:
    found: list[tuple[Any, tuple[WindowAxis, ...], list[int]]] = []

    def recording(name: str) -> Any:
        def call(image: Tensor, *arguments: Any, **named: Any) -> Any:
            if named:
                raise NotFusible(f"{name} has arguments by name")
            axes = window_axes(name, image.shape, [None, *arguments])
            shape = [*image.shape[:2], *(len(each.taps) for each in axes)]
            found.append((image, axes, shape))
            numbers = torch.arange(math.prod(shape), device="cpu").reshape(shape)
            return [numbers] if name.startswith("max_pool") else numbers

        return call

    others: Mapping[str, Any] = {name: recording(name) for name in WINDOWS}
    returned, starts = places(program, others)
    if len(found) != 1:
        raise NotFusible("it has no window, or several")
    image, axes, shape = found[0]
    source, result = strided(image, starts), result_places(program, returned, shape)
    if shape[1] < _FEWEST_CHANNELS:
        raise NotFusible("most lanes of its vectors would be empty")
    if source.strides[1] != 1 or 1 not in (result.strides[1], result.strides[-1]):
        raise NotFusible("its channels are not consecutive")
    return WindowPlan(shape[0], shape[1], axes, source, result)


# -- the kernel ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    """Values of an index along an axis: the places of its pixels, in elements, and their weights as vectors."""

    places: list[str]
    weights: list[str]


class _WindowKernel(KernelWriter):
    """Writes the kernel: for each row and pixel of the result, vectors of channels are read, computed and stored."""

    def kernel(self, plan: WindowPlan) -> str:
        """The kernel and the function that launches it."""
        self.plan = plan
        strides = plan.source.strides[2:]
        self._places = [
            self.table([tap * stride for row in axis.taps for tap in row], "i32")
            for axis, stride in zip(plan.axes, strides, strict=True)
        ]
        self._weights = [
            ""
            if axis.is_copied or not axis.weights
            else self.table([f"{each:.9e}" for row in axis.weights for each in row], "f32")
            for axis in plan.axes
        ]
        self.write("%part = hal.interface.workgroup.id[0] : index")
        part = plan.units_of_workgroup
        first = self.affine(f"part * {part}", part="%part")
        last = self.affine(f"part * {part} + {part}, {plan.units}", kind="min", part="%part")
        self.loop(first, last, 1, self._unit)
        return self.text(-(-plan.units // part))

    def _unit(self, unit: str, _: Sequence[str]) -> tuple[str, ...]:
        """A block of channels of a row."""
        plan = self.plan
        parts = plan.channels // plan.block
        block = self.affine(f"unit mod {parts}", unit=unit)
        rest = self.affine(f"unit floordiv {parts}", unit=unit)
        outer = []
        begin = f"block * {plan.block} * {plan.result.strides[1]} + {plan.result.offset}"
        target = self.affine(begin, block=block)
        for axis in reversed(range(len(plan.axes) - 1)):
            extent = len(plan.axes[axis].taps)
            index = self.affine(f"rest mod {extent}", rest=rest)
            rest = self.affine(f"rest floordiv {extent}", rest=rest)
            stride = plan.result.strides[2 + axis]
            target = self.affine(f"target + index * {stride}", target=target, index=index)
            outer.append(self._window(axis, index))
        target = self.affine(f"target + rest * {plan.result.strides[0]}", target=target, rest=rest)
        source = self.affine(
            f"block * {plan.block} + rest * {plan.source.strides[0]} + {plan.source.offset}",
            block=block,
            rest=rest,
        )
        outer.reverse()
        if plan.is_transposed:
            self._transposed_row(source, target, outer)
        else:
            self._row(source, target, outer)
        return ()

    def _window(self, axis: int, index: str) -> _Window:
        """The window of a pixel of the result."""
        count = self.plan.axes[axis].count
        at = [self.affine(f"index * {count} + {each}", index=index) for each in range(count)]
        size = len(self.plan.axes[axis].taps) * count
        found = []
        for each in at:
            place = self.let(f"memref.load {self._places[axis]}[{each}] : memref<{size}xi32>")
            found.append(self.let(f"arith.index_cast {place} : i32 to index"))
        weights = []
        for each in at if self._weights[axis] else []:
            weight = self.let(f"memref.load {self._weights[axis]}[{each}] : memref<{size}xf32>")
            weights.append(self.let(f"vector.broadcast {weight} : f32 to {VECTOR}"))
        return _Window(found, weights)

    def _row(self, source: str, target: str, outer: Sequence[_Window]) -> None:
        """A row whose channels are consecutive."""
        plan = self.plan

        def pixel(column: str, _: Sequence[str]) -> tuple[str, ...]:
            windows = [*outer, self._window(len(outer), column)]
            to = self.affine(f"target + column * {plan.result.strides[-1]}", target=target, column=column)

            def write(channel: str, lanes: int) -> None:
                begin = self.affine("source + channel", source=source, channel=channel)
                value = self._computed(windows, begin, lanes)
                at = self.affine("to + channel", to=to, channel=channel)
                self.store(value, plan.result.source, at, LANES, self.first_lanes(lanes))

            self.parts(plan.block, write, _UNROLLED)
            return ()

        self.loop(self.constant(0), self.constant(plan.columns), 1, pixel)

    def _transposed_row(self, source: str, target: str, outer: Sequence[_Window]) -> None:
        """A row whose pixels are consecutive: sixteen pixels and channels at a time are transposed."""
        plan = self.plan
        count = min(LANES, plan.columns)

        def pixels(start: str, _: Sequence[str]) -> tuple[str, ...]:
            column = self.affine(f"start, {plan.columns - count}", kind="min", start=start)
            inner = [
                self._window(len(outer), self.affine(f"column + {each}", column=column))
                for each in range(count)
            ]

            def write(channel: str, lanes: int) -> None:
                begin = self.affine("source + channel", source=source, channel=channel)
                vectors = [self._computed([*outer, each], begin, lanes) for each in inner]
                vectors += [self.constant("0.0", VECTOR)] * (LANES - count)
                for number, each in enumerate(self.transposed(vectors)[:lanes]):
                    at = self.affine(
                        f"target + column + (channel + {number}) * {plan.result.strides[1]}",
                        target=target,
                        column=column,
                        channel=channel,
                    )
                    self.store(each, plan.result.source, at, LANES, self.first_lanes(count))

            self.parts(plan.channels, write)
            return ()

        self.loop(self.constant(0), self.constant(plan.columns), LANES, pixels)

    def _computed(self, windows: Sequence[_Window], begin: str, lanes: int) -> str:
        """The weighted sum, or the maximum, of the windows' pixels of an image whose channels are at `begin`."""
        if not windows:
            return self.load(self.plan.source.source, begin, LANES, self.first_lanes(lanes))
        window, *inner = windows
        total = ""
        for at, place in enumerate(window.places):
            value = self._computed(inner, self.affine("begin + place", begin=begin, place=place), lanes)
            if not self.plan.axes[0].weights:
                total = self.let(f"arith.maximumf {total}, {value} : {VECTOR}") if total else value
            elif not window.weights:
                total = value
            elif total:
                total = self.let(f"vector.fma {value}, {window.weights[at]}, {total} : {VECTOR}")
            else:
                total = self.let(f"arith.mulf {value}, {window.weights[at]} : {VECTOR}")
        return total
