"""Equal code has equal hashes whatever its functions are called; different code has different ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildRequest, IreeCompiler, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import CpuTiles, Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, Matmul

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

SMALL = Matmul(64, 64, 64)
CONVOLUTION = Conv2d(1, 8, 8, 16, 16, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
TILES, OTHERS = CpuTiles((64, 64), (8, 32, 1)), CpuTiles((64, 64), (8, 16, 1))
TOOLS = Path(sys.executable).parent


def renamed(request: BuildRequest, suffix: str) -> BuildRequest:
    """The same functions under longer names, beside the first ones."""
    names = [dispatch.name for dispatch in request.dispatches]
    text = request.source
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"@{name}(", f"@{name}{suffix}(")
    copies = tuple(_Renamed(d.operation, d.configuration, suffix) for d in request.dispatches)
    return BuildRequest(request.source + text, (*request.dispatches, *copies), request.flags, request.repeat)


class _Renamed(Dispatch):
    """A dispatch under another name."""

    def __init__(self, operation, configuration, suffix):
        super().__init__(operation, configuration)
        self.__dict__["name"] = f"{operation.name}_{configuration.name}{suffix}"


@pytest.mark.parametrize(
    ("operation", "configurations"),
    [(SMALL, [TILES, OTHERS, Default()]), (CONVOLUTION, [Formed("im2col"), Formed("permuted"), Default()])],
    ids=["tiles", "forms of several executables"],
)
def test_the_name_of_a_function_does_not_count(make_request, operation, configurations):
    request = renamed(make_request(operation, configurations), "_copy")
    outcomes = IreeCompiler().build(request).outcomes
    hashes = [outcomes[dispatch.name].kernel for dispatch in request.dispatches]
    first, second = hashes[: len(configurations)], hashes[len(configurations) :]
    assert first == second
    assert len(set(first)) == len(configurations) and all(map(len, first))


def test_the_module_does_not_count(make_request):
    """Alone, or with others."""
    alone = IreeCompiler().build(make_request(SMALL, [OTHERS])).outcomes
    beside = IreeCompiler().build(make_request(SMALL, [TILES, OTHERS])).outcomes
    name = Dispatch(SMALL, OTHERS).name
    assert alone[name].kernel == beside[name].kernel


def test_different_configurations_may_be_the_same_kernel(make_request):
    """Cache tiles that hold a whole workgroup tile change nothing."""
    cached = CpuTiles((64, 64), (8, 32, 1), (64, 64, 64))
    outcomes = IreeCompiler().build(make_request(SMALL, [TILES, cached])).outcomes
    assert cached != TILES
    assert len({outcome.kernel for outcome in outcomes.values()}) == 1


def test_the_command_line_compiler_finds_the_same(make_request):
    request = make_request(SMALL, [TILES])
    assert IreeCompiler(TOOLS).build(request).outcomes == IreeCompiler().build(request).outcomes


def test_the_null_compiler_shares_code_where_it_is_told_to():
    dispatches = tuple(Dispatch(SMALL, each) for each in (TILES, OTHERS, Default()))
    rules = (Rule("*_default"), Rule("*", kernel="same"))
    request = BuildRequest(render_module(SMALL, dispatches), dispatches, (), 1)
    first, second, third = (each.kernel for each in NullCompiler(rules).build(request).outcomes.values())
    assert first == second != third and third
