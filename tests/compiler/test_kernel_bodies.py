"""The front end sees kernels of the source without their bodies, and every kernel has its own again afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import outlined
from dispatch_profiler.compiler.backends.phases import Phases
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.compiler.passes.kernel_bodies import put_back, take_bodies
from dispatch_profiler.files.regular import find_tools

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
LAYOUT = "#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>"


def kernel(name: str, factor: float) -> str:
    """A kernel that multiplies four numbers by a constant of its own memory, and the function that launches it."""
    return f"""hal.executable.source private @{name}_kernel {{
  hal.executable.export public @{name}_kernel ordinal(0) layout({LAYOUT}) count(%device: !hal.device) -> (index, index, index) {{
    %one = arith.constant 1 : index
    hal.return %one, %one, %one : index, index, index
  }}
  builtin.module {{
    memref.global "private" constant @{name}_kernel_factors : memref<4xf32> = dense<[{factor}, 2.0, 3.0, 4.0]>
    func.func @{name}_kernel() attributes {{translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>>}} {{
      %c0 = arith.constant 0 : index
      %x = hal.interface.binding.subspan layout({LAYOUT}) binding(0) alignment(64) offset(%c0) : memref<4xf32>
      %y = hal.interface.binding.subspan layout({LAYOUT}) binding(1) alignment(64) offset(%c0) : memref<4xf32>
      %factors = memref.get_global @{name}_kernel_factors : memref<4xf32>
      %a = vector.load %x[%c0] : memref<4xf32>, vector<4xf32>
      %b = vector.load %factors[%c0] : memref<4xf32>, vector<4xf32>
      %ab = arith.mulf %a, %b : vector<4xf32>
      vector.store %ab, %y[%c0] : memref<4xf32>, vector<4xf32>
      return
    }}
  }}
}}
func.func @{name}(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %y = flow.dispatch @{name}_kernel::@{name}_kernel(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}}
"""


#: Kernels that differ in their bodies only, and one that equals another but for its name.
SOURCE = kernel("halves", 0.5) + kernel("thirds", 0.25) + kernel("again", 0.5)


def codes(module: IrModule, function: str) -> str:
    """The text of the kernels that a function launches."""
    return "\n".join(map(str, module.executables_of(function).values()))


@pytest.mark.parametrize("is_wheel", [True, False])
def test_every_kernel_has_its_own_body_behind_the_front_end(is_wheel: bool):
    phases: Phases = (
        InProcess() if is_wheel else Tools(*find_tools(Path(sys.executable).parent, ["iree-compile"]))
    )

    module = outlined(phases, phases.parse(SOURCE, FLAGS), FLAGS)

    for name, factor in (("halves", 0.5), ("thirds", 0.25), ("again", 0.5)):
        code = codes(module, name)
        assert "arith.mulf" in code and f"[{factor:e}"[:5] in code
    assert "dispatch_profiler.body" not in module.text()
    assert phases.vmfb(module, FLAGS, "executable-sources")


def test_the_front_end_sees_no_instruction_of_a_kernel():
    source = InProcess().parse(SOURCE, FLAGS)

    bodies = take_bodies(source)

    assert len(bodies) == 2  # one is that of another kernel
    assert {op.name for op in operations_in(source.operation)}.isdisjoint({"arith.mulf", "memref.global"})


def test_a_module_without_kernels_stays_as_it_is():
    source = InProcess().parse(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", FLAGS
    )
    before = source.text()

    put_back(source, take_bodies(source))

    assert source.text() == before
