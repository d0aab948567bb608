"""Record the times of microkernels with packed weights, for the rules that choose among them.

    python scripts/record_microkernels.py -o FILE.jsonl.gz [--threads 2,16] [--seconds 600] [--seed 0] [--type f32]

Draws operations by a seed. For each of them: configurations that the rules rank first, that they rank low, and that
they do not rank, all on local-task with each of the given numbers of threads. Kernels are compiled in parallel, batch by
batch, and then measured in rounds, in turns, with weights, images and results that alternate among several places in
memory, as in a model. A line of FILE has one operation on one number of threads, the machine, and (configuration,
milliseconds) pairs, the fastest first. What is finished is in FILE, whenever the script ends.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np

from dispatch_profiler import parse_target
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels.build import KernelSearch, Toolchain, find_kernels
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.launching.loading import TASK, without_displacing
from dispatch_profiler.compiler import Cache
from dispatch_profiler.configurations import AmxMicrokernel, Configuration, Microkernel, WinogradMicrokernel
from dispatch_profiler.configurations.cpu.microkernel import (
    bf16_features,
    register_tiles,
    smallest_plan,
    vector_lanes,
)
from dispatch_profiler.cores import usable_cores, usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import CompilerError, DispatchProfilerError
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul, Operation, Tensor, element_type
from dispatch_profiler.runtime.iree import IreeBuffer, IreeDevice
from dispatch_profiler.targets import Target, amx_microkernel, ranked_microkernels, ranked_winograd
from dispatch_profiler.targets.cpu import host_cpu
from dispatch_profiler.targets.untuned.packed_microkernels import divided

#: Multiply-adds of an operation, and bytes of its operands and results.
_WORK, _BYTES = (4e5, 1e9), 6e7
_FAMILIES = (
    "pointwise",
    "square",
    "linear",
    "depthwise",
    "pointwise",
    "strided",
    "grouped",
    "square",
    "rows",
    "depthwise",
    "first",
)
_SIZES = (7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 112)
_ROWS = (1, 2, 4, 8, 16, 49, 64, 77, 128, 197, 256, 384, 512, 1024)
#: Operations of a batch for each core that compiles, and parts of their configurations: the first ones of the rules, those
#: that they rank lower, and those that they do not rank.
_BATCH = 0.5
_FIRST, _LOW, _OTHER = 0.35, 0.3, 0.35
#: Multiply-adds in the text of a kernel that the rules do not rank, at most, and tries to draw a configuration.
_LONGEST, _TRIES = 2000, 40
#: Calls of each kernel before the rounds, in turns, of which the fastest counts: other programs may delay any call.
_FIRST_CALLS = 5
#: Seconds of a sample, rounds after the first one, and the multiple of the shortest time that ends measuring.
_SAMPLE, _ROUNDS, _HOPELESS = 2.5e-3, 9, 1.6
#: Places in memory of the operands and results of an operation: how many, and their bytes together.
_PLACES, _MEMORY = 8, 6.4e7
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def main() -> int:
    """Record until the time is over."""
    options = _arguments()
    end = time.monotonic() + options.seconds
    threads = options.threads or [usable_threads()]
    target, machine = parse_target("llvm-cpu"), _machine()
    toolchain = Toolchain.of(target, "")
    drawn = islice(drawn_operations(options.seed, options.type), options.skip, None)
    longest, size = 0.0, max(2, round(_BATCH * len(usable_cores())))
    done = 0
    with gzip.open(options.output, "wt", encoding="utf-8") as file:
        while time.monotonic() + longest < end:
            start = time.monotonic()
            batch = list(islice(drawn, size))
            rng = np.random.default_rng([options.seed, done])
            wanted = {
                each: chosen_configurations(each, target, threads, options.configurations, rng)
                for each in batch
            }
            compiled = _compiled(wanted, toolchain)
            for operation, kernels in compiled.items():
                for number in threads if len(kernels) > 1 else ():
                    times = _measured(operation, kernels, number)
                    pairs = sorted(((ms, each) for each, ms in times.items()), key=lambda pair: pair[0])
                    line = {
                        "operation": operation.to_dict(),
                        "name": operation.name,
                        "threads": number,
                        **machine,
                        "times": [[each.to_dict(), round(ms, 5)] for ms, each in pairs],
                    }
                    file.write(json.dumps(line) + "\n")
                done += 1
            file.flush()
            longest = max(longest, time.monotonic() - start)
            print(f"{done} operations, {end - time.monotonic():.0f} s left", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--threads", type=_numbers, help="numbers, with commas (default: those at hand)")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="operations of the seed that are left out")
    parser.add_argument("--configurations", type=int, default=28, help="of each operation")
    parser.add_argument("--type", default="f32", choices=("f32", "bf16"))
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(each.isdecimal() and int(each) > 0 for each in parts):
        raise argparse.ArgumentTypeError(f"expected numbers from 1 on, such as 2,16, but got {text}")
    return [int(each) for each in parts]


def _machine() -> dict[str, object]:
    """The CPU's model, instructions, and the bytes of its caches."""
    cpu = host_cpu()
    caches = {}
    for index in sorted(_CACHES.glob("index*")):
        level, kind, size = ((index / each).read_text().strip() for each in ("level", "type", "size"))
        if kind != "Instruction":
            caches[level] = int(size.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
    return {"cpu": cpu.model, "level": cpu.level, "vector_bytes": cpu.vector_bytes, "caches": caches}


# -- operations ------------------------------------------------------------------------------------


def drawn_operations(seed: int, type_: str) -> Iterator[Operation]:
    """Realistic operations of each family in turn, without repetition."""
    rng, seen = np.random.default_rng(seed), set[Operation]()
    for family in cycle(_FAMILIES):
        for _ in count():
            operation = _drawn(family, rng, ElementTypes(type_, type_, type_))
            tensors = (*operation.operands, *operation.results)
            bytes_ = sum(math.prod(each.shape) * each.type.bytes for each in tensors)
            if operation not in seen and _WORK[0] < operation.flops / 2 < _WORK[1] and bytes_ < _BYTES:
                seen.add(operation)
                yield operation
                break


def _drawn(family: str, rng: np.random.Generator, types: ElementTypes) -> Operation:
    def channels(low: int, high: int) -> int:
        """A multiple of 8, uniform in its logarithm."""
        return max(1, round(2 ** rng.uniform(math.log2(low / 8), math.log2(high / 8)))) * 8

    if family in ("linear", "rows"):
        rows = int(rng.choice([rows for rows in _ROWS if (rows > 16) == (family == "linear")]))
        n, k = (channels(64, 4096) for _ in range(2))
        return Matmul(rows, n, k, types, rhs_layout="n")
    images, size, stride = int(rng.choice([1, 1, 2, 4, 8])), int(rng.choice(_SIZES)), 1
    c, k, taps, groups = channels(16, 1024), channels(16, 1024), 1, 1
    if family == "square":
        c, k, taps = channels(16, 512), channels(16, 512), 3
    elif family == "strided":
        stride, taps = 2, int(rng.choice([1, 3, 3]))
        size = max(size, 14)
    elif family == "depthwise":
        taps, stride = int(rng.choice([3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
        groups = k = c
    elif family == "grouped":
        groups, wide, taps = int(rng.choice([2, 4, 8, 16, 32])), int(rng.choice([4, 8, 16, 24, 48])), 3
        c = k = groups * wide
    elif family == "first":
        c, size, k = 3, int(rng.choice([96, 128, 160, 192, 224])), channels(16, 96)
        taps, stride = ((3, 2), (7, 2), (4, 4), (3, 1))[int(rng.integers(4))]
    padding = taps // 2 if taps % 2 else 0
    return Conv2d(
        images, size, size, c, k, taps, taps, stride=(stride, stride), padding=(padding, padding),
        groups=groups, layout="nhwc_fhwc_nhwc", types=types,
    )  # fmt: skip


# -- configurations --------------------------------------------------------------------------------


def chosen_configurations(
    operation: Operation, target: Target, threads: Sequence[int], most: int, rng: np.random.Generator
) -> list[Configuration]:
    """About `most` distinct configurations, of each number of threads as many."""
    found = dict[Configuration, None]()
    for number in threads:
        share = most / len(threads)
        direct = ranked_microkernels(operation, target, number)
        winograd = [each for _, each in ranked_winograd(operation, target, number)]
        part = 0.5 if winograd else 1.0
        for ranked in (direct, winograd):
            first = round(share * part * _FIRST)
            found |= dict.fromkeys(ranked[:first])
            low = ranked[first:]
            picked = rng.permutation(len(low))[: round(share * part * _LOW)]
            found |= dict.fromkeys(low[at] for at in picked)
        others = _others(operation, target, number, rng)
        found |= dict.fromkeys(islice(others, round(share * _OTHER)))
    amx = amx_microkernel(operation, target, packs_weight=True)
    if amx is not None:
        space = AmxMicrokernel.packed_space(operation, target.limits)
        assert space is not None
        drawn = (space.to_configuration(space.draw(rng)) for _ in range(_TRIES))
        valid = (each for each in drawn if each.invalid_reason(operation, target.limits) is None)
        found |= dict.fromkeys((amx, *islice(valid, most // 2)))
    return list(found)


def _others(
    operation: Operation, target: Target, threads: int, rng: np.random.Generator
) -> Iterator[Configuration]:
    """Valid microkernels that keep the threads busy, with any register tile; a third of them by Winograd, if valid."""
    limits = target.limits
    if not ranked_microkernels(operation, target, threads):
        return
    features = bf16_features(operation, limits)
    whole = smallest_plan(operation, packed=True, lanes=vector_lanes(limits), pairs=features["pairs"])
    tiles = register_tiles(whole)
    spaces = list(WinogradMicrokernel.packed_spaces(operation, limits))
    for turn in range(10 * _TRIES):
        drawn: Configuration | None = None
        if spaces and turn % 3 == 0:
            space = spaces[int(rng.integers(len(spaces)))]
            drawn = space.to_configuration(space.draw(rng))
        else:
            ways = list(divided(whole, tiles[int(rng.integers(len(tiles)))], threads, features["rounds"]))
            drawn = ways[int(rng.integers(len(ways)))] if ways else None
        if drawn is None or drawn.invalid_reason(operation, limits) is not None:
            continue
        if not isinstance(drawn, Microkernel) or drawn.plan(operation).text_length <= _LONGEST:
            yield drawn


# -- kernels ---------------------------------------------------------------------------------------


def _compiled(
    wanted: dict[Operation, list[Configuration]], toolchain: Toolchain
) -> dict[Operation, dict[Configuration, LaunchKernel]]:
    """The kernels of all operations, compiled on all cores; without those that do not compile."""
    searches = {}
    for operation, configurations in wanted.items():
        for each in configurations:
            variants = [Variant(Dispatch(operation, each))]
            search = KernelSearch(operation, operation.name, toolchain, packs_weight=True, variants=variants)
            searches[search] = operation, each
    found: dict[Operation, dict[Configuration, LaunchKernel]] = {each: {} for each in wanted}
    no_cache: Cache | None = None
    for search, kernel in find_kernels(list(searches), no_cache, len(usable_cores())):
        operation, configuration = searches[search]
        if isinstance(kernel, CompilerError):
            print(kernel.message, file=sys.stderr)
        else:
            found[operation][configuration] = kernel
    return found


class _Memory:
    """Tensors of random numbers on a device, each in several places; equal tensors are shared by kernels."""

    def __init__(self, device: IreeDevice, places: int) -> None:
        self._device, self._places, self._known = device, places, dict[object, list[IreeBuffer]]()

    def of(self, position: object, tensor: Tensor) -> list[IreeBuffer]:
        key = position, tensor.shape, tensor.type
        if key not in self._known:
            size = math.prod(tensor.shape) * tensor.type.bytes // 2
            # As bf16, and as the halves of f32, these bits are numbers between 1 and 2.
            bits = (0x3F80 + np.arange(size, dtype=np.uint16) % 64).view(tensor.type.dtype)
            array = np.asarray(bits).reshape(tensor.shape)
            self._known[key] = [self._device.put(array, tensor.type) for _ in range(self._places)]
        return self._known[key]


def _bound(
    kernel: LaunchKernel, operation: Operation, device: IreeDevice, memory: _Memory
) -> Callable[[], None]:
    """A call that runs the kernel once in each place, and waits."""
    first, weight, *others = operation.operands
    packed = (weight,) if kernel.packing is None else kernel.packing.tensors
    tensors = [("operand", first), *(("packed", each) for each in packed)]
    tensors += [(f"operand{at}", each) for at, each in enumerate(others)]
    tensors += [(f"result{at}", each) for at, each in enumerate(operation.results)]
    places = [memory.of(at, each) for at, each in tensors]
    appending = device.load(kernel.vmfb).appending(kernel.function)
    assert appending is not None
    scratch = device.allocate((max(1, appending.scratch),), element_type("i8"))
    commands = appending.begin()
    for views in zip(*places, strict=True):
        appending.append([each.view for each in views], scratch.view, commands)
    finished = without_displacing(appending.finish(commands))
    kept = (places, scratch)
    return lambda: finished() if kept else None


def _measured(
    operation: Operation, kernels: dict[Configuration, LaunchKernel], threads: int
) -> dict[Configuration, float]:
    """Milliseconds of each kernel: the lower quartile over rounds, in turns, or the first one if it is far slower."""
    tensors = (*operation.operands, *operation.results)
    bytes_ = sum(math.prod(each.shape) * each.type.bytes for each in tensors)
    places = max(2, min(_PLACES, int(_MEMORY / bytes_)))
    device = IreeDevice(TASK, workers=threads)
    memory = _Memory(device, places)
    calls = {}
    for each, kernel in kernels.items():
        try:
            call = _bound(kernel, operation, device, memory)
            call()
            calls[each] = call
        except DispatchProfilerError as error:
            print(f"{operation.name}: {each.name}: {error}", file=sys.stderr)
    brief = [{each: _seconds([call]) for each, call in calls.items()} for _ in range(_FIRST_CALLS)]
    samples = {each: [min(times[each] for times in brief)] for each in calls}
    for _ in range(_ROUNDS):
        best = min(map(statistics.median, samples.values()))
        for each, call in calls.items():
            if statistics.median(samples[each]) <= _HOPELESS * best:
                samples[each].append(_seconds([call] * max(1, round(_SAMPLE / best))))
    return {each: _low(taken) / places * 1e3 for each, taken in samples.items()}


def _low(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def _seconds(calls: Iterable[Callable[[], None]]) -> float:
    """The mean of a few calls in a row."""
    start, number = time.perf_counter(), 0
    for number, call in enumerate(calls, 1):  # noqa: B007
        call()
    return (time.perf_counter() - start) / number


if __name__ == "__main__":
    sys.exit(main())
