"""The front end runs once for all configurations, and what comes out is what each would get alone."""

from __future__ import annotations

import re

import pytest

from dispatch_profiler.compiler import BuildError, BuildRequest, IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.passes.applied import verify_applied
from dispatch_profiler.compiler.passes.sharing import fan_out, share
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul, Operation

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

SOURCES, CONFIGURED, TARGETS = "executable-sources", "executable-configurations", "executable-targets"
TILES = [CpuTiles((16, 16), (8, 16, 4)), CpuTiles((32, 32), (8, 16, 1)), CpuTiles((64, 16), (4, 16, 1))]
CONV_TILES = [
    CpuTiles((1, 7, 14, 64), (1, 1, 7, 16, 1, 1, 8)),
    CpuTiles((1, 4, 4, 16), (1, 1, 4, 8, 1, 1, 1)),
]
#: The initial zeros of this tile are a vector that the compiler refuses.
TOO_WIDE = CpuTiles((64, 128), (8, 16, 1), (64, 128, 32))


def generated_code(request: BuildRequest, *, shared: bool) -> dict[str, list[str]]:
    """Function -> the code of each of its executables, after tiling, vectorization and lowering."""
    phases, flags = InProcess(), request.flags
    module = phases.parse(request.source, flags)
    module.keep_functions([d.name for d in request.dispatches])
    lines, groups = module.lines(), share(module) if shared else []
    phases.advance(module, flags, stop=SOURCES)
    fan_out(module, groups, lines)
    phases.advance(module, flags, SOURCES, stop=CONFIGURED)
    verify_applied(module, request.dispatches, lines)
    phases.advance(module, flags, CONFIGURED, stop=TARGETS)
    return {
        d.name: [anonymous(op) for op in module.executables_of(d.name).values()] for d in request.dispatches
    }


def anonymous(op) -> str:
    """Text of an executable without the name of the function that it was first made for."""
    return re.sub(r"[\w$]+_dispatch_(\d+)[\w$]*", r"dispatch_\1", str(op))


@pytest.mark.parametrize(
    ("operation", "tiles"),
    [
        (Matmul(128, 64, 64), TILES),
        (Matmul(100, 60, 50), [CpuTiles(t.distribution, t.vector, peel=True) for t in TILES]),
        pytest.param(
            Matmul(128, 64, 64, epilogue=Epilogue.parse("bias+relu")), TILES, marks=pytest.mark.slow
        ),
        (Matmul(64, 64, 256), [CpuTiles((32, 32), (8, 16, k), split_k=4) for k in (1, 4)] + TILES[:2]),
        pytest.param(
            Matmul(64, 64, 64, ElementTypes("f16", "f16", "f16"), lhs_layout="n"),
            TILES,
            marks=pytest.mark.slow,
        ),
        pytest.param(BatchMatmul(3, 64, 64, 32), TILES, marks=pytest.mark.slow),
        (Conv2d(2, 14, 14, 16, 64, 3, 3), CONV_TILES),
        pytest.param(Conv2d(1, 28, 28, 32, 64, 3, 3, padding=(1, 1)), CONV_TILES, marks=pytest.mark.slow),
        pytest.param(Conv2d(1, 28, 28, 64, 64, 1, 1), CONV_TILES, marks=pytest.mark.slow),
    ],
    ids=lambda x: x.name if isinstance(x, Operation) else "",
)
def test_each_gets_the_code_that_it_would_get_alone(
    operation: Operation, tiles: list[CpuTiles], make_request
):
    request = make_request(operation, [Default(), *tiles])

    together = generated_code(request, shared=True)

    for dispatch in request.dispatches:
        alone = generated_code(BuildRequest(request.source, (dispatch,), request.flags, 1), shared=False)
        assert together[dispatch.name] == alone[dispatch.name], dispatch.name
    assert len({tuple(code) for code in together.values()}) == len(request.dispatches)  # none is another's


def test_one_function_of_each_body_goes_through_the_front_end(make_request):
    request = make_request(Matmul(64, 64, 64), [Default(), *TILES, CpuTiles((32, 32), (8, 16, 4), split_k=4)])
    module = IrModule.parse(request.source)

    (group,) = share(module)

    names = [d.name for d in request.dispatches]
    assert list(group.infos) == names[1:4]
    assert list(module.symbols("func.func")) == [names[0], names[1], names[4]]


def test_a_function_that_was_edited_by_hand_is_not_taken_for_its_neighbour(make_request):
    request = make_request(Matmul(64, 64, 64), [*TILES])
    first = request.source.index("arith.constant 0.0")
    edited = (
        request.source[:first] + "arith.constant 1.0" + request.source[first + len("arith.constant 0.0") :]
    )

    (group,) = share(IrModule.parse(edited))

    assert list(group.infos) == [d.name for d in request.dispatches[1:]]


def test_a_culprit_that_shared_the_front_end_is_named(make_request):
    """Its copy keeps the lines of its own source, by which diagnostics name it."""
    request = make_request(Matmul(128, 128, 64), [Default(), *TILES, TOO_WIDE])

    with pytest.raises(BuildError) as caught:
        IreeCompiler().build(request)

    assert caught.value.culprits == (request.dispatches[-1].name,)


def test_names_in_traces_and_reflection_are_the_dispatchs_own(make_request):
    request = make_request(Matmul(64, 64, 64), TILES)
    phases = InProcess()
    module = phases.parse(request.source, request.flags)
    lines, groups = module.lines(), share(module)
    phases.advance(module, request.flags, stop=SOURCES)
    fan_out(module, groups, lines)

    for dispatch in request.dispatches:
        assert f"sync func @{dispatch.name}(" in str(module.symbols("util.func")[dispatch.name])
        (executable,) = module.executables_of(dispatch.name)
        assert executable == f"{dispatch.name}_dispatch_0"
