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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_least, at_most, below, make_parser, report
from dispatch_profiler.boo.interface import LaunchKernel, LaunchSpec, TensorSpec
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime.device_uri import DeviceUri

COMMANDS = Path(__file__).parent / "workloads" / "miopen_commands.txt"
#: A convolution whose kernel takes 1 us: N, C, H, W of the image, and filters.
IMAGE, FILTERS = (1, 4, 8, 8), (4, 4, 3, 3)
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
class Scale:
    """How much is measured."""

    rounds: int = 400
    long_rounds: int = 7
    processes: int = 11
    lines: int | None = None
    preloads: int = 3


QUICK = Scale(rounds=100, long_rounds=3, processes=5, lines=20, preloads=1)


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


# -- cores that idle -------------------------------------------------------------------------------

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(100_000): pass
"""
ECHO = "import os, sys\nwhile os.read(0, 1): os.write(1, b'.')"


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keeps every core busy with a process that yields to any other."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core), str(os.getpid())])
        for core in sorted(os.sched_getaffinity(0))
    ]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def wake_up_row(scale: Scale) -> Row:
    """How long it takes to wake up another process, which waits on an idle core."""
    cores = os.sched_getaffinity(0)
    with subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        there, back = other.stdin.fileno(), other.stdout.fileno()
        os.sched_setaffinity(other.pid, {max(cores)})
        os.sched_setaffinity(0, {min(cores)})  # otherwise both share a core, which does not idle

        def round_trip() -> None:
            os.write(there, b".")
            os.read(back, 1)

        us = in_turns({"round trip": round_trip}, scale.rounds // 4)["round trip"] / 2
        os.sched_setaffinity(0, cores)
    return Row("to wake up a process on another core", us, "us", "any", True)


# -- a tiny kernel ---------------------------------------------------------------------------------


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, count: int = 100) -> dict[str, float]:
    """Microseconds of each call: the median over rounds of `count` calls in a row.

    Threads of torch spin after a call, which makes what follows slower, so that each round begins after a pause.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(2e-3)
            for _ in range(count // 10):
                call()
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


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
    from dispatch_profiler.compiler.in_process import InProcess
    from dispatch_profiler.targets import parse_target

    flags, phases = parse_target("llvm-cpu").compile_flags, InProcess()
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


# -- new processes ---------------------------------------------------------------------------------

#: As users have it: Python keeps compiled modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FIRST_LAUNCH = """
import sys, time
import numpy, torch, iree.runtime
from dispatch_profiler.boo import get_launchable
from dispatch_profiler.boo.conv_exports import ConvSignature
x, w = torch.ones({image}), torch.ones({filters})
start = time.perf_counter()
signature = ConvSignature(input_shape={image}, kernel_shape={filters}, padding=1, dtype="f32")
result = get_launchable(signature)(x, w)
print(time.perf_counter() - start)
assert "iree.compiler" not in sys.modules or not {is_warm}
torch.testing.assert_close(result, torch.nn.functional.conv2d(x, w, padding=1))
"""
IMPORT = """
import sys, time
start = time.perf_counter()
import dispatch_profiler.boo
print(time.perf_counter() - start)
assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "iree"}
"""


def seconds_of(program: str, **environment: str) -> float:
    """What a program that runs in a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parent.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout)


def process_rows(scale: Scale) -> Iterator[Row]:
    """The first launch in a new process, and the import."""
    with tempfile.TemporaryDirectory() as folder:
        program = FIRST_LAUNCH.format(image=IMAGE, filters=FILTERS, is_warm=False)
        cold = seconds_of(program, BOO_CACHE_DIR=folder)
        program = FIRST_LAUNCH.format(image=IMAGE, filters=FILTERS, is_warm=True)
        warm = [seconds_of(program, BOO_CACHE_DIR=folder) for _ in range(scale.processes)]
    print(f"first launch with a cold cache: {cold:.2f} s", flush=True)
    yield below("first launch of a process, warm cache, after imports", statistics.median(warm), "s", 0.1)
    imports = [seconds_of(IMPORT) for _ in range(scale.processes)]
    yield below("import dispatch_profiler.boo", statistics.median(imports), "s", 0.15)


# -- preloading ------------------------------------------------------------------------------------


def preload_rows(scale: Scale) -> Iterator[Row]:
    """Filling a cold cache, against one `iree-compile` per line: one after another, and one on each core.

    `iree-compile` gets the plain form of each operation, the launch cache the fastest one, which has several kernels
    for half of the lines.
    """
    from dispatch_profiler.boo import CachePopulator
    from dispatch_profiler.targets import parse_target

    lines = [line for line in COMMANDS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    lines, cores = lines[: scale.lines], len(os.sched_getaffinity(0))
    tool, flags = Path(sys.executable).parent / "iree-compile", parse_target("llvm-cpu").compile_flags
    preload = [sys.executable, "-m", "dispatch_profiler.boo.driver.preload", "-d", "local-task", f"-j{cores}"]
    ours, loop, parallel = [], [], []
    for _ in range(scale.preloads):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "commands.txt").write_text("\n".join(lines) + "\n")
            files = CachePopulator(commands=lines).write_mlir(folder)
            commands = [[tool, *flags, file, "-o", file.with_suffix(".vmfb")] for file in files]
            ours.append(timed([[*preload, folder / "commands.txt", "-o", folder / "cache"]], 1))
            loop.append(timed(commands, 1))
            parallel.append(timed(commands, cores))
        took = (
            f"preload {ours[-1]:.1f} s, iree-compile {loop[-1]:.1f} s, {cores} at a time {parallel[-1]:.1f} s"
        )
        print(f"{len(lines)} lines: {took}", flush=True)
    took = statistics.median(ours)
    yield at_least(
        "cold preload against one iree-compile per line", statistics.median(loop) / took, "times as fast", 1.4
    )
    yield Row(
        f"the same against {cores} at a time",
        statistics.median(parallel) / took,
        "times as fast",
        "any",
        True,
    )


def timed(commands: Sequence[Sequence[object]], workers: int) -> float:
    """Seconds in which all commands end, `workers` at a time."""

    def run(command: Sequence[object]) -> None:
        words = [str(each) for each in command]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{command[0]} ended with status {done.returncode}: {done.stderr[:2000]}")

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, commands))
    return time.perf_counter() - start


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
    sys.exit(main())
