#!/usr/bin/env python3
"""A GPU: the Triton kernels of convolutions without IREE, in a CUDA graph, against cuDNN in a CUDA graph.

    python benchmarks/gpu_kernels.py --json=kernels.json

The machine needs Triton, torch and the GPU, but no compiler. The kernels are those that a vmfb holds: the driver
loads the same PTX. `gpu_operations.py` runs them with IREE, whose streams launch a kernel about 1 us later than
a CUDA graph does. Every kernel's result is compared with cuDNN's. The slices of a split reduction are added by
a kernel of this file.
"""

# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import triton
import triton.language as tl

from benchmarks._table import Row, at_least, report
from benchmarks.gpu_operations import dispatches_of, mean, operations_of, say
from dispatch_profiler.compiler._base import BuildError, Kernel
from dispatch_profiler.compiler.triton import compile_kernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import parse_target

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
#: Executions in a graph, and how often it is replayed for a median.
EXECUTIONS, REPLAYS = 20, 9
#: ||kernel - cuDNN|| / ||cuDNN||: both round the same sums, which they add in different orders.
LARGEST_ERROR = 1e-3
_MAX_DYNAMIC_SHARED = 8


@triton.jit  # type: ignore[untyped-decorator]
def add_slices(  # type: ignore[no-untyped-def]
    partial, result, SIZE: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """result = the sum of the slices, in a fixed order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for slice_ in tl.static_range(SLICES):
        total += tl.load(partial + slice_ * SIZE + at, mask=at < SIZE, other=0.0)
    tl.store(result + at, total.to(result.dtype.element_ty), mask=at < SIZE)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", default="bf16,f16", help="default: bf16,f16")
    parser.add_argument("--configurations", default="", metavar="NAME,...", help="default: all shipped ones")
    parser.add_argument("--workers", type=int, default=16, help="processes that compile (default: 16)")
    parser.add_argument("--records", type=Path, metavar="FILE.json", help="also write every time")
    parser.add_argument("--quick", action="store_true", help="one shape of each mode")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Operands:
    """cuDNN's call for an operation, and the operands of ours in the same memory."""

    lhs: torch.Tensor
    rhs: torch.Tensor
    cudnn: Callable[[], torch.Tensor]


def operands_of(operation: Operation) -> Operands:
    """Random operands, channels last."""
    convolution, type_ = operation.convolution, TYPES[operation.element_type.name]
    assert convolution is not None

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = (torch.randn(*shape, device="cuda") * scale).to(type_)
        return values.contiguous(memory_format=torch.channels_last)

    batch, channels, filters = convolution.batch, convolution.channels, convolution.filters
    images = drawn(batch, channels, *convolution.size)
    gradient = drawn(batch, filters, *convolution.output_size)
    taps = math.prod(convolution.filter_size)
    weights = drawn(filters, channels, *convolution.filter_size, scale=(channels * taps) ** -0.5)
    how = (convolution.stride, convolution.padding, convolution.dilation, False, (0, 0), 1)
    aten = torch.ops.aten
    if convolution.mode == "forward":
        return Operands(images, weights, lambda: aten.convolution(images, weights, None, *how))
    if convolution.mode == "input_backward":
        mask = [True, False, False]
        return Operands(
            gradient,
            weights,
            lambda: aten.convolution_backward(gradient, images, weights, None, *how, mask)[0],
        )
    mask = [False, True, False]
    return Operands(
        gradient, images, lambda: aten.convolution_backward(gradient, images, weights, None, *how, mask)[1]
    )


class Launcher:
    """A kernel that the driver has loaded, with its result."""

    def __init__(self, dispatch: Dispatch, kernel: Kernel, operands: Operands) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        launch = dispatch.configuration.launch(dispatch.operation)
        assert launch is not None
        self._launch, self._shared = launch, kernel.shared_bytes
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), kernel.data + b"\0"))
        name = launch.entry.encode()
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name))
        self._check(self._driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, kernel.shared_bytes))
        result = dispatch.operation.results[0]
        self.result = torch.full(result.shape, math.nan, dtype=operands.lhs.dtype, device="cuda")
        self._slices = dispatch.configuration.split_k
        self._written = self.result
        if self._slices > 1:
            self._written = torch.full(launch.shape, math.nan, device="cuda")
        spare = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in launch.scratch]
        self._tensors = (operands.lhs, operands.rhs, self._written, *spare)
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in self._tensors]
        self._pointers = pointers
        self._arguments = (ctypes.c_void_p * len(pointers))(*map(ctypes.addressof, pointers))

    def __call__(self) -> None:
        """Launch on torch's current stream."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = self._launch.workgroups, self._launch.workgroup_size
        self._check(
            self._driver.cuLaunchKernel(
                self._function, *grid, *block, self._shared, stream, self._arguments, None
            )
        )
        if self._slices > 1:
            size = self.result.numel()
            block_size = 1024 if size > 500_000 else 256
            add_slices[(triton.cdiv(size, block_size),)](
                self._written, self.result, size, self._slices, block_size
            )

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"the CUDA driver returned error {status} for {self._launch.entry}")


def microseconds(call: Callable[[], object]) -> float:
    """The median time of an execution of `call` in a CUDA graph, in microseconds."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(EXECUTIONS):
            call()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    found = []
    for _ in range(REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / EXECUTIONS)
    return statistics.median(found)


