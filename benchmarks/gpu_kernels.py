#!/usr/bin/env python3
"""A GPU: the Triton kernels of products and convolutions without IREE, in a CUDA graph, against torch in a CUDA graph.

    python benchmarks/gpu_kernels.py --json=kernels.json
    python benchmarks/gpu_kernels.py --kinds=product --explore --seconds=280

The machine needs Triton, torch and the GPU, but no compiler. The kernels are those that a vmfb holds, in the machine
code that the `ptxas` of Triton makes of the same PTX. `gpu_operations.py` runs them with IREE, in CUDA graphs too.
Every kernel's result is compared with cuDNN's, or with a product in f32, and with its own of the first execution. The
slices of a split reduction are added by a kernel of this file.

Each operation is measured in a process of its own, which is ended if a kernel does not finish.
"""

# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import triton
import triton.language as tl

from benchmarks._gpu_shapes import LLAMA, PRODUCTS, SINGLE, explored
from benchmarks._table import Row, at_least, exit_with, report
from benchmarks.gpu_operations import dispatches_of, mean, operations_of, say
from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.compiler.cuda.triton import compile_kernel
from dispatch_profiler.configurations import rejection_reason
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.targets import Target, parse_target

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
#: Executions in a graph, unless they take longer than so many microseconds, and how often it is replayed.
EXECUTIONS, LONGEST, REPLAYS = 20, 4000, 9
#: ||kernel - expected|| / ||expected||: both round the same sums, which they add in different orders.
LARGEST_ERROR = {"bf16": 5e-3, "f16": 1e-3, "f32": 5e-6}
#: Seconds without any result after which a kernel is taken for one that never ends.
PATIENCE = 10.0
#: Bytes of shared memory of a workgroup of an H100 or H200.
LARGEST_SHARED = 232448
_MAX_DYNAMIC_SHARED = 8
_PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


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
    parser.add_argument("--kinds", default="product,conv2d", help="default: product,conv2d")
    parser.add_argument("--types", default="bf16,f16,f32", help="default: bf16,f16,f32")
    parser.add_argument("--only", default="", metavar="TEXT", help="operations with this in their name")
    parser.add_argument("--explore", action="store_true", help="products: more tiles than the shipped ones")
    parser.add_argument("--seconds", type=float, default=3600.0, help="leave out what would take longer")
    parser.add_argument("--configurations", default="", metavar="NAME,...", help="default: all shipped ones")
    parser.add_argument("--workers", type=int, default=16, help="processes that compile (default: 16)")
    parser.add_argument("--records", type=Path, metavar="FILE.json", help="also write every time")
    parser.add_argument("--quick", action="store_true", help="one shape of each mode")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Code:
    """A kernel's machine code and its bytes of shared memory."""

    data: bytes
    shared: int


@dataclass(frozen=True)
class Operands:
    """torch's call for an operation, the operands of ours in the same memory, and the result of ours."""

    lhs: torch.Tensor
    rhs: torch.Tensor
    torch: Callable[[], torch.Tensor]
    expected: torch.Tensor


def operands_of(operation: Operation) -> Operands:
    """Random operands and what is expected of a kernel, in its layout."""
    if operation.convolution is not None:
        return _of_convolution(operation.convolution, TYPES[operation.element_type.name])
    product, type_ = operation.product, TYPES[operation.element_type.name]
    assert product is not None

    def drawn(rows: int, columns: int) -> torch.Tensor:
        shape = (product.batch, rows, columns) if product.is_batched else (rows, columns)
        return (torch.randn(shape, device="cuda") * product.k**-0.25).to(type_)

    is_stored_by_columns = product.rhs_layout == "n"
    lhs = drawn(product.m, product.k)
    rhs = drawn(product.n, product.k) if is_stored_by_columns else drawn(product.k, product.n)
    right = rhs.mT if is_stored_by_columns else rhs
    return Operands(lhs, rhs, lambda: lhs @ right, lhs.float() @ right.float())


