"""Compiles dispatches on this CPU and compares their results with the references."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Distribution
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result
from dispatch_profiler.targets import parse_target

TARGET = parse_target("llvm-cpu")


def verify_compiled(dispatches: Sequence[Dispatch]) -> None:
    """Compile `dispatches` as one module and compare each result: on integers exactly, on reals within the bound."""
    text = "\n".join(render_module(each.operation, [each]) for each in dispatches)
    flags = (*TARGET.compile_flags, *dispatches[0].configuration.flags)
    built = IreeCompiler().build(BuildRequest(text, tuple(dispatches), flags, 1))
    assert {name: o.reason for name, o in built.outcomes.items() if o.state is not State.COMPILED} == {}
    device = open_kernels("local-sync")
    program = device.load(built.verify)
    for dispatch in dispatches:
        operation = dispatch.operation
        for distribution in Distribution:
            inputs = draw(operation, distribution, 5)
            (actual,) = program.bind(dispatch.name, device.put(operation, inputs)).run()
            found = compare_result(operation.results[0], actual, operation.reference(inputs)[0])
            assert found.passed, f"{dispatch.name} on {distribution.value}: {found.message}"
