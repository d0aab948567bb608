"""Spaces of configurations: parameters with their choices, for a tuner to enumerate or to draw from.

A point of a space is a configuration; whether it fits an operation and a target is for
`Configuration.invalid_reason` to say, so that no rule stands twice.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.configurations._base import Configuration, GpuLimits, Limits
from dispatch_profiler.configurations.gpu_tiles import GPU_BACKENDS, ORDERS
from dispatch_profiler.configurations.intrinsics import FAMILIES, INTRINSICS
from dispatch_profiler.configurations.mma_tiles import MmaTiles
from dispatch_profiler.configurations.simt_tiles import SimtTiles
from dispatch_profiler.configurations.triton_tiles import TritonTiles
from dispatch_profiler.operations import Operation

_POWERS = tuple(2**i for i in range(10))
#: A result with more elements has workgroups enough for every multiprocessor without slices of k.
_FEW_ELEMENTS = 2**20


@dataclass(frozen=True)
class Space:
    """Every `kind(**point)` with a choice for each parameter; a tuple of choices a parameter.

    A parameter whose value is a tuple of tiles, such as `workgroup`, has the choices of each tile
    in `tiles` instead.
    """

    kind: type[Configuration]
    parameters: Mapping[str, tuple[Any, ...]]
    tiles: Mapping[str, tuple[tuple[int, ...], ...]]

    def __len__(self) -> int:
        choices = [*self.parameters.values(), *itertools.chain.from_iterable(self.tiles.values())]
        return math.prod(map(len, choices))

    def points(self) -> Iterator[Configuration]:
        """All of them, also those that fit nothing."""
        names = [*self.parameters, *self.tiles]
        tiles = (list(itertools.product(*axes)) for axes in self.tiles.values())
        for values in itertools.product(*self.parameters.values(), *tiles):
            yield self.kind(**dict(zip(names, values, strict=True)))

    def draw(self, rng: random.Random) -> Configuration:
        """One of them, each as likely as any other."""
        point: dict[str, Any] = {name: rng.choice(choices) for name, choices in self.parameters.items()}
        for name, axes in self.tiles.items():
            point[name] = tuple(rng.choice(choices) for choices in axes)
        return self.kind(**point)


def rejection_reason(configuration: Configuration, operation: Operation, limits: Limits) -> str | None:
    """Why `configuration` cannot be had for `operation` on a target with `limits`; None if it can."""
    return configuration.invalid_reason(operation, limits) or configuration.unsupported_reason(
        operation, limits
    )


def draw_valid(
    spaces: Sequence[Space], operation: Operation, limits: Limits, rng: random.Random, tries: int = 100_000
) -> Iterator[Configuration]:
    """Different valid points of `spaces`, drawn at random until `tries` draws are spent."""
    seen: set[Configuration] = set()
    for _ in range(tries if spaces else 0):
        point = rng.choice(spaces).draw(rng)
        if point not in seen and rejection_reason(point, operation, limits) is None:
            yield point
        seen.add(point)


def gpu_spaces(operation: Operation, limits: Limits) -> tuple[Space, ...]:
    """What there is to choose for `operation` on a GPU; none where the target is none.

    A space for each way to hand over the reduction: a convolution is done directly or as an
    implicit GEMM.
    """
    gpu = limits.gpu
    if gpu is None or operation.contraction is None:
        return ()
    if limits.backend not in GPU_BACKENDS:
        return () if operation.convolution else (_spirv_space(operation),)
    found: list[Space] = []
    for reduction in _reductions(operation):
        found += [
            _mma_space(operation, gpu, instruction, reduction) for instruction in _shapes(operation, gpu)
        ]
        found.append(_simt_space(operation, gpu, tuple(_up_to(32, each) for each in reduction)))
    return tuple(found)


def triton_spaces(operation: Operation, limits: Limits) -> tuple[Space, ...]:
    """What there is to choose for `operation` among Triton kernels; none where the target is no NVIDIA GPU.

    A persistent launch has a workgroup for each multiprocessor of an H100 or H200, or two.
    """
    if limits.gpu is None or limits.backend != "cuda" or operation.contraction is None:
        return ()
    precisions = ("ieee", "tf32x3") if operation.element_type.name == "f32" else ("ieee",)
    product = operation.product is not None
    return (
        Space(
            TritonTiles,
            {
                "warps": (4, 8),
                "stages": (2, 3, 4, 5),
                "group": (1, 4, 8),
                "persistent": (0, 132, 264),
                "descriptors": (False, True) if product and limits.gpu.device_capability >= 90 else (False,),
                "precision": precisions,
                "split_k": _slices(operation),
            },
            {"tile": (_POWERS[4:9], _POWERS[4:9], _POWERS[4:8])},
        ),
    )


def _slices(operation: Operation) -> tuple[int, ...]:
    """How often k may be cut: for products whose result is small."""
    few = _is_plain_product(operation) and operation.results[0].elements <= _FEW_ELEMENTS
    return _POWERS[:5] if few else (1,)


def _is_plain_product(operation: Operation) -> bool:
    return operation.product is not None and not operation.product.is_batched


def _up_to(most: int, choices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x for x in choices if x <= most)


def _reductions(operation: Operation) -> list[tuple[tuple[int, ...], ...]]:
    """Choices for each reduction tile."""
    k = _POWERS[2:9]
    convolution = operation.convolution
    if convolution is None:
        return [(k,)]
    is_depthwise = convolution.variant == "depthwise"
    direct = ((1,), (1,), (1,) if is_depthwise else k)
    return [direct] if is_depthwise else [(k,), direct]


def _axes(
    operation: Operation, choices: tuple[int, ...], outer: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """`choices` for the last two axes, few for those before: images and rows of pixels."""
    extents = {loop.name: loop.extent for loop in operation.loops}
    *before, m, n = operation.parallel_axes
    return (
        *(_up_to(extents[axis], outer) for axis in before),
        *(_with_divisors(choices, extents[axis]) for axis in (m, n)),
    )


def _with_divisors(choices: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """`choices`, and of what divides `extent` besides (56 = 7 * 8) those within their range."""
    low, high = choices[0], choices[-1]
    divisors = [d for d in range(low, min(high, extent) + 1) if extent % d == 0 and d % 4 == 0]
    return tuple(sorted({*choices, *divisors}))


def _shapes(operation: Operation, gpu: GpuLimits) -> list[tuple[str, tuple[int, int, int]]]:
    """(family, shape) of every instruction for the types of `operation`."""
    types = (operation.element_type.name, operation.accumulator.name)
    intrinsics = (INTRINSICS[name] for name in gpu.intrinsics)
    return [(FAMILIES[x.family], x.shape) for x in intrinsics if (x.input, x.accumulator) == types]


def with_narrow_sums(space: Space, operation: Operation) -> Space:
    """`space` with sums in the inputs' own type besides: faster where it counts, and less exact."""
    if space.kind is not MmaTiles or operation.element_type.name not in ("f16", "bf16"):
        return space
    return replace(space, parameters={**space.parameters, "accumulator": ("", operation.element_type.name)})


