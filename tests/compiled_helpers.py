"""Compiles dispatches on this CPU and compares their results with the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler_worker import call

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.configurations import Configuration
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels, LoadedKernels, open_kernels
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import References, compare
from dispatch_profiler.targets import Target, parse_target

TARGET = parse_target("llvm-cpu")
_SEED = 5

#: MLIR -> MLIR of a kernel that is wrong.
Change = Callable[[str], str]


def verify_tiles(pairs: Sequence[tuple[Operation, Configuration]], target: Target = TARGET) -> None:
    """`verify_compiled` for operations and configurations that are valid on `target`."""
    for operation, tiles in pairs:
        assert tiles.invalid_reason(operation, target.limits) is None
    verify_compiled([Dispatch(*pair) for pair in pairs], target.compile_flags)


def verify_compiled(
    dispatches: Sequence[Dispatch], flags: Sequence[str] = TARGET.compile_flags, *, runs: bool = True
) -> None:
    """Compile `dispatches` as one module and compare each result: on integers exactly, on reals within the bound.

    A form that rounds integers is compared within its bound on these, too. `flags` are those of the target. With
    `runs=False`, this machine cannot run what is compiled.
    """
    text = "\n".join(render_module(each.operation, [each]) for each in dispatches)
    flags = (*flags, *dispatches[0].configuration.flags)
    built = IreeCompiler().build(BuildRequest(text, tuple(dispatches), flags, 1))
    assert {name: o.reason for name, o in built.outcomes.items() if o.state is not State.COMPILED} == {}
    assert built.verify
    if not runs:
        return
    device = open_kernels("local-sync")
    program = device.load(built.verify)
    for dispatch in dispatches:
        assert failure(device, program, dispatch.name, dispatch) == "", dispatch.name


def failures_of(planted: Mapping[Dispatch, Mapping[str, Change]]) -> dict[tuple[Dispatch, str], str]:
    """What verification finds in the kernels of one module: (dispatch, fault) -> message, empty if it finds nothing.

    With each dispatch, the fault "" is its kernel as it is.
    """
    sources, functions = [], {}
    for dispatch, changes in planted.items():
        text = render_module(dispatch.operation, [dispatch])
        for fault, change in {"": str, **changes}.items():
            changed = change(text)
            assert fault == "" or changed != text, f"{dispatch.name}: the text of {fault!r} is not there"
            name = f"kernel_{len(functions)}"
            functions[dispatch, fault] = name
            sources.append(changed.replace(dispatch.name, name))
    device = open_kernels("local-sync")
    program = device.load(call(_compiled, "\n".join(sources)))
    return {key: failure(device, program, name, key[0]) for key, name in functions.items()}


def _compiled(source: str) -> bytes:
    """The vmfb of any MLIR, without proof of what was configured."""
    compiler, flags = InProcess(), IreeCompiler().resolve(TARGET.compile_flags)
    return compiler.vmfb(compiler.parse(source, flags), flags, "start")


def failure(device: DeviceKernels, program: LoadedKernels, function: str, dispatch: Dispatch) -> str:
    """Why the results of `function` are not those of `dispatch` on drawn inputs; empty if they are."""
    operation = dispatch.operation
    for distribution in operation.distributions:
        results = program.bind(function, device.put(operation, draw(operation, distribution, _SEED))).run()
        references = References(None, _SEED).get(operation, distribution, error_bound=dispatch.error_bound)
        found = compare(operation, results, references)
        if not found.passed:
            return f"{found.message} (on {distribution.value})"
    return ""
