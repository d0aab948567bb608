"""Modules at phase `hal`: a product, a convolution with a temporary buffer, a counter, and one that branches."""

from __future__ import annotations

from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import outlined
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.targets import parse_target

FLAGS = parse_target("llvm-cpu").compile_flags
PRODUCT = Matmul(8, 16, 4)
#: A temporary buffer, which is filled, copied to and read.
PADDED = Conv2d(1, 6, 6, 4, 8, 3, 3, padding=(1, 1))
#: Adds 1 to its result in place.
COUNTER = """#same = affine_map<(a) -> (a)>
func.func @count(%x: tensor<4xf32> {iree.abi.output = 0 : index}) -> tensor<4xf32> {
  %one = arith.constant 1.0 : f32
  %r = linalg.generic {indexing_maps = [#same], iterator_types = ["parallel"]} outs(%x : tensor<4xf32>) {
  ^bb0(%a: f32):
    %b = arith.addf %a, %one : f32
    linalg.yield %b : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""
#: The host reads a tensor to decide what to do next.
BRANCHING = """func.func @branch(%x: tensor<4xf32>) -> tensor<4xf32> {
  %at = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %y = arith.addf %x, %x : tensor<4xf32>
  %first = tensor.extract %y[%at] : tensor<4xf32>
  %is_positive = arith.cmpf ogt, %first, %zero : f32
  %r = scf.if %is_positive -> tensor<4xf32> {
    %z = math.sqrt %y : tensor<4xf32>
    scf.yield %z : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}
"""


def source_of(operation: Operation) -> str:
    return render_module(operation, [Dispatch(operation, Default())])


def at_phase_hal(source: str) -> IrModule:
    phases = InProcess()
    return phases.advance(
        outlined(phases, phases.parse(source, FLAGS), FLAGS), FLAGS, "executable-sources", stop="hal"
    )