def _of_convolution(convolution: ConvolutionGeometry, type_: torch.dtype) -> Operands:
    """Random operands, channels last."""

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
        lhs, rhs = images, weights

        def call() -> torch.Tensor:
            return aten.convolution(images, weights, None, *how)
    else:
        number = 0 if convolution.mode == "input_backward" else 1
        lhs, rhs = gradient, weights if number == 0 else images

        def call() -> torch.Tensor:
            mask = [number == 0, number == 1, False]
            return aten.convolution_backward(gradient, images, weights, None, *how, mask)[number]

    return Operands(lhs, rhs, call, call().permute(0, 2, 3, 1).float())


class Launcher:
    """A kernel that the driver has loaded, with its result."""

    def __init__(self, dispatch: Dispatch, code: Code, operands: Operands) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        launch = dispatch.configuration.launch(dispatch.operation)
        assert launch is not None
        self._launch, self._shared = launch, code.shared
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code.data))
        name = launch.entry.encode()
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name))
        self._check(self._driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, code.shared))
        result = dispatch.operation.results[0]
        self.result = torch.full(result.shape, math.nan, dtype=operands.lhs.dtype, device="cuda")
        self._written, self._slices = self.result, 1
        if launch.shape != result.shape:
            self._slices = dispatch.configuration.split_k
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


def microseconds(call: Callable[[], object], expected: float) -> float:
    """The median time of an execution of `call` in a CUDA graph, in microseconds; `expected` is a guess."""
    executions = max(2, min(EXECUTIONS, int(LONGEST / expected)))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(executions):
            call()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    found = []
    for _ in range(REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / executions)
    return statistics.median(found)


# -- in processes that compile ---------------------------------------------------------------------


def compiled(dispatch: Dispatch) -> Code | str:
    """Its machine code for sm_90, or why there is none."""
    source = dispatch.configuration.kernel(dispatch.operation)
    try:
        kernel = compile_kernel(source, 90)  # type: ignore[arg-type]
    except BuildError as error:
        return error.message
    if kernel.shared_bytes > LARGEST_SHARED:
        return f"{kernel.shared_bytes} B of shared memory"
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_bytes(kernel.data)
        made = subprocess.run(
            [_PTXAS, "--gpu-name", "sm_90a", ptx, "-o", cubin], capture_output=True, text=True, check=False
        )
        return made.stderr if made.returncode else Code(cubin.read_bytes(), kernel.shared_bytes)


# -- in a process for each operation ---------------------------------------------------------------


def measured(operation: Operation, codes: dict[Dispatch, Code], to: Connection) -> None:
    """Send (name, microseconds or what is wrong) of torch and of each kernel."""
    torch.backends.cudnn.benchmark = True
    operands = operands_of(operation)
    guess = operation.flops / 5e8 + 5
    operands.torch()
    to.send(("torch", microseconds(operands.torch, guess)))
    for dispatch, code in codes.items():
        to.send((dispatch.configuration.name, _measured(dispatch, code, operands, guess)))
    to.send(("torch again", microseconds(operands.torch, guess)))


def _measured(dispatch: Dispatch, code: Code, operands: Operands, guess: float) -> float | str:
    launcher = Launcher(dispatch, code, operands)
    launcher()
    first = launcher.result.clone()
    error = ((first.float() - operands.expected).norm() / operands.expected.norm()).item()
    if not error < LARGEST_ERROR[dispatch.operation.element_type.name]:
        return f"differs by {error:.2g}"
    taken = microseconds(launcher, guess)
    return taken if torch.equal(first, launcher.result) else "two executions gave different results"


# -- in the first process, which never uses the GPU itself -----------------------------------------