def _mma_space(
    operation: Operation,
    gpu: GpuLimits,
    instruction: tuple[str, tuple[int, int, int]],
    reduction: tuple[tuple[int, ...], ...],
) -> Space:
    family, shape = instruction
    several = sum(name == family for name, _ in _shapes(operation, gpu)) > 1
    outer = len(operation.parallel_axes) - 2
    return Space(
        MmaTiles,
        {
            "instruction": (family,),
            "shape": (shape if several else (),),
            "pipeline": ("TileAndFuse", "VectorDistribute"),
            "stages": gpu.stages,
            "shared_padding": (True, False),
            "order": ORDERS,
            "split_k": _slices(operation),
            "subgroup_size": (64,) if family == "mfma" else (32,),
        },
        {
            "workgroup": _axes(operation, _POWERS[3:10], _POWERS[:4]),
            "subgroups": ((1, 2),) * outer + (_POWERS[:4],) * 2,
            "reduction": reduction,
        },
    )


def _simt_space(operation: Operation, gpu: GpuLimits, reduction: tuple[tuple[int, ...], ...]) -> Space:
    outer = len(operation.parallel_axes) - 2
    return Space(
        SimtTiles,
        {
            "stages": gpu.stages,
            "subgroup_size": gpu.subgroup_sizes[:1],
            "shared_padding": (True, False),
            "promote": (True, False),
        },
        {
            "workgroup": _axes(operation, _POWERS[:9], _POWERS[:4]),
            "thread": ((1,),) * outer + (_POWERS[:5],) * 2,
            "reduction": reduction,
        },
    )


def _spirv_space(operation: Operation) -> Space:
    return Space(
        SimtTiles,
        {"pipeline": ("BaseVectorize",), "stages": (1,)},
        {
            "workgroup": _axes(operation, _POWERS[:9], ()),
            "thread": (_POWERS[:5],) * 2,
            "reduction": (_POWERS[:7],),
        },
    )
