"""Sweeps: the cross product of shapes, types, layouts and epilogues of each kind.

The predefined problems are those of the document, with convolutions beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from dispatch_profiler.errors import OperationError, UsageError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
    operation_kind,
)
from dispatch_profiler.workloads._base import Entry, Workload, merged

Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

#: Types of a sweep that names none.
DEFAULT_TYPES = (ElementTypes("f16", "f16", "f16"), ElementTypes("f32", "f32", "f32"))

#: m, n, k
MATMUL_PROBLEMS = ((256, 512, 128), (2560, 2560, 2560), (3456, 1024, 2048))
#: batch, m, n, k
BATCH_MATMUL_PROBLEMS = ((16, 512, 64, 512),)
#: m, n, k -> slices of k; a matmul that wants its reduction split.
SPLIT_K_PROBLEMS = {(128, 128, 12288): (2, 4, 16)}
#: Fields of Conv2d: a 3x3, a strided one, a pointwise one, one image, depthwise, grouped.
CONV2D_PROBLEMS: tuple[dict[str, object], ...] = (
    {"n": 8, "h": 58, "w": 58, "c": 64, "k": 64, "r": 3, "s": 3},
    {"n": 2, "h": 56, "w": 56, "c": 64, "k": 128, "r": 3, "s": 3, "stride": (2, 2), "padding": (1, 1)},
    {"n": 8, "h": 56, "w": 56, "c": 64, "k": 256, "r": 1, "s": 1},
    {"n": 1, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1)},
    {"n": 2, "h": 56, "w": 56, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 128},
    {"n": 2, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 4},
)

#: Extents of a shape of which only some were given.
_DEFAULT_EXTENT = 256
_DEFAULT_CONV = {"n": (1,), "h": (56,), "w": (56,), "c": (64,), "k": (64,), "r": (3,), "s": (3,)}


@dataclass(frozen=True)
class MatmulSweep:
    """Extents of matmul and batch_matmul; None where the user gave nothing."""

    m: Ints | None = None
    n: Ints | None = None
    k: Ints | None = None
    batch: Ints | None = None

    @property
    def is_given(self) -> bool:
        return any(x is not None for x in (self.m, self.n, self.k, self.batch))

    def problems(self) -> Iterator[Ints]:
        """(batch, m, n, k) of every problem, the missing extents filled in."""
        default = (_DEFAULT_EXTENT,)
        yield from itertools.product(
            self.batch or (1,), self.m or default, self.n or default, self.k or default
        )


@dataclass(frozen=True)
class ConvSweep:
    """Extents of conv2d, by its field names; `given` holds only what the user gave."""

    given: dict[str, Ints] = field(default_factory=dict)
    stride: Pairs | None = None
    padding: Pairs | None = None
    dilation: Pairs | None = None
    groups: Ints | None = None

    @property
    def is_given(self) -> bool:
        pairs = (self.stride, self.padding, self.dilation, self.groups)
        return bool(self.given) or any(x is not None for x in pairs)

    def problems(self) -> Iterator[dict[str, object]]:
        """Fields of every problem, the missing ones filled in."""
        axes: dict[str, tuple[object, ...]] = {
            **_DEFAULT_CONV,
            **self.given,
            "stride": self.stride or ((1, 1),),
            "padding": self.padding or ((0, 0),),
            "dilation": self.dilation or ((1, 1),),
            "groups": self.groups or (1,),
        }
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


@dataclass(frozen=True)
class Sweep:
    """What to generate. Given shapes replace the predefined ones of every kind."""

    #: Empty: every kind, or those whose shapes were given.
    kinds: tuple[str, ...] = ()
    matmul: MatmulSweep = MatmulSweep()
    conv: ConvSweep = field(default_factory=ConvSweep)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    #: (lhs, rhs) layouts of matmul and batch_matmul.
    layouts: tuple[tuple[str, str], ...] = (("t", "t"),)
    conv_layouts: tuple[str, ...] = ("nhwc",)
    epilogues: tuple[Epilogue, ...] = (Epilogue(),)


@dataclass(frozen=True)
class SweepResult:
    """The operations of a sweep, and why some points of it are no operation (one reason a point)."""

    workload: Workload
    left_out: tuple[str, ...] = ()


Maker = Callable[[], Operation]


def sweep_workload(sweep: Sweep) -> SweepResult:
    """Every operation of the sweep, equal ones once.

    A point that is no operation (a filter larger than its input, gelu on integers) is left out with
    its reason. Raises OperationError if no point is one, UsageError if shapes were given for kinds
    that are not asked for.
    """
    makers = {Matmul.kind: _matmuls, BatchMatmul.kind: _batch_matmuls, Conv2d.kind: _convolutions}
    entries: list[Entry] = []
    errors: list[OperationError] = []
    for kind in _kinds(sweep):
        for make in makers[kind](sweep):
            try:
                entries.append(Entry(make(), origin="sweep"))
            except OperationError as error:
                errors.append(error)
    if not entries:
        raise (
            errors[0]
            if errors
            else UsageError("the sweep has no point: types, layouts or epilogues are empty")
        )
    return SweepResult(merged(entries), tuple(str(error) for error in errors))


def _kinds(sweep: Sweep) -> tuple[str, ...]:
    shapes, asked = sweep.matmul, sweep.kinds
    for kind in asked:
        operation_kind(kind)  # refuses what is none
    implied: list[str] = []
    if shapes.is_given:
        # --batch-count=1 stands in the arguments of every plain matmul.
        implied.append(BatchMatmul.kind if max(shapes.batch or (1,)) > 1 else Matmul.kind)
    if sweep.conv.is_given:
        implied.append(Conv2d.kind)
    if not asked:
        return tuple(implied) or (Matmul.kind, BatchMatmul.kind, Conv2d.kind)
    if shapes.is_given and Matmul.kind not in asked and BatchMatmul.kind not in asked:
        raise UsageError(
            f"shapes of matmul were given, but the kinds asked for are {', '.join(asked)}",
            hint="ask for matmul or batch_matmul too",
        )
    if max(shapes.batch or (1,)) > 1 and BatchMatmul.kind not in asked:
        raise UsageError(
            f"a batch count above 1 was given, but the kinds asked for are {', '.join(asked)}",
            hint="ask for batch_matmul too",
        )
    if sweep.conv.is_given and Conv2d.kind not in asked:
        raise UsageError(
            f"shapes of conv2d were given, but the kinds asked for are {', '.join(asked)}",
            hint="ask for conv2d too",
        )
    return asked


def _variants(sweep: Sweep) -> list[tuple[ElementTypes, Epilogue]]:
    return list(itertools.product(sweep.types, sweep.epilogues))


def _matmuls(sweep: Sweep) -> Iterator[Maker]:
    given = dict.fromkeys(p[1:] for p in sweep.matmul.problems()) if sweep.matmul.is_given else None
    problems = given or (*MATMUL_PROBLEMS, *SPLIT_K_PROBLEMS)
    for (m, n, k), (types, epilogue), (lhs, rhs) in itertools.product(
        problems, _variants(sweep), sweep.layouts
    ):
        yield partial(Matmul, m, n, k, types, lhs, rhs, epilogue)


def _batch_matmuls(sweep: Sweep) -> Iterator[Maker]:
    problems = tuple(sweep.matmul.problems()) if sweep.matmul.is_given else BATCH_MATMUL_PROBLEMS
    for (b, m, n, k), (types, epilogue), (lhs, rhs) in itertools.product(
        problems, _variants(sweep), sweep.layouts
    ):
        yield partial(BatchMatmul, b, m, n, k, types, lhs, rhs, epilogue)


def _convolutions(sweep: Sweep) -> Iterator[Maker]:
    problems = tuple(sweep.conv.problems()) if sweep.conv.is_given else CONV2D_PROBLEMS
    for problem, (types, epilogue), layout in itertools.product(
        problems, _variants(sweep), sweep.conv_layouts
    ):
        yield partial(Conv2d, **problem, layout=layout, types=types, epilogue=epilogue)  # type: ignore[arg-type]
