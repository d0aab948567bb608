"""Launch programs against independent truths: the code in the vmfb, `iree-compile`'s own text, and the tiles."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_helpers import BF16, F16, numbers
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import Built, IreeCompiler, launch_request
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import outlined
from dispatch_profiler.compiler.cuda import triton
from dispatch_profiler.compiler.cuda.launch_programs import (
    has_variables,
    parameters,
    program_text,
    read_executable,
)
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.configurations import Configuration, Default, Formed, TritonRows, TritonTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.dispatches.launch_program import Copy, Fill, LaunchProgram, Run, read_program
from dispatch_profiler.errors import UsageError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    Conv2d,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

TARGET = parse_target("cuda:sm_80")
#: Of each operation below: no sum of a GPU is in f64.
FLAGS = TARGET.flags_of(LayerNorm(24, 64))
CONV = Conv2d(2, 10, 12, 8, 16, 3, 3, padding=(1, 1))
OPERATIONS: dict[str, Operation] = {
    "product": Matmul(64, 96, 128, F16),
    "product_f32": Matmul(33, 17, 5),
    "conv": CONV,
    "conv_backward": Conv2d(2, 10, 12, 8, 16, 3, 3, types=BF16, mode="weight_backward"),
    "norm": LayerNorm(24, 64),
    "norm_input": LayerNormInputBackward(24, 64, "f16"),
    "norm_weight": LayerNormWeightBackward(24, 64),
}
CONFIGURED: list[tuple[Operation, Configuration]] = [
    *((operation, Default()) for operation in OPERATIONS.values()),
    *((CONV, Formed(form)) for form in ("im2col", "winograd")),
]
needs_triton = pytest.mark.skipif(not triton.triton_version(), reason="Triton is not installed")


@functools.cache
def built(operation: Operation, configuration: Configuration) -> Built:
    return IreeCompiler().build(launch_request(Dispatch(operation, configuration), TARGET))


def program_of(operation: Operation, configuration: Configuration) -> tuple[LaunchProgram, Built]:
    found = built(operation, configuration)
    return read_program(found.program, found.verify), found


def runs_of(program: LaunchProgram) -> list[Run]:
    return [each for each in program.commands if isinstance(each, Run)]


def check_code(program: LaunchProgram, vmfb: bytes) -> None:
    """Every kernel is an entry of its PTX, with the workgroup and the parameters that the program passes."""
    for run in runs_of(program):
        kernel = program.kernels[run.kernel]
        offset, length = program.images[kernel.image]
        ptx = vmfb[offset : offset + length].decode()
        assert ptx.rstrip().endswith("}")
        assert ".version" in ptx
        entry = ptx[ptx.index(f".entry {kernel.entry}") :]
        entry = entry[: entry.index("{")]
        threads = re.search(r"\.(?:max|req)ntid (\d+)(?:, (\d+))?(?:, (\d+))?", entry)
        assert threads is not None
        assert tuple(int(each or 1) for each in threads.groups()) == kernel.block
        assert entry.count(".param") == len(run.bindings) + len(run.constants)


def written(program: LaunchProgram) -> set[int]:
    """Buffers that a command may write to: the last binding of a kernel is among them."""
    found = set()
    for command in program.commands:
        if isinstance(command, Run):
            found |= {span.buffer for span in command.bindings}
        else:
            found.add(command.target.buffer)
    return found


@pytest.mark.some(2)
@pytest.mark.parametrize(("operation", "configuration"), CONFIGURED, ids=lambda each: type(each).__name__)
def test_programs_pass_every_tensor_to_kernels_of_the_vmfb(
    operation: Operation, configuration: Configuration
):
    program, found = program_of(operation, configuration)

    check_code(program, found.verify)
    sizes = [math.prod(each.shape) * each.type.bytes for each in (*operation.operands, *operation.results)]
    assert list(program.arguments) == sizes
    assert written(program) >= set(range(len(sizes)))
    assert len(set(range(len(sizes), len(sizes) + len(program.transients))) - written(program)) == 0


@pytest.mark.parametrize("name", ["product", "product_f32"])
def test_workgroups_cover_the_result(name: str):
    """As many as the result has tiles, which the compiler states."""
    operation = OPERATIONS[name]
    program, found = program_of(operation, Default())
    (outcome,) = found.outcomes.values()
    m, n = numbers(r"workgroup = \[(\d+), (\d+), [01]\]", outcome.applied)
    rows, columns = operation.results[0].shape

    (run,) = runs_of(program)
    assert math.prod(run.grid) == math.ceil(rows / m) * math.ceil(columns / n)


@pytest.mark.parametrize("name", ["product", "conv", "norm"])
def test_commands_are_those_that_iree_compile_prints(name: str, tmp_path: Path):
    """Numbers of workgroups, fills and copies with their lengths, and temporary memory, in its text."""
    operation = OPERATIONS[name]
    source = tmp_path / "source.mlir"
    source.write_text(render_module(operation, [Dispatch(operation, Default())]))
    tool = Path(sys.executable).with_name("iree-compile")
    command = [str(tool), *FLAGS, str(source), "--compile-to=hal"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    program, _ = program_of(operation, Default())

    grids = re.findall(r"workgroups\(\[%c(\d+), %c(\d+), %c(\d+)\]\)", text)
    assert [run.grid for run in runs_of(program)] == [tuple(map(int, each)) for each in grids]
    fills = re.findall(r"fill_buffer<.*?\[%c\d+, %c(\d+)\]", text)
    assert [str(c.target.length) for c in program.commands if isinstance(c, Fill)] == fills
    copies = re.findall(r"copy_buffer<.*? length\(%c(\d+)\)", text)
    assert [str(c.target.length) for c in program.commands if isinstance(c, Copy)] == copies
    assert list(map(str, program.transients)) == re.findall(r"queue\.alloca<.*\{%c(\d+)", text)
    assert fills or name != "conv"
    assert copies or name != "norm"


def test_the_bindings_of_a_product_are_its_tensors_in_order():
    (run,) = runs_of(program_of(OPERATIONS["product"], Default())[0])

    sizes = (64 * 128 * 2, 128 * 96 * 2, 64 * 96 * 2)
    assert [(each.buffer, each.offset, each.length) for each in run.bindings] == [
        (number, 0, size) for number, size in enumerate(sizes)
    ]


@pytest.mark.some(2)
@needs_triton
@pytest.mark.parametrize(
    ("operation", "configuration"),
    [
        (Matmul(256, 128, 192, F16), TritonTiles(tile=(64, 64, 32), warps=4)),
        (Matmul(256, 128, 192, F16), TritonTiles(tile=(64, 64, 32), warps=4, split_k=3)),
        (LayerNorm(128, 768, "bf16"), TritonRows(block=(2, 1024))),
    ],
)
def test_external_kernels_have_programs(operation: Operation, configuration: Configuration):
    """A Triton kernel takes two pointers to scratch memory more."""
    program, found = program_of(operation, configuration)

    check_code(program, found.verify)
    external = runs_of(program)[0]
    assert program.kernels[external.kernel].block == (128, 1, 1)
    assert len(external.bindings) == len(operation.operands) + len(operation.results) + 2


# -- functions without a program -------------------------------------------------------------------

OWN_RESULT = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
DYNAMIC = """func.func @f(%x: tensor<?xf32>, %y: tensor<?xf32> {iree.abi.output = 0 : index}) -> tensor<?xf32> {
  %z = arith.addf %x, %x : tensor<?xf32>
  return %z : tensor<?xf32>
}
"""
CONSTANT = """func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32> {iree.abi.output = 0 : index}) -> tensor<4xf32> {
  %c = arith.constant dense<[1.0, 2.0, 3.0, 5.0]> : tensor<4xf32>
  %d = util.optimization_barrier %c : tensor<4xf32>
  %z = arith.addf %x, %d : tensor<4xf32>
  return %z : tensor<4xf32>
}
"""
STATIC = OWN_RESULT.replace(
    "%x: tensor<4xf32>)", "%x: tensor<4xf32>, %o: tensor<4xf32> {iree.abi.output = 0 : index})"
)


def at_phase_hal(source: str) -> IrModule:
    phases = InProcess()
    module = outlined(phases, phases.parse(source, FLAGS), FLAGS)
    return phases.advance(module, FLAGS, "executable-sources", stop="hal")


def text_of(module: IrModule) -> str:
    """The text of the program of `f`."""
    return program_text(module, "f")(InProcess().vmfb(module, FLAGS, "hal"))


def test_a_function_whose_sizes_are_constant_has_a_program():
    """So that the tests below fail for their own reasons."""
    assert '"commands"' in text_of(at_phase_hal(STATIC))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (OWN_RESULT, "returns other buffers than its last arguments|neither an argument nor temporary"),
        (DYNAMIC, "it has the operation|not constant|branches"),
        (CONSTANT, "it has the operation|neither an argument nor temporary|not constant|unknown"),
    ],
)
def test_other_functions_have_a_reason(source: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        read_program(text_of(at_phase_hal(source)), b"")


@needs_triton
def test_kernels_that_keep_data_between_launches_have_no_program():
    """The counters of a Triton kernel: launches on two streams would both change them."""
    joined = TritonTiles(tile=(64, 64, 32), warps=4, split_k=2, joined=True)
    with pytest.raises(UsageError, match="keeps data from one launch to the next"):
        program_of(Matmul(256, 128, 192, F16), joined)


def test_variables_of_a_module_are_told_from_its_constants():
    assert has_variables(".version 8.0\n.global .align 4 .b32 arrivals[12];\n")
    assert has_variables(".visible .global .align 4 .u32 count;")
    assert not has_variables(".global .align 1 .b8 text[2] = {95, 0};\n\tld.global.b32 %r1, [%rd1];")


# -- executables -----------------------------------------------------------------------------------


def executable_of(module: IrModule) -> bytes:
    for executable in module.symbols("hal.executable").values():
        for op in operations_in(executable):
            if "data" in op.attributes:
                return bytes(memoryview(op.attributes["data"]))
    raise AssertionError("no executable")


@functools.cache
def sample_executable() -> bytes:
    operation = OPERATIONS["norm"]
    return executable_of(at_phase_hal(render_module(operation, [Dispatch(operation, Default())])))


def test_executables_have_the_kernels_of_their_ptx():
    found = read_executable(sample_executable())

    declared = {name for module in found.modules for name in parameters(module.decode())}
    assert {each.entry for each in found.exports} == declared
    for each in found.exports:
        ptx = found.modules[each.module].decode()
        assert parameters(ptx)[each.entry] == (64,) * each.bindings
        uses_shared = "%rd" in ptx and ".extern .shared" in ptx
        assert uses_shared or each.shared_bytes == 0


@given(st.data())
def test_damaged_executables_are_rejected_or_read(data: st.DataObject):
    """Whatever is in them, nothing else happens."""
    damaged = bytearray(sample_executable())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(damaged), 0, 3, 70, len(damaged) // 2, len(damaged) - 9]))
    try:
        found = read_executable(bytes(damaged[:cut]))
    except ValueError:
        return
    assert all(each.module < len(found.modules) for each in found.exports)


def test_an_executable_that_is_cut_is_rejected():
    for cut in (0, 4, 64, 72, 100, len(sample_executable()) // 2):
        with pytest.raises(ValueError, match=r"executable"):
            read_executable(sample_executable()[:cut])
