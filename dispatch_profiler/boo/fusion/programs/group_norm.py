"""Group norms of images in channels_last memory, and activations behind them, as three kernels.

    sums: of parts of each image, for each channel        statistics: a scale and a shift for each channel of an image
    results: scale * x + shift, and the activation

Sums are in f64, so that the variance of an image far from zero is precise without another pass over the image. Lanes of
vectors are channels, and parts of the pixels are shared by threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import GROUP_NORM
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.configurations.cpu.kernels.writer import (
    LANES,
    MASK,
    VECTOR,
    KernelWriter,
    function_text,
)
from dispatch_profiler.operations import Tensor, element_type

#: Names of the activations that may follow, and of what passes on its argument.
ACTIVATIONS = frozenset(("relu", "silu"))
_SAME = frozenset(("getitem", "clone", "alias"))
#: Elements of a part of an image at least, and parts of all images at most.
_ELEMENTS, _MOST_PARTS = 16384, 64
#: Vectors of channels that are computed together: their sums are in 16 registers.
_VECTORS = 4
#: Elements of a block of pixels, which is read from memory in one piece, although few of its channels are computed together.
_BLOCK = 4096
_WIDE = f"vector<{LANES}xf64>"


def group_norm_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernels. Raises NotFusible."""
    plan = group_norm_plan(program)
    inputs, (result,) = program.operands, program.results
    wide, type_ = element_type("f64"), element_type("f32")
    sums = Tensor("sums", (plan.images, plan.parts, 2, plan.channels), wide)
    totals = Tensor("totals", (plan.images, 2, plan.channels), wide)
    scales = Tensor("scales", (plan.images, plan.channels), type_)
    shifts = Tensor("shifts", (plan.images, plan.channels), type_)
    affine = [inputs[at] for at in (plan.weight, plan.bias) if at is not None]
    image = inputs[plan.image]
    kernels = (
        _NormSums(f"{function}_sums", [image], [sums]).finished(plan),
        _NormStatistics(f"{function}_statistics", [sums, *affine], [totals, scales, shifts]).finished(plan),
        _NormResults(f"{function}_results", [image, scales, shifts], [result]).finished(plan),
    )
    return function_text(function, inputs, [result], kernels)


