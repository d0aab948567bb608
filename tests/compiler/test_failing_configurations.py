"""A configuration that IREE cannot compile affects no other, least of all the default."""

from __future__ import annotations

import random

import pytest

from dispatch_profiler.compiler import BuildError, IreeCompiler
from dispatch_profiler.compiler.workers.isolate_failures import isolate_failures
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.operations import Conv2d
from dispatch_profiler.targets import parse_target

#: IREE folds the unit dimension away, and with it the attribute that tells functions apart.
ONE_IMAGE = Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1))
#: Too wide for the compiler.
TOO_WIDE = CpuTiles((1, 14, 14, 64), (1, 1, 14, 64, 1, 1, 16))
COMPILES = CpuTiles((1, 14, 14, 64), (1, 1, 14, 16, 1, 1, 1))


def test_the_compiler_names_the_tile_that_fails_and_not_the_default(make_request):
    """They share an executable until each is given its own, with its own source locations."""
    with pytest.raises(BuildError) as caught:
        IreeCompiler().build(make_request(ONE_IMAGE, [Default(), COMPILES, TOO_WIDE]))

    assert caught.value.culprits == (Dispatch(ONE_IMAGE, TOO_WIDE).name,)


def test_a_tile_that_fails_costs_neither_the_default_nor_another_tile(make_request):
    request = make_request(ONE_IMAGE, [Default(), TOO_WIDE, COMPILES])

    built = isolate_failures(request, IreeCompiler().build)

    states = [built.outcomes[d.name].state for d in request.dispatches]
    assert states == [State.COMPILED, State.NOT_COMPILED, State.COMPILED]
    assert "large vector sizes" in built.outcomes[request.dispatches[1].name].reason
    for dispatch, state in zip(request.dispatches, states, strict=True):
        assert (dispatch.name.encode() in built.verify) == (state is State.COMPILED)


UNIT_DIMENSIONS = (
    ONE_IMAGE,
    Conv2d(1, 28, 28, 128, 128, 3, 3, padding=(1, 1)),
    Conv2d(1, 14, 14, 256, 256, 3, 3, stride=(2, 2), padding=(1, 1)),
    Conv2d(1, 56, 56, 64, 256, 1, 1),
    Conv2d(8, 28, 28, 64, 128, 1, 1),
    Conv2d(1, 30, 1, 32, 64, 3, 1),
    Conv2d(1, 1, 30, 32, 64, 1, 3),
    Conv2d(1, 30, 30, 1, 64, 3, 3),
    Conv2d(1, 30, 30, 32, 1, 3, 3),
    Conv2d(1, 1, 1, 256, 128, 1, 1),
)


def divisors(extent: int, most: int) -> list[int]:
    return [tile for tile in range(1, most + 1) if extent % tile == 0]


def random_tiles(operation: Conv2d, count: int) -> list[CpuTiles]:
    """`count` tiles that nothing but the compiler rejects, the same in every run."""
    limits = parse_target("llvm-cpu").limits
    draw = random.Random(operation.name)
    extents = {loop.name: loop.extent for loop in operation.loops}
    axes = (*operation.parallel_axes, *operation.reduction_axes)
    found: dict[CpuTiles, None] = {}
    while len(found) < count:
        # Wide tiles fail, and take long to compile: some of them will do.
        most = draw.choice([8, 8, 8, 8, 64])
        vector = tuple(draw.choice(divisors(extents.get(a, 1), most)) for a in axes)
        distribution = tuple(tile * draw.choice([1, 2, 4]) for tile in vector[: len(operation.parallel_axes)])
        tiles = CpuTiles(distribution, vector)
        if tiles.invalid_reason(operation, limits) is None:
            found[tiles] = None
    return list(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("operation", UNIT_DIMENSIONS, ids=lambda o: o.name.split("_f32")[0])
def test_of_a_hundred_random_tiles_each_fails_for_itself(operation: Conv2d, make_request):
    """What is not compiled fails alone, too, in a source that has nothing else; all the others are there."""
    request = make_request(operation, [Default(), *random_tiles(operation, 100)], repeat=1)

    built = isolate_failures(request, IreeCompiler().build)

    assert set(built.outcomes) == {d.name for d in request.dispatches}
    assert built.outcomes[request.dispatches[0].name].state is State.COMPILED
    for dispatch in request.dispatches:
        outcome = built.outcomes[dispatch.name]
        assert (dispatch.name.encode() + b"\0" in built.verify) == (outcome.state is State.COMPILED)
        if outcome.state is State.NOT_COMPILED:
            with pytest.raises(BuildError):
                IreeCompiler().build(make_request(operation, [dispatch.configuration]))
