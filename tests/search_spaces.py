"""Small search spaces, and what a device would answer for their configurations."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from hypothesis import strategies as st

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Space, spaces
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies import Strategy, Trial

CPU = parse_target("llvm-cpu").limits
MATMUL = Matmul(96, 128, 64)
CONVOLUTION = Conv2d(1, 14, 14, 32, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
OPERATIONS: tuple[Operation, ...] = (MATMUL, Matmul(1, 100, 60), CONVOLUTION)
SEEDS = (Default(), CpuTiles((32, 64), (8, 32, 4)))


@st.composite
def search_spaces(draw: st.DrawFn) -> SearchSpace:
    """One to three choices for each axis of some of the spaces of an operation."""
    operation = draw(st.sampled_from(OPERATIONS))
    among = draw(st.lists(st.sampled_from(spaces(operation, CPU)), min_size=1, max_size=3, unique=True))
    return SearchSpace(operation, CPU, [_reduced(draw, space) for space in among])


def _reduced(draw: st.DrawFn, space: Space[Configuration]) -> Space[Configuration]:
    for axis in space.axes:
        kept = st.lists(st.sampled_from(axis.choices), min_size=1, max_size=2, unique=True)
        space = space.with_choices(axis.name, *sorted(draw(kept)))
    return space


def every_valid(space: SearchSpace) -> set[Configuration]:
    """By trying every point."""
    found = {space.configuration(point) for point in space.points()}
    return {each for each in found if space.is_valid(each)}


def invented_time(configuration: Configuration) -> float | None:
    """Smooth in the tiles, with noise from the name; a tenth fails."""
    noise = zlib.crc32(configuration.name.encode()) % 1000
    if noise < 100:
        return None
    inner = configuration.kernel_configuration
    if not isinstance(inner, CpuTiles):
        return 1.0
    wanted = math.log2(math.prod(inner.vector)) - 9
    return math.exp(0.1 * wanted**2 + 1e-4 * noise)


def run(strategy: Strategy, counts: Sequence[int]) -> list[Configuration]:
    """Ask for each of `counts`, telling invented times."""
    asked: list[Configuration] = []
    for count in counts:
        batch = strategy.ask(count)
        assert len(batch) <= count
        asked.extend(batch)
        strategy.tell([Trial(each, invented_time(each)) for each in batch])
    return asked