@dataclass(frozen=True)
class GroupNormPlan:
    """The extents of a group norm, and the numbers of the inputs that are its image, its weight and its bias."""

    images: int
    pixels: int
    channels: int
    groups: int
    eps: float
    activations: tuple[str, ...]
    image: int
    weight: int | None
    bias: int | None

    @property
    def parts(self) -> int:
        """Parts of the pixels of an image."""
        enough = max(1, _MOST_PARTS // self.images)
        return max(1, min(enough, self.pixels * self.channels // _ELEMENTS, self.pixels))

    @property
    def part(self) -> int:
        """Pixels of a part."""
        return -(-self.pixels // self.parts)

    @property
    def block(self) -> int:
        """Pixels of a block."""
        return max(1, _BLOCK // self.channels)


def group_norm_plan(program: Calls) -> GroupNormPlan:
    """The plan of a program. Raises NotFusible if it is no group norm of channels_last memory and activations."""
    calls = program.parsed_calls
    name, arguments, named = calls[0]
    if name != GROUP_NORM or named or len(program.returned) != 1:
        raise NotFusible("it does not begin with a group norm, or has several results")
    image, weight, bias = (each and each["value"] for each in arguments[:3])
    last, activations = len(program.inputs), []
    for at, (following, taken, _) in enumerate(calls[1:], start=last + 1):
        is_chained = bool(taken) and taken[0] == {"value": last}
        if not is_chained or following not in (*_SAME, *ACTIVATIONS) or taken[1:] not in ([], [0]):
            raise NotFusible(f"{following} does not follow")
        last = at
        if following in ACTIVATIONS:
            activations.append(following)
    value, (result,) = program.inputs[image], program.outputs
    if program.returned != (last,) or {value.reading, result.reading} != {"channels"}:
        raise NotFusible("its image or its result is not in channels_last memory")
    images, channels, *pixels = value.shape
    groups, eps = arguments[6:8]
    return GroupNormPlan(
        *(images, math.prod(pixels), channels, groups, eps, tuple(activations), image, weight, bias)
    )


# -- the kernels -----------------------------------------------------------------------------------


class _NormKernel(KernelWriter):
    """A kernel whose workgroups have an image, or a part of it."""

    def _begin(self, plan: GroupNormPlan, parts: int) -> None:
        """`image`, and the pixels from `first` to before `last`."""
        self.plan = plan
        group = self.let("hal.interface.workgroup.id[0] : index")
        self.image = self.affine(f"group floordiv {parts}", group=group)
        self.part = self.affine(f"group mod {parts}", group=group)
        self.first = self.affine(f"part * {plan.part}", part=self.part)
        self.last = self.affine(
            f"part * {plan.part} + {plan.part}, {plan.pixels}", kind="min", part=self.part
        )

    def _blocks(self, write: Callable[[str, list[int]], None]) -> None:
        """`write(start, lanes)` of a few vectors of channels at a time, for the pixels `first` to before `last` of a block."""
        begin, end = self.first, self.last

        def block(pixel: str, _: Sequence[str]) -> tuple[str, ...]:
            self.first = pixel
            self.last = self.affine(f"pixel + {self.plan.block}, end", kind="min", pixel=pixel, end=end)
            self._chunks(write)
            return ()

        self.loop(begin, end, self.plan.block, block)

    def _chunks(self, write: Callable[[str, list[int]], None]) -> None:
        """`write(start, lanes)` of a few vectors of channels at a time."""
        channels, most = self.plan.channels, _VECTORS * LANES
        whole = channels // most * most

        def full(start: str, _: Sequence[str]) -> tuple[str, ...]:
            write(start, [LANES] * _VECTORS)
            return ()

        if whole:
            self.loop(self.constant(0), self.constant(whole), most, full)
        if channels > whole:
            left = range(channels - whole, 0, -LANES)
            write(self.constant(whole), [min(each, LANES) for each in left])

    def _pixel(self, pixel: str, start: str) -> str:
        """The place of a channel of a pixel of the image."""
        plan = self.plan
        expression = f"(image * {plan.pixels} + pixel) * {plan.channels} + start"
        return self.affine(expression, image=self.image, pixel=pixel, start=start)

    def load_wide(self, buffer: int, at: str, mask: str) -> str:
        """A vector of f64; with `mask`, zeros in the lanes that it leaves out."""
        source, type_ = f"%buffer{buffer}[{at}]", self.buffers[buffer]
        if not mask:
            return self.let(f"vector.load {source} : {type_}, {_WIDE}")
        zeros = self.constant("0.0", _WIDE)
        return self.let(
            f"vector.maskedload {source}, {mask}, {zeros} : {type_}, {MASK}, {_WIDE} into {_WIDE}"
        )

    def store_wide(self, value: str, buffer: int, at: str, mask: str) -> None:
        """Store a vector of f64; with `mask`, only the lanes that it has."""
        target, type_ = f"%buffer{buffer}[{at}]", self.buffers[buffer]
        if mask:
            self.write(f"vector.maskedstore {target}, {mask}, {value} : {type_}, {MASK}, {_WIDE}")
        else:
            self.write(f"vector.store {value}, {target} : {type_}, {_WIDE}")

    def _behind(self, at: str, vector: int) -> str:
        return self.affine(f"at + {vector * LANES}", at=at)


class _NormSums(_NormKernel):
    """Sums and sums of squares of the pixels of a part: [image, part, which, channel]."""

    def finished(self, plan: GroupNormPlan) -> KernelWriter:
        """The kernel."""
        self._begin(plan, plan.parts)
        self._chunks(self._clear)
        self._blocks(self._chunk)
        self.workgroups = plan.images * plan.parts
        return self

    def _clear(self, start: str, lanes: Sequence[int]) -> None:
        for at, mask in self._places(start, lanes):
            self.store_wide(self.constant("0.0", _WIDE), 1, at, mask)

    def _places(self, start: str, lanes: Sequence[int]) -> list[tuple[str, str]]:
        """Where the sums of each vector are, and its mask."""
        plan = self.plan
        return [
            (
                self.affine(
                    f"((image * {plan.parts} + part) * 2 + {which}) * {plan.channels} + start + {vector * LANES}",
                    image=self.image,
                    part=self.part,
                    start=start,
                ),
                self.first_lanes(count),
            )
            for vector, count in enumerate(lanes)
            for which in range(2)
        ]

    def _chunk(self, start: str, lanes: Sequence[int]) -> None:
        places = self._places(start, lanes)

        def add(pixel: str, carried: list[str]) -> list[str]:
            at, found = self._pixel(pixel, start), []
            for vector, count in enumerate(lanes):
                value = self.load(0, self._behind(at, vector), LANES, self.first_lanes(count))
                wide = self.let(f"arith.extf {value} : {VECTOR} to {_WIDE}")
                total, squares = carried[2 * vector : 2 * vector + 2]
                found.append(self.let(f"arith.addf {total}, {wide} : {_WIDE}"))
                found.append(self.let(f"vector.fma {wide}, {wide}, {squares} : {_WIDE}"))
            return found

        before = [self.load_wide(1, at, mask) for at, mask in places]
        sums = self.loop(self.first, self.last, 1, add, before, _WIDE)
        for each, (at, mask) in zip(sums, places, strict=True):
            self.store_wide(each, 1, at, mask)


class _NormStatistics(_NormKernel):
    """Scales and shifts of the channels of an image."""

    def finished(self, plan: GroupNormPlan) -> KernelWriter:
        """The kernel."""
        self._begin(plan, 1)
        self.totals = len(self.inputs)
        self.parts(plan.channels, self._add_parts)
        self.loop(self.constant(0), self.constant(plan.groups), 1, self._group)
        self.workgroups = plan.images
        return self

    def _add_parts(self, start: str, lanes: int) -> None:
        plan, zeros, mask = self.plan, self.constant("0.0", _WIDE), self.first_lanes(lanes)
        for which in range(2):

            def add(part: str, carried: list[str], which: int = which) -> list[str]:
                at = self.affine(
                    f"((image * {plan.parts} + part) * 2 + {which}) * {plan.channels} + start",
                    image=self.image,
                    part=part,
                    start=start,
                )
                return [self.let(f"arith.addf {carried[0]}, {self.load_wide(0, at, mask)} : {_WIDE}")]

            (total,) = self.loop(self.constant(0), self.constant(plan.parts), 1, add, [zeros], _WIDE)
            self.store_wide(total, self.totals, self._total(start, which), mask)

    def _total(self, channel: str, which: int) -> str:
        expression = f"(image * 2 + {which}) * {self.plan.channels} + channel"
        return self.affine(expression, image=self.image, channel=channel)

    def _group(self, group: str, _: Sequence[str]) -> tuple[str, ...]:
        plan = self.plan
        size = plan.channels // plan.groups
        first = self.affine(f"group * {size}", group=group)
        end = self.affine(f"group * {size} + {size}", group=group)

        def add(channel: str, carried: list[str]) -> list[str]:
            found = []
            for which, total in enumerate(carried):
                at = self._total(channel, which)
                each = self.let(f"memref.load %buffer{self.totals}[{at}] : {self.buffers[self.totals]}")
                found.append(self.let(f"arith.addf {total}, {each} : f64"))
            return found

        zero = self.constant("0.0", "f64")
        count = self.constant(f"{float(plan.pixels * size):.17e}", "f64")
        means = [
            self.let(f"arith.divf {each}, {count} : f64")
            for each in self.loop(first, end, 1, add, [zero, zero], "f64")
        ]
        squared = self.let(f"arith.mulf {means[0]}, {means[0]} : f64")
        centered = self.let(f"arith.subf {means[1]}, {squared} : f64")
        variance = self.let(f"arith.maximumf {centered}, {zero} : f64")
        moved = self.let(f"arith.addf {variance}, {self.constant(f'{plan.eps:.17e}', 'f64')} : f64")
        root = self.let(f"math.sqrt {moved} : f64")

        def keep(channel: str, _: Sequence[str]) -> tuple[str, ...]:
            self._keep(channel, means[0], root)
            return ()

        self.loop(first, end, 1, keep)
        return ()

    def _keep(self, channel: str, mean: str, root: str) -> None:
        """Store the scale and the shift of a channel."""
        plan = self.plan
        scale = self.let(f"arith.divf {self.constant('1.0', 'f64')}, {root} : f64")
        if plan.weight is not None:
            scale = self.let(f"arith.mulf {scale}, {self._vector(1, channel)} : f64")
        moved = self.let(f"arith.mulf {mean}, {scale} : f64")
        bias = self.constant("0.0", "f64")
        if plan.bias is not None:
            bias = self._vector(1 if plan.weight is None else 2, channel)
        shift = self.let(f"arith.subf {bias}, {moved} : f64")
        at = self.affine(f"image * {plan.channels} + channel", image=self.image, channel=channel)
        for place, value in enumerate((scale, shift), start=self.totals + 1):
            rounded = self.let(f"arith.truncf {value} : f64 to f32")
            self.write(f"memref.store {rounded}, %buffer{place}[{at}] : {self.buffers[place]}")

    def _vector(self, buffer: int, channel: str) -> str:
        """An element of the weight or the bias."""
        return self.let(f"arith.extf {self.element(buffer, channel)} : f32 to f64")


class _NormResults(_NormKernel):
    """The results of the pixels of a part, in the order of the memory: writing it in pieces takes twice the time."""

    def finished(self, plan: GroupNormPlan) -> KernelWriter:
        """The kernel."""
        self._begin(plan, plan.parts)
        self.loop(self.first, self.last, 1, self._compute)
        self.workgroups = plan.images * plan.parts
        return self

    def _compute(self, pixel: str, _: Sequence[str]) -> tuple[str, ...]:
        channels = self.affine(f"image * {self.plan.channels}", image=self.image)

        def write(start: str, lanes: int) -> None:
            at, mask = self._pixel(pixel, start), self.first_lanes(lanes)
            channel = self.affine("channels + start", channels=channels, start=start)
            image, scale, shift = (
                self.load(buffer, place, LANES, mask) for buffer, place in enumerate((at, channel, channel))
            )
            value = self.let(f"vector.fma {image}, {scale}, {shift} : {VECTOR}")
            for each in self.plan.activations:
                value = self._activated(each, value)
            self.store(value, 3, at, LANES, mask)

        self.parts(self.plan.channels, write, _VECTORS)
        return ()

    def _activated(self, name: str, value: str) -> str:
        if name == "relu":
            return self.let(f"arith.maximumf {value}, {self.constant('0.0', VECTOR)} : {VECTOR}")
        assert name == "silu", name
        power = self.exponential(value, negated=True)
        divisor = self.let(f"arith.addf {power}, {self.constant('1.0', VECTOR)} : {VECTOR}")
        return self.let(f"arith.divf {value}, {divisor} : {VECTOR}")