def results(operation: Operation, codes: dict[Dispatch, Code], deadline: float) -> dict[str, float | str]:
    """What `measured` sends. A kernel that does not finish is left out by the next process."""
    context = multiprocessing.get_context("fork")
    found: dict[str, float | str] = {}
    left = dict(codes)
    while time.monotonic() < deadline:
        here, there = context.Pipe()
        process = context.Process(target=measured, args=(operation, left, there))
        process.start()
        there.close()
        try:
            while here.poll(min(PATIENCE, max(0.0, deadline - time.monotonic()))):
                name, value = here.recv()
                found[name] = value
        except EOFError:
            pass
        process.kill()
        process.join()
        left = {d: code for d, code in left.items() if d.configuration.name not in found}
        if "torch again" in found or "torch" not in found or not left or time.monotonic() > deadline:
            break
        found[next(iter(left)).configuration.name] = "did not finish"
        left = dict(itertools.islice(left.items(), 1, None))
    return found


def wanted(options: argparse.Namespace, target: Target) -> Iterator[tuple[Operation, list[Dispatch]]]:
    """Each operation with the dispatches to measure."""
    names = set(filter(None, options.configurations.split(",")))
    kinds, types = options.kinds.split(","), options.types.split(",")
    found: list[Operation] = [*SINGLE, *PRODUCTS, *LLAMA] if "product" in kinds else []
    if "conv2d" in kinds:
        for type_ in (each for each in types if each != "f32"):
            found += operations_of("conv2d", type_, options.quick)
    for operation in found:
        if operation.element_type.name not in types or options.only not in operation.name:
            continue
        dispatches = list(dispatches_of(operation, target, explore=False))
        if options.explore and operation.product is not None:
            more = (Dispatch(operation, each) for each in explored(operation))
            dispatches += [x for x in more if not rejection_reason(x.configuration, operation, target.limits)]
        yield (
            operation,
            [d for d in dict.fromkeys(dispatches) if not names or d.configuration.name in names],
        )


def measure(options: argparse.Namespace) -> list[Row]:
    """Compile in parallel, and measure one operation after the other; prints the fastest kernels of each."""
    deadline = time.monotonic() + options.seconds
    times, groups = {}, defaultdict(list)
    with ProcessPoolExecutor(options.workers) as pool:
        futures: dict[Operation, dict[Dispatch, Future[Code | str]]] = {
            operation: {dispatch: pool.submit(compiled, dispatch) for dispatch in dispatches}
            for operation, dispatches in wanted(options, parse_target("cuda:h200"))
        }
        for operation, pending in futures.items():
            made = {dispatch: future.result() for dispatch, future in pending.items()}
            codes = {dispatch: code for dispatch, code in made.items() if isinstance(code, Code)}
            times[operation.name] = found = results(operation, codes, deadline)
            name = operation.convolution.mode if operation.convolution is not None else operation.kind
            groups[name, operation.element_type.name].append(line(operation, found))
            if options.records:
                options.records.write_text(json.dumps(times, indent=1) + "\n")
            if time.monotonic() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return [
        at_least(f"{name}, {types}: {len(found)} shapes, geometric mean", mean(found), "of torch", 1.0)
        for (name, types), found in groups.items()
    ]


def line(operation: Operation, found: dict[str, float | str]) -> float:
    """Print the fastest kernels of an operation, and what was wrong; returns their speed relative to torch."""
    known = {name: each for name, each in found.items() if isinstance(each, float)}
    torch_times = [known.pop(name) for name in ("torch", "torch again") if name in known]
    fastest = sorted((us, name) for name, us in known.items())
    ratio = statistics.mean(torch_times) / fastest[0][0] if fastest and torch_times else math.nan
    best = ", ".join(f"{name.removeprefix('triton_')} {us:.2f}" for us, name in fastest[:5])
    say(f"{ratio:.3f} {operation.name}: torch {statistics.mean(torch_times or [0]):.2f} us; {best}")
    for name, problem in found.items():
        if isinstance(problem, str):
            say(f"  wrong: {name} {problem}")
    return ratio


def main() -> int:
    """The exit status is 1 if a goal was missed."""
    options = options_of()
    return report(measure(options), options.json)


if __name__ == "__main__":
    exit_with(main)
