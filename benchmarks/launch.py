#!/usr/bin/env python3
"""Launches from Python: against torch's eager calls, the profiler's figures, and `iree-compile` on every line.

Both sides of a row are measured in one run, in turns where they take microseconds. Launches are timed as a program
sees them: from torch tensors to a torch tensor. The rows of a GPU need torch with CUDA, and are left out without it.

A launch on several threads wakes them up, and is woken up itself. On a virtual machine, a core that idles takes long to
wake up: rows without a goal tell how long, and repeat such launches while the cores are kept from idling.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._launch_processes import preload_rows, process_rows
from benchmarks._launch_timing import FILTERS, IMAGE, QUICK, Scale, awake_cores, in_turns, wake_up_row
from benchmarks._table import Row, at_most, below, exit_with, make_parser, report
from dispatch_profiler.boo.interface import LaunchKernel, LaunchSpec, TensorSpec
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime.device_uri import DeviceUri

#: About 1 ms on two cores.
LONG = Matmul(256, 768, 512)
LARGE_BYTES, SMALL_BYTES = 2**28, 2**12
MANY = 10_000
#: Returns its first four elements, each twice as large: the time does not depend on the size.
FIRST_ELEMENTS = """
func.func @first(%x: tensor<SIZExf32>, %y: tensor<4xf32> {iree.abi.output = 0 : index}) -> tensor<4xf32> {
  %first = tensor.extract_slice %x[0] [4] [1] : tensor<SIZExf32> to tensor<4xf32>
  %twice = arith.addf %first, %first : tensor<4xf32>
  return %twice : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Given:
    """See `KernelProvider`: one kernel, whatever the device."""

    found: LaunchKernel

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """See `KernelProvider.kernel`."""
        return self.found


class Driver(dict[str, str]):
    """Remembers one driver for every kernel."""

    def get(self, key: str, default: Any = None) -> Any:
        """The driver, for any key."""
        return self["driver"]


# -- a tiny kernel ---------------------------------------------------------------------------------


def tiny_rows(scale: Scale) -> Iterator[Row]:
    """Launches of a tiny convolution on both drivers of the CPU, and torch's call."""
    import torch

    from dispatch_profiler.boo import Launchable

    x, w = torch.randn(IMAGE), torch.randn(FILTERS)
    calls: dict[str, Callable[[], object]] = {"torch": lambda: torch.nn.functional.conv2d(x, w, padding=1)}
    for layout, filters in (("NHWC", "HWCN"), ("NCHW", "NCHW")):
        signature = tiny_signature(layout, filters)
        operands = signature.get_sample_args(seed=0)
        for driver in ("local-sync", "local-task"):
            launch = Launchable(
                signature.launch, provider_of(signature), driver_choices=Driver(driver=driver)
            )
            calls[f"{layout} {driver}"] = lambda launch=launch, operands=operands: launch(*operands)
    with torch.no_grad():
        us = in_turns(calls, scale.rounds)
        with awake_cores():
            awake = in_turns({"NHWC local-task": calls["NHWC local-task"]}, scale.rounds // 4)
    print("tiny convolution:", ", ".join(f"{name} {value:.2f} us" for name, value in us.items()), flush=True)
    yield at_most("launch of a tiny convolution, local-sync", us["NHWC local-sync"], "us", 10)
    yield at_most("the same against torch's call", us["NHWC local-sync"] / us["torch"], "times", 1.3)
    yield at_most("launch of a tiny convolution, local-task", us["NHWC local-task"], "us", 25)
    yield Row("the same while the cores do not idle", awake["NHWC local-task"], "us", "any", True)


def tiny_signature(layout: str, filters: str) -> Any:
    """The tiny convolution, with its image and its filters in these layouts."""
    from dispatch_profiler.boo.op_exports.conv import ConvSignature

    def shape(extents: Sequence[int], order: str) -> list[int]:
        by_letter = dict(zip("NCHW", extents, strict=True))
        return [by_letter[letter] for letter in order]

    return ConvSignature(
        input_shape=shape(IMAGE, layout),
        kernel_shape=shape(FILTERS, filters),
        input_layout=layout,
        kernel_layout=filters,
        output_layout=layout,
        padding=1,
        dtype="f32",
    )


def provider_of(signature: Any) -> Any:
    """The kernels of a signature, from the cache or the compiler."""
    from dispatch_profiler.boo.environment import launch_settings
    from dispatch_profiler.boo.kernels import OperationKernels

    return OperationKernels(signature.operation, signature.func_name, launch_settings())


# -- a kernel of 1 ms ------------------------------------------------------------------------------


def long_rows(scale: Scale) -> Iterator[Row]:
    """Launches of a kernel of about 1 ms, against what the profiler measures for the same vmfb's code, in turns.

    The profiler's calls repeat the kernel, so that they wake up a core once for many of them.
    """
    from benchmarks.measurement import compiled, figures, only
    from dispatch_profiler.boo import Launchable
    from dispatch_profiler.profiler.statistics.stopping import StopRule

    with tempfile.TemporaryDirectory() as folder:
        candidate = only(compiled(Path(folder), [LONG]), LONG)
        name = candidate.dispatch.name
        kernel = LaunchKernel(candidate.verify.load(), name, name)
        launch = Launchable(spec_of(LONG), Given(kernel))
        operands = [torch_ones(each.shape) for each in launch.spec.arguments]
        calls = {
            "launch": lambda: median_ms(lambda: launch(*operands), seconds=1.5),
            "IREE's call": lambda: median_ms(prepared_call(kernel, operands, launch), seconds=1.5),
            "profiler": lambda: figures([candidate], StopRule(seconds=1.5))[name].median,
        }
        taken: dict[str, list[float]] = {side: [] for side in (*calls, "awake")}
        for _ in range(scale.long_rounds):
            for side, call in calls.items():
                taken[side].append(call())
            with awake_cores():
                taken["awake"].append(calls["launch"]())
            shown = ", ".join(f"{side} {times[-1]:.4f} ms" for side, times in taken.items())
            print(f"{name} on {launch.driver}: {shown}", flush=True)

    def ratio(side: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(taken[side], taken[to], strict=True))

    yield at_most(
        "launch of a kernel of 1 ms against the profiler", ratio("launch", "profiler"), "times", 1.03
    )
    yield Row("the same while the cores do not idle", ratio("awake", "profiler"), "times", "any", True)
    yield at_most(
        "the same against IREE's call with prepared buffers", ratio("launch", "IREE's call"), "times", 1.03
    )


def prepared_call(kernel: LaunchKernel, operands: Sequence[Any], launch: Any) -> Callable[[], object]:
    """A call of the kernel without anything that a launch adds: no result is allocated, no argument checked."""
    from dispatch_profiler.runtime.device_uri import DeviceUri
    from dispatch_profiler.runtime.iree import Arguments, IreeDevice

    device = IreeDevice(DeviceUri.parse(launch.driver))
    operation = launch.spec.operation
    buffers = [
        device.put(each.numpy(), of.type) for each, of in zip(operands, operation.operands, strict=True)
    ]
    results = [device.allocate(each.shape, each.type) for each in operation.results]
    return device.load(kernel.vmfb).bind(kernel.function, Arguments(buffers, results)).invoke


def median_ms(call: Callable[[], object], seconds: float) -> float:
    """Milliseconds of one call: the median over `seconds`, after as many calls as take a tenth of them."""
    taken: list[float] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + 1.1 * seconds:
        call()
        if now > begin + 0.1 * seconds:
            taken.append((time.perf_counter() - now) * 1e3)
    return statistics.median(taken)


def spec_of(operation: Operation) -> LaunchSpec:
    """The launch that takes the operation's tensors as they are."""
    tensors = (operation.operands, operation.results)
    specs = [
        tuple(TensorSpec(t.name, t.shape, t.type, t.shape, i) for i, t in enumerate(each)) for each in tensors
    ]
    return LaunchSpec(operation, *specs)


def torch_ones(shape: Sequence[int]) -> Any:
    import torch

    return torch.ones(tuple(shape))


# -- large arguments -------------------------------------------------------------------------------


def large_rows(scale: Scale) -> Iterator[Row]:
    """The time of a launch must not depend on the size of its argument, nor may memory grow."""
    calls = {}
    for size in (SMALL_BYTES, LARGE_BYTES):
        launch, argument = first_elements(size // 4), torch_ones([size // 4])
        calls[f"{size} bytes"] = lambda launch=launch, argument=argument: launch(argument)
    us = in_turns(calls, scale.rounds // 4)
    print("launch with an argument of", ", ".join(f"{name}: {value:.2f} us" for name, value in us.items()))
    small, large = us.values()
    yield at_most("launch with an argument of 256 MiB against 4 KiB", large / small, "times", 1.1)
    launch_large = list(calls.values())[1]
    before = resident_bytes()
    for _ in range(MANY):
        launch_large()
    grown = (resident_bytes() - before) / 2**20
    yield below("growth of the process in 10,000 such launches", grown, "MiB", 1.0)


def first_elements(count: int) -> Any:
    """A launch that takes `count` elements and reads four."""
    from dispatch_profiler.boo import Launchable
    from dispatch_profiler.compiler import IreeCompiler
    from dispatch_profiler.compiler.backends.in_process import InProcess
    from dispatch_profiler.targets import parse_target

    flags, phases = IreeCompiler().resolve(parse_target("llvm-cpu").compile_flags), InProcess()
    module = phases.advance(
        phases.parse(FIRST_ELEMENTS.replace("SIZE", str(count)), flags), flags, stop="hal"
    )
    kernel = LaunchKernel(phases.vmfb(module, flags, "hal"), "first", f"first {count}")
    f32 = ELEMENT_TYPES["f32"]
    specs = [(TensorSpec(name, shape, f32, shape, 0),) for name, shape in (("x", (count,)), ("y", (4,)))]
    return Launchable(
        LaunchSpec(Matmul(1, 1, 1), *specs), Given(kernel), driver_choices=Driver(driver="local-sync")
    )


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- a GPU -----------------------------------------------------------------------------------------


def gpu_rows(scale: Scale) -> Iterator[Row]:
    """Launch and synchronize, against torch, eagerly and in a CUDA graph; no rows without a GPU."""
    import torch

    if not torch.cuda.is_available():
        print("torch has no CUDA device here: no row for a GPU", flush=True)
        return
    from dispatch_profiler.boo import get_launchable

    signature = tiny_signature("NCHW", "NCHW")
    x, w = signature.get_sample_args(device="cuda", seed=0)
    launch, synchronize = get_launchable(signature), torch.cuda.synchronize
    torch.testing.assert_close(
        launch(x, w), torch.nn.functional.conv2d(x, w, padding=1), atol=1e-3, rtol=1e-3
    )
    sides = {"launch": lambda: launch(x, w), "torch": lambda: torch.nn.functional.conv2d(x, w, padding=1)}
    with torch.no_grad():
        us = in_turns(
            {side: lambda call=call: (call(), synchronize()) for side, call in sides.items()}, scale.rounds
        )
        enqueued = {side: enqueue_us(call) for side, call in sides.items()}
        graphs = {side: captured(call) for side, call in sides.items()}
        replayed = in_turns(
            {side: lambda graph=graph: (graph.replay(), synchronize()) for side, graph in graphs.items()},
            scale.rounds,
        )
    print(f"on {torch.cuda.get_device_name()}, us:", us, "without waiting", enqueued, "graphs", replayed)
    yield at_most("launch and synchronize on a GPU against torch", us["launch"] / us["torch"], "times", 1.5)
    yield Row("the same without waiting", enqueued["launch"] / enqueued["torch"], "times", "any", True)
    yield Row("the same in CUDA graphs", replayed["launch"] / replayed["torch"], "times", "any", True)


def enqueue_us(call: Callable[[], object], calls: int = 100) -> float:
    """Microseconds until a call returns, if the GPU is busy with earlier work: the median of several turns."""
    import torch

    taken = []
    for _ in range(20):
        torch.cuda._sleep(20_000_000)  # about 10 ms
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls * 1e6)
        torch.cuda.synchronize()
    return statistics.median(taken)


def captured(call: Callable[[], object]) -> Any:
    """A CUDA graph of a call."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def main() -> int:
    """Measure, print and write the rows."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--gpu-only", action="store_true", help="only the rows of a GPU")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    if options.gpu_only:
        return report(list(gpu_rows(scale)), options.json)
    rows = [wake_up_row(scale), *long_rows(scale), *tiny_rows(scale), *large_rows(scale), *gpu_rows(scale)]
    rows += [*process_rows(scale), *preload_rows(scale)]
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
