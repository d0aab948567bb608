"""The loops, addresses and transforms of a Winograd microkernel, which its template writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dispatch_profiler.configurations.cpu.plans.tile_runs import Windows
from dispatch_profiler.configurations.forms.winograd import Matrix, Transforms
from dispatch_profiler.configurations.splits import SLICE, longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, Operation, element_type

#: Elements of a cache line.
_LINE = 16
#: MiB of what all workgroups store between their steps.
_MAX_STORED = 256
#: Channels, and filters, at least: the transforms of fewer take longer than the multiplications that they save.
_FEWEST = 8


@dataclass(frozen=True)
class LinearStep:
    """`result = factor * first + second`, or the `kind` add or sub: `first + second`, `first - second`; mul has no second."""

    kind: str
    result: str
    first: str
    second: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Linear:
    """Steps that multiply a vector x0, x1, ... by a matrix, and the names of the results."""

    steps: tuple[LinearStep, ...]
    results: tuple[str, ...]


def linear_steps(matrix: Matrix) -> Linear:
    """The steps of a product with `matrix`.

    Where two columns differ only in signs, their sum and difference are computed once, and for two rows that differ only in
    signs, the terms of equal and of opposite signs: 12 steps instead of 22 for the input of F(4 x 4, 3 x 3).
    """
    return _Steps().product(matrix)


class _Steps:
    """Collects the steps of a product with a matrix."""

    def __init__(self) -> None:
        self.steps: list[LinearStep] = []

    def product(self, matrix: Matrix) -> Linear:
        rows = self._with_paired_columns(matrix)
        results: dict[int, str] = {}
        for first in range(len(rows)):
            if first in results:
                continue
            second = next(
                (each for each in range(first + 1, len(rows)) if _mirrored(rows[first], rows[each])), None
            )
            if second is None:
                results[first] = self._sum(rows[first])
            else:
                results[first], results[second] = self._both(rows[first], rows[second])
        return Linear(tuple(self.steps), tuple(results[each] for each in range(len(rows))))

    def _with_paired_columns(self, matrix: Matrix) -> list[dict[str, Fraction]]:
        """Each row as factors of names; the names of paired columns are their sum and their difference."""
        rows: list[dict[str, Fraction]] = [{} for _ in matrix]
        columns, left = list(zip(*matrix, strict=True)), list(range(len(matrix[0])))
        while left:
            first = left.pop(0)
            second = next((each for each in left if _are_paired(columns[first], columns[each])), None)
            if second is None:
                names = [f"x{first}"] * len(rows)
            else:
                left.remove(second)
                plus = self._step("add", f"x{first}", f"x{second}")
                minus = self._step("sub", f"x{first}", f"x{second}")
                names = [
                    plus if a == b else minus for a, b in zip(columns[first], columns[second], strict=True)
                ]
            for row, name, factor in zip(rows, names, columns[first], strict=True):
                if factor:
                    row[name] = factor
        return rows

    def _both(self, first: dict[str, Fraction], second: dict[str, Fraction]) -> tuple[str, str]:
        """Two rows that differ only in signs: `even + odd` and `even - odd`."""
        even = self._sum({name: factor for name, factor in first.items() if second[name] == factor})
        odd = {name: factor for name, factor in first.items() if second[name] != factor}
        lead = list(odd.values())[-1]
        of_odd = self._sum({name: factor / lead for name, factor in odd.items()})
        return self._added(even, lead, of_odd), self._added(even, -lead, of_odd)

    def _sum(self, row: dict[str, Fraction]) -> str:
        """The sum of factor x name; it begins with a term that needs no multiplication, if there is one."""
        terms = sorted(row.items(), key=lambda term: term[1] != 1)
        (name, factor), *rest = terms
        total = name if factor == 1 else self._step("mul", name, factor=factor)
        for each, of_each in rest:
            total = self._added(total, of_each, each)
        return total

    def _added(self, total: str, factor: Fraction, name: str) -> str:
        if abs(factor) == 1:
            return self._step("add" if factor == 1 else "sub", total, name)
        return self._step("fma", name, total, factor)

    def _step(self, kind: str, first: str, second: str = "", factor: Fraction = Fraction(1)) -> str:
        result = f"t{len(self.steps)}"
        self.steps.append(LinearStep(kind, result, first, second, float(factor)))
        return result


def _are_paired(first: Sequence[Fraction], second: Sequence[Fraction]) -> bool:
    """Whether columns are equal or opposite in each row, and both occur."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a or b]
    return all(abs(a) == abs(b) for a, b in pairs) and len({a == b for a, b in pairs}) == 2


def _mirrored(first: dict[str, Fraction], second: dict[str, Fraction]) -> bool:
    """Whether rows have the same terms, some with equal and some with opposite signs."""
    if first.keys() != second.keys():
        return False
    pairs = [(first[name], second[name]) for name in first]
    return all(abs(a) == abs(b) for a, b in pairs) and len({a == b for a, b in pairs}) == 2


