"""Functions are cut out of a source as text, and a source that cannot be cut stays whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildRequest
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.source.functions import relevant_source, reproducer
from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import BatchMatmul, Conv2d, Epilogue, Matmul, Operation
from dispatch_profiler.targets import parse_target

OPERATIONS: list[Operation] = [
    Matmul(16, 32, 8, epilogue=Epilogue.parse("bias+relu")),
    BatchMatmul(2, 16, 32, 8),
    Conv2d(1, 6, 6, 8, 16, 3, 3, padding=(1, 1)),
]
CONFIGURATIONS = [Default(), Flow("data_tiling"), Flow("ukernels")]


@given(operation=st.sampled_from(OPERATIONS), wanted=st.sets(st.sampled_from([0, 1, 2])))
def test_what_is_cut_out_is_what_the_compiler_reads(operation: Operation, wanted: set[int]):
    """The compiler's own parser sees those functions, unchanged, and no other."""
    dispatches = [Dispatch(operation, c) for c in CONFIGURATIONS]
    source = render_module(operation, dispatches)
    names = [dispatches[i].name for i in sorted(wanted)]
    whole = functions(source)

    assert functions(relevant_source(source, names)) == {name: whole[name] for name in names}


def functions(source: str) -> dict[str, str]:
    module = IrModule.parse(source)  # what it hands out lives no longer than it does
    return {name: str(op) for name, op in module.symbols("func.func").items()}


def test_what_stands_beside_functions_stays():
    source = "// about\nfunc.func @a() {\n  return\n}\n\nfunc.func private @b() {\n  return\n}\n// end\n"

    assert relevant_source(source, ["a"]) == "// about\nfunc.func @a() {\n  return\n}\n// end\n"


def test_an_edit_of_another_function_does_not_show():
    dispatches = [Dispatch(OPERATIONS[0], c) for c in CONFIGURATIONS]
    source = render_module(OPERATIONS[0], dispatches)
    start = source.index(dispatches[1].name)
    edited = source[:start] + source[start:].replace("0.0", "1.0")
    assert edited != source

    assert relevant_source(edited, [dispatches[0].name]) == relevant_source(source, [dispatches[0].name])
    assert relevant_source(edited, [dispatches[1].name]) != relevant_source(source, [dispatches[1].name])


def test_a_source_of_another_form_stays_whole():
    source = "module {\n  func.func @a() {\n    return\n  }\n}\n"

    assert relevant_source(source, ["a"]) == source


def test_a_reproducer_shows_the_failure_by_its_own_command(tmp_path: Path):
    """Its second line, run as it stands, fails as the dispatch did."""
    operation = Matmul(128, 128, 64)
    # The initial zeros of this tile are a vector that the compiler refuses.
    too_wide = CpuTiles((64, 128), (8, 16, 1), (64, 128, 32))
    dispatches = (Dispatch(operation, Default()), Dispatch(operation, too_wide))
    request = BuildRequest(
        render_module(operation, dispatches), dispatches, parse_target("llvm-cpu").compile_flags, 2
    )
    name = dispatches[1].name
    text = reproducer(request, name, "large\nvectors")
    (tmp_path / f"{name}.mlir").write_text(text)

    reason, command, *_ = text.splitlines()
    assert reason == "// large vectors"
    tool = Path(sys.executable).parent / "iree-compile"
    done = subprocess.run(
        ["sh", "-c", command.replace("// iree-compile", str(tool))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "large vector sizes" in done.stderr
    assert dispatches[0].name not in text