def compiled(dispatch: Dispatch) -> Kernel | str:
    """Its kernel for sm_90, or why it does not compile."""
    source = dispatch.configuration.kernel(dispatch.operation)
    try:
        return compile_kernel(source, 90)  # type: ignore[arg-type]
    except BuildError as error:
        return error.message


def measured(operation: Operation, kernels: dict[Dispatch, Kernel]) -> dict[str, float]:
    """Microseconds of cuDNN, which is timed before and after the kernels, and of each correct kernel."""
    operands = operands_of(operation)
    expected = operands.cudnn()
    before = microseconds(operands.cudnn)
    found: dict[str, float] = {}
    for dispatch, kernel in kernels.items():
        launcher = Launcher(dispatch, kernel, operands)
        launcher()
        got = launcher.result.permute(0, 3, 1, 2).float()
        error = ((got - expected.float()).norm() / expected.float().norm()).item()
        if not error < LARGEST_ERROR:
            say(f"  wrong: {dispatch.name} differs from cuDNN by {error:.2g}")
            continue
        found[dispatch.configuration.name] = microseconds(launcher)
    return {"cuDNN": statistics.median((before, microseconds(operands.cudnn))), **found}


def measure(options: argparse.Namespace) -> list[Row]:
    """Compile in parallel, then measure one operation after the other; prints the fastest kernels of each."""
    target, wanted = parse_target("cuda:h200"), set(filter(None, options.configurations.split(",")))
    operations = [
        each for types in options.types.split(",") for each in operations_of("conv2d", types, options.quick)
    ]
    dispatches = [
        dispatch
        for operation in operations
        for dispatch in dispatches_of(operation, target, explore=False)
        if not wanted or dispatch.configuration.name in wanted
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        kernels = dict(zip(dispatches, pool.map(compiled, dispatches), strict=True))
    torch.backends.cudnn.benchmark = True
    times, groups = {}, defaultdict(list)
    for operation in operations:
        own = {d: k for d, k in kernels.items() if d.operation == operation and isinstance(k, Kernel)}
        own = {d: k for d, k in own.items() if k.shared_bytes <= 232448}
        times[operation.name] = found = measured(operation, own)
        cudnn = found["cuDNN"]
        fastest = sorted((us, name) for name, us in found.items() if name != "cuDNN")
        ratio = cudnn / fastest[0][0] if fastest else math.nan
        best = ", ".join(f"{name.removeprefix('triton_')} {us:.1f}" for us, name in fastest[:4])
        say(f"{ratio:.2f} {operation.name}: cuDNN {cudnn:.1f} us; {best}")
        assert operation.convolution is not None
        groups[operation.convolution.mode, operation.element_type.name].append(ratio)
    if options.records:
        options.records.write_text(json.dumps(times, indent=1) + "\n")
    return [
        at_least(f"{mode}, {types}: {len(found)} shapes, geometric mean", mean(found), "of cuDNN", 1.0)
        for (mode, types), found in groups.items()
    ]


def main() -> int:
    """The exit status is 1 if a goal was missed."""
    options = options_of()
    return report(measure(options), options.json)


if __name__ == "__main__":
    sys.exit(main())
