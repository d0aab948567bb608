"""Object files of kernels for CPUs, and the commands of the functions that use them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dispatch_profiler.compiler import BuildError, compiler_for, launch_request
from dispatch_profiler.compiler.backends.static_library import StaticLibrary, build_static
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Formed, Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.dispatches.launch_program import Copy, Fill, Run
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.targets import parse_target

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

TARGET = parse_target("llvm-cpu:x86-64-v3")
PRODUCT = Matmul(16, 64, 32, rhs_layout="n")
CONV = Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1))
PACKED = Microkernel((16, 64), (2, 1, 16), packed=True, lanes=8)


def built(operation: Operation, configuration: Configuration, name: str = "a") -> StaticLibrary:
    request = launch_request(Dispatch(operation, configuration), TARGET)
    return build_static(compiler_for(TARGET), request, name)


@pytest.mark.parametrize(
    ("operation", "configuration"),
    [(PRODUCT, Default()), (PRODUCT, PACKED), (CONV, Default()), (CONV, Formed("im2col", Default()))],
    ids=lambda each: each.name,
)
def test_functions_read_and_write_every_argument(operation, configuration):
    library = built(operation, configuration)
    dispatch = Dispatch(operation, configuration)
    packing = [dispatch.packing_function] if configuration.packs_weight else []
    assert set(library.functions) == {dispatch.name, *packing}
    results = sum(each.bytes for each in operation.results)
    for function in library.functions.values():
        spans = [span for each in function.commands for span in spans_of(each)]
        assert {span.buffer for span in spans} == set(
            range(len(function.arguments) + len(function.transients))
        )
        sizes = (*function.arguments, *function.transients)
        assert all(span.offset + span.length <= sizes[span.buffer] for span in spans)
        assert {each.kernel for each in function.commands if isinstance(each, Run)} <= set(
            range(len(library.kernels))
        )
    assert library.functions[dispatch.name].arguments[-1] == results


def spans_of(command: Run | Fill | Copy) -> tuple:
    if isinstance(command, Run):
        return command.bindings
    return (command.target,) if isinstance(command, Fill) else (command.source, command.target)


def test_objects_have_the_query_function_and_the_names_of_kernels():
    library = built(PRODUCT, PACKED)
    assert len(library.kernels) == 2
    for name in (library.query, *library.kernels):
        assert name.encode() in library.data


def test_objects_of_several_modules_have_different_query_functions():
    first, second = (built(PRODUCT, PACKED, name) for name in ("a", "b"))
    third = built(PRODUCT, Default())
    assert len({each.query for each in (first, second, third)}) == 3
    assert all(re.fullmatch(r"\w+", each.query) for each in (first, second, third))


def test_configurations_that_are_rejected_are_errors_with_the_reason():
    with pytest.raises(BuildError, match=r"exceeds|divide|multiple"):
        built(PRODUCT, CpuTiles((16, 64), (32, 64, 4)))


def test_commands_that_are_not_constant_are_an_error_with_the_reason():
    dispatch = Dispatch(PRODUCT, Default())
    request = launch_request(dispatch, TARGET)
    source = f"""func.func @{dispatch.name}(%lhs: tensor<?xf32>) -> tensor<?xf32> {{
  %twice = arith.addf %lhs, %lhs : tensor<?xf32>
  return %twice : tensor<?xf32>
}}
"""
    with pytest.raises(BuildError, match="its commands are not constant"):
        build_static(compiler_for(TARGET), replace(request, source=source), "a")