@dataclass(frozen=True)
class WinogradPlan:
    """A convolution of channels-last images with 3 x 3 filters and stride 1, in tiles of m x m pixels of the result.

    size               rows and columns of an image
    rows, columns      of a result
    low                padding before the first row and pixel
    planes             of a result, which `plane` computes from the planes of a volume; 1 for an image
    distribution       tiles and filters that a workgroup computes
    strip              tiles whose transforms are stored at a time
    registers          tiles and filters whose sums stay in registers
    unroll             channels of an iteration of the innermost loop
    lanes              elements of a vector
    """

    transforms: Transforms
    images: int
    size: tuple[int, int]
    rows: int
    columns: int
    channels: int
    filters: int
    low: tuple[int, int]
    planes: int
    plane: Windows
    distribution: tuple[int, int]
    strip: int
    registers: tuple[int, int]
    unroll: int
    lanes: int

    # -- extents ------------------------------------------------------------------------------

    @property
    def pixels(self) -> int:
        """m: rows, and columns, of a tile."""
        return self.transforms.outputs

    @property
    def window(self) -> int:
        """m + 2: rows, and columns, of an image that a tile reads."""
        return self.transforms.tile

    @property
    def products(self) -> int:
        """(m + 2)^2: matrix products."""
        return self.window**2

    @property
    def tiles_of_plane(self) -> tuple[int, int]:
        """Tiles along rows and columns."""
        return -(-self.rows // self.pixels), -(-self.columns // self.pixels)

    @property
    def tiles(self) -> int:
        """Tiles of all planes of all images."""
        return self.images * self.planes * math.prod(self.tiles_of_plane)

    @property
    def terms(self) -> int:
        """Products that are summed: the channels of all planes that a filter reads."""
        return self.plane.taps * self.channels

    @property
    def is_sliced(self) -> bool:
        """Whether the terms are added up in slices, each from zero."""
        return self.terms > longest_sum(element_type("f32"))

    @property
    def slice(self) -> int:
        """Terms of a slice: a multiple of `unroll`."""
        return SLICE // self.unroll * self.unroll if self.is_sliced else self.terms

    @property
    def height(self) -> int:
        """Tiles of a register tile."""
        return self.registers[0]

    @property
    def block(self) -> int:
        """Filters that are computed together."""
        return self.registers[1]

    @property
    def vectors(self) -> int:
        return self.block // self.lanes

    @property
    def vector(self) -> str:
        """The type of a vector: `vector<16xf32>`."""
        return f"vector<{self.lanes}xf32>"

    @property
    def blocks(self) -> int:
        """Blocks of filters; the last one may have zeros after the filters."""
        return -(-self.filters // self.block)

    @property
    def padded_filters(self) -> int:
        """In whole vectors."""
        return -(-self.filters // self.lanes) * self.lanes

    @property
    def is_padded(self) -> bool:
        return self.filters % self.lanes > 0

    @property
    def has_partial_channels(self) -> bool:
        """Whether the last vector of a pixel's channels is not full."""
        return self.channels % self.lanes > 0

    @property
    def workgroups(self) -> tuple[int, int]:
        """Along the filters, and the tiles."""
        tiles, filters = self.distribution
        return -(-self.blocks * self.block // filters), -(-self.tiles // tiles)

    # -- addresses ----------------------------------------------------------------------------

    @property
    def tile_stride(self) -> int:
        """Elements from a transformed tile to the next: its terms, and zeros that fill the last vector of its channels."""
        last_plane = -(-self.channels // self.lanes) * self.lanes
        return _odd_lines((self.plane.taps - 1) * self.channels + last_plane)

    @property
    def input_stride(self) -> int:
        """Elements from the transformed tiles of a product to those of the next."""
        return _odd_lines(self.strip * self.tile_stride)

    @property
    def product_stride(self) -> int:
        """Elements from the results of a product to those of the next."""
        return _odd_lines(self.strip * self.distribution[1])

    @property
    def buffers(self) -> tuple[int, int, int, int, int]:
        """Elements of the images, the packed filters, the result, and the transformed tiles and products of all workgroups."""
        workgroups = math.prod(self.workgroups)
        return (
            self.images * self.plane.size * math.prod(self.size) * self.channels,
            self.products * self.blocks * self.block * self.terms,
            self.images * self.planes * self.rows * self.columns * self.filters,
            workgroups * self.products * self.input_stride,
            workgroups * self.products * self.product_stride,
        )

    # -- transforms ---------------------------------------------------------------------------

    @property
    def input_steps(self) -> Linear:
        return linear_steps(self.transforms.input)

    @property
    def output_steps(self) -> Linear:
        return linear_steps(self.transforms.output)

    @property
    def factors(self) -> tuple[float, ...]:
        """Of both transforms, each once."""
        steps = (*self.input_steps.steps, *self.output_steps.steps)
        return tuple(dict.fromkeys(step.factor for step in steps if step.kind in ("fma", "mul")))

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self) -> str | None:
        """Why these tiles do not cover the operation, with the values; None if they do."""
        tiles, filters = self.distribution
        if self.block % self.lanes:
            return f"{self.block} filters of a register tile are not a multiple of {self.lanes}"
        if filters % self.block:
            return f"{self.block} filters of a register tile do not divide {filters} filters of a workgroup"
        if (self.blocks * self.block) % filters:
            return f"{filters} filters of a workgroup do not divide {self.blocks * self.block}"
        if self.channels % self.unroll:
            return f"{self.unroll} channels of an iteration do not divide {self.channels}"
        for what, part, whole in (
            ("a register tile", self.height, self.strip),
            ("a strip", self.strip, tiles),
            ("a workgroup", tiles, self.tiles),
        ):
            if part > whole:
                return f"{what} has {part} tiles of the image, but only {whole} are there"
        stored = sum(self.buffers[3:]) * 4 / 2**20
        if stored > _MAX_STORED:
            return (
                f"transforms of all workgroups take {stored:.0f} MiB, but at most {_MAX_STORED} are allowed"
            )
        return None


def _odd_lines(elements: int) -> int:
    """At least so many elements, in an odd number of cache lines: neighbours then use different sets of a cache."""
    lines = -(-elements // _LINE)
    return (lines + (lines % 2 == 0)) * _LINE


def winograd_plan(
    operation: Operation,
    transforms: Transforms,
    distribution: tuple[int, int],
    strip: int,
    registers: tuple[int, int],
    unroll: int,
    lanes: int,
) -> WinogradPlan:
    """The plan for an operation that has no `shape_reason`."""
    geometry = forward_geometry(operation)
    planes, (rows, columns) = (
        (geometry.output_size[0] if _is_volume(geometry) else 1),
        geometry.output_size[-2:],
    )
    return WinogradPlan(
        transforms=transforms,
        images=geometry.batch,
        size=(geometry.size[-2], geometry.size[-1]),
        rows=rows,
        columns=columns,
        channels=geometry.channels,
        filters=geometry.filters,
        low=(geometry.padding[-2], geometry.padding[-1]),
        planes=planes,
        plane=_planes_of(geometry),
        distribution=distribution,
        strip=strip,
        registers=registers,
        unroll=unroll,
        lanes=lanes,
    )


def forward_geometry(operation: Operation) -> ConvolutionGeometry:
    """The forward convolution that a microkernel computes; `operation` has no `shape_reason`."""
    geometry = operation.convolution and operation.convolution.as_forward
    assert geometry is not None
    return geometry


def _is_volume(geometry: ConvolutionGeometry) -> bool:
    return geometry.spatial_rank == 3


def _planes_of(geometry: ConvolutionGeometry) -> Windows:
    if not _is_volume(geometry):
        return Windows(1, 1, 1, 1, 0)
    return Windows(
        geometry.size[0],
        geometry.filter_size[0],
        geometry.stride[0],
        geometry.dilation[0],
        geometry.padding[0],
    )


def shape_reason(operation: Operation) -> str | None:
    """Why no Winograd microkernel computes `operation`, whatever its tiles; None if one may."""
    contraction, geometry = operation.contraction, operation.convolution
    if contraction is None or geometry is None:
        return f"Winograd microkernels are for convolutions, not for {operation.kind}"
    inputs, sums = contraction.types.input.name, contraction.types.accumulator.name
    if {inputs, sums} != {"f32"}:
        return f"Winograd microkernels are for f32 with f32 sums, not for {inputs} with {sums}"
    if contraction.types.output.name != "f32":
        return f"Winograd microkernels have results in f32, not in {contraction.types.output.name}"
    if geometry.as_forward is None or geometry.groups != 1:
        return "Winograd microkernels are for forward convolutions without groups, and for the gradients of their inputs"
    if geometry.mode != "forward" and geometry.spatial_rank != 2:
        return f"Winograd microkernels of gradients are for conv2d, not for conv{geometry.spatial_rank}d"
    if not (geometry.input_layout == geometry.output_layout and geometry.is_channels_last):
        layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
        return f"Winograd microkernels are for convolutions with channels last, not for {'_'.join(layouts)}"
    if geometry.spatial_rank < 2:
        return "Winograd microkernels are for conv2d and conv3d, not for conv1d"
    rules = (
        ("filters of", geometry.filter_size, 3),
        ("stride", geometry.stride, 1),
        ("dilation", geometry.dilation, 1),
    )
    for what, values, needed in rules:
        if any(value != needed for value in values[-2:]):
            return f"Winograd microkernels are for {what} {needed}x{needed}, not {'x'.join(map(str, values))}"
    if min(geometry.channels, geometry.filters) < _FEWEST:
        return (
            f"Winograd microkernels need {_FEWEST} channels and filters, but got {geometry.channels} and "
            f"{geometry.filters}"
        )
    return None
