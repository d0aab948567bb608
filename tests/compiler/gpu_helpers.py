"""Building for GPUs that are not here, and reading what came out."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from compiler_worker import call

from dispatch_profiler.compiler import BuildRequest, Built, IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.passes.applied import restore_dropped, verify_applied
from dispatch_profiler.compiler.passes.sharing import fan_out, share
from dispatch_profiler.compiler.workers.pool import isolate_failures
from dispatch_profiler.configurations import Configuration, rejection_reason
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import ElementTypes, Operation
from dispatch_profiler.targets import parse_target

F16 = ElementTypes("f16", "f16", "f16")
F16_WIDE = ElementTypes("f16", "f16", "f32")
BF16 = ElementTypes("bf16", "bf16", "f32")
F8 = ElementTypes("f8", "f8", "f32")
I8 = ElementTypes("i8", "i8", "i32")
F64 = ElementTypes("f64", "f64", "f64")


def gpu_request(target: str, operation: Operation, configurations: Sequence[Configuration]) -> BuildRequest:
    """What `compile.py` would build."""
    described = parse_target(target)
    dispatches = tuple(Dispatch(operation, c) for c in configurations)
    reasons = ((d.name, rejection_reason(d.configuration, operation, described.limits)) for d in dispatches)
    rejected = tuple((name, reason) for name, reason in reasons if reason)
    source, flags = render_module(operation, dispatches), described.compile_flags
    return BuildRequest(source, dispatches, flags, 2, rejected, described.limits.gpu)


def build(target: str, operation: Operation, *configurations: Configuration) -> Built:
    """In this process, as much of it as compiles."""
    return isolate_failures(gpu_request(target, operation, configurations), IreeCompiler().build)


def states(built: Built) -> list[str]:
    """State of each dispatch, with its reason if it was not compiled."""
    return [f"{o.state.value} {o.reason}".strip() for o in built.outcomes.values()]


@functools.cache
def generated_code(target: str, operation: Operation, *configurations: Configuration) -> dict[str, str]:
    """Function -> its dispatches after code generation, as IR; what was asked for must be configured."""
    found: dict[str, str] = call(_generated_code, target, operation, *configurations)
    return found


def _generated_code(target: str, operation: Operation, *configurations: Configuration) -> dict[str, str]:
    request, phases = gpu_request(target, operation, configurations), InProcess()
    module = phases.parse(request.source, request.flags)
    lines, groups = module.lines(), share(module)
    phases.advance(module, request.flags, stop="executable-sources")
    fan_out(module, groups, lines)
    restore_dropped(module, request.dispatches, lines)
    phases.advance(module, request.flags, "executable-sources", stop="executable-configurations")
    outcomes = verify_applied(module, request.dispatches, lines)
    assert {o.state.value for o in outcomes.values()} == {"compiled"}, outcomes
    phases.advance(module, request.flags, "executable-configurations", stop="executable-targets")
    return {
        d.name: "\n".join(anonymous(str(op)) for op in module.executables_of(d.name).values())
        for d in request.dispatches
    }


def anonymous(text: str) -> str:
    """`text` of an executable without the name of the function that it was made for."""
    return re.sub(r"[\w$]+_dispatch_(\d+)[\w$]*", r"dispatch_\1", text)


def numbers(pattern: str, text: str) -> list[int]:
    """Numbers that the first match of `pattern` has in its groups."""
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern} in {text[:2000]}"
    return [int(x) for x in found.groups()]


def ptx_of(built: Built) -> list[str]:
    """Each PTX module in the verify vmfb."""
    text = built.verify.decode("latin-1")
    return [text[m.start() : text.index("\0", m.start())] for m in re.finditer(r"\.version \d", text)]


@functools.cache
def limits_of(target: str):
    return parse_target(target).limits
