"""The code of the two worker processes: one owns the device and runs dispatches, one checks results.

They are separate because numpy's BLAS keeps its threads spinning after a product, which made a kernel
timed beside them look up to twice as slow.

Modules and inputs of the last few calls are cached: all configurations of an operation share them.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from dispatch_profiler.errors import DispatchProfilerError, OperationError
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.operations import Distribution, Operation, Reference
from dispatch_profiler.profiler.evaluation.candidate import LIBRARY, VmfbRef, VmfbRefs
from dispatch_profiler.profiler.measurement.cpu_idle import prevent_cpu_idle, yield_to_workers
from dispatch_profiler.profiler.measurement.gpu_monitor import GpuMonitor, open_monitor, throttle_warning
from dispatch_profiler.profiler.measurement.kernels import (
    Kernels,
    Library,
    LoadedKernels,
    NotSupported,
    Operands,
    Places,
    Rotation,
    Stage,
    cold_places,
    open_kernels,
    warm_places,
)
from dispatch_profiler.profiler.measurement.measure import (
    OVERHEAD_SECONDS,
    CallOverhead,
    MeasureOptions,
    Mode,
    Timer,
    calls_that_last,
    measure_overhead,
    prefers_single,
    quickest,
    warm_overhead,
)
from dispatch_profiler.profiler.measurement.paired_sampling import (
    PairedSamples,
    PairLimit,
    Timed,
    take_paired_samples,
)
from dispatch_profiler.profiler.measurement.run_delay import run_delay
from dispatch_profiler.profiler.measurement.sample_batches import BatchPlan, SampleBatch, take
from dispatch_profiler.profiler.providers.library_calls import open_contraction, open_library
from dispatch_profiler.profiler.statistics.comparison import SequentialTestOptions, Side
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import (
    Comparison,
    Expected,
    References,
    Result,
    compare,
    result_of,
)
from dispatch_profiler.runtime import DeviceUri, RunError
from dispatch_profiler.runtime.cuda_driver import find_gpu

#: Lets BLAS threads sleep as soon as a product is done.
CHECKER_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4", "OMP_WAIT_POLICY": "passive"}

#: Two operations may exceed `HELD_BYTES`, on a GPU `_HELD_ON_GPU`.
HELD_BYTES, _HELD_ON_GPU = 2**29, 2**31
#: Bytes of references in memory: at least, or this part of the available memory. A search evaluates several operations in
#: turn, and a reference of a batch of images is 16 bytes for each of 50 million elements.
_KEPT_REFERENCES, _KEPT_PART = 2**28, 16
#: Bytes of the vmfbs that a process holds.
VMFB_BYTES = 256 * 2**20
_SENTINEL_SECONDS = 1e-3
#: An execution of the sentinel takes at most this part of a sample batch. With a kernel of 80 ms, watching the machine took
#: longer than measuring.
_SENTINEL_PART = 1.0 / 8.0
#: Most copies of a vmfb: two copies were seen to differ by 1 %, because their code lay at different addresses.
_COPIES, _COPIES_SECONDS = 8, 0.01
#: `estimate` takes the quickest of this many executions if they take less than this many seconds.
_READINGS, _SHORT_SECONDS = 3, 0.05
#: Seconds. A GPU call this long needs no warm-up but the execution that brings operands into the caches; a reading of
#: the GPU's state, which takes milliseconds, counts as current for this long.
_LONG_CALL_OF_GPU, _FRESH_SECONDS = 2e-3, 0.05


@dataclass
class WorkerState:
    """What a worker process keeps between calls. A new one is as the process was before its start."""

    #: What `start` or `start_loading` opened.
    device: Kernels | None = None
    #: What `start_library` opened.
    library: Library | None = None
    #: What `start_checker` opened.
    references: References | None = None
    monitor: GpuMonitor | None = None
    on_gpu: bool = False
    #: Seconds for which the device's threads have waited for a core; None if unavailable.
    run_delay: Callable[[], float] | None = None
    #: Timer and calls per sample of the sentinel, which shows whether the machine is as fast as before.
    sentinel: tuple[Timer, int] | None = None
    #: Clock of the budget of a dispatch, in seconds.
    clock: Callable[[], float] = time.monotonic
    #: Content by hash, least recently used first.
    vmfbs: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    #: Two vmfbs may exceed it.
    vmfb_bytes: int = VMFB_BYTES
    #: Operands on the device, least recently used first.
    held: OrderedDict[tuple[bool, Operation, Distribution, int], Places] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.program = lru_cache(maxsize=64)(self._program)
        self.copies = lru_cache(maxsize=32)(self._copies)

    def forget_programs(self) -> None:
        """Drop the programs that another device or library has loaded, and its operands."""
        self.program.cache_clear()
        self.copies.cache_clear()
        self.held.clear()

    def kernels(self, is_library: bool) -> Kernels:
        """The library, or the device."""
        found = self.library if is_library else self.device
        assert found is not None
        return found

    def vmfb(self, ref: VmfbRef) -> bytes:
        """The content of a vmfb. Raises RunError if this process does not hold the vmfb."""
        if ref.sha256 not in self.vmfbs:
            raise RunError(f"the worker process does not hold the vmfb {ref.sha256[:12]}")
        return self.vmfbs[ref.sha256]

    def _program(self, ref: VmfbRef) -> LoadedKernels:
        if ref.is_repeated:
            assert self.library is not None
            return self.library.load_repeated(ref.repeat)
        return self.kernels(ref.is_library).load(b"" if ref.is_library else self.vmfb(ref))

    def _copies(self, ref: VmfbRef) -> list[LoadedKernels]:
        """The same code at several places in memory: as many as load within 10 ms, at most 8."""
        if ref.is_library:
            return [self.program(ref)]
        began, found = time.monotonic(), [self.program(ref)]
        while len(found) < _COPIES and time.monotonic() - began < _COPIES_SECONDS:
            found.append(self.kernels(False).load(self.vmfb(ref)))
        return found

    def places(self, is_library: bool, operation: Operation, distribution: Distribution, seed: int) -> Places:
        """The operands of an operation. Frees the least recently used operands if all together are too large."""
        held, key = self.held, (is_library, operation, distribution, seed)
        if key not in held:
            held[key] = Places(self.kernels(is_library), operation, draw(operation, distribution, seed))
        held.move_to_end(key)
        while len(held) > 2 and sum(e.bytes for e in held.values()) > (
            _HELD_ON_GPU if self.on_gpu else HELD_BYTES
        ):
            held.popitem(last=False)
        return held[key]


#: All that this process keeps.
STATE = WorkerState()


def start(uri: str, build_dir: str) -> None:
    """Open the device of this process. Raises TargetError if the device does not exist."""
    STATE.on_gpu = DeviceUri.parse(uri).is_gpu
    if (gpu := find_gpu(uri)) is not None:
        prevent_cpu_idle(gpu.ordinal)  # before the device starts threads, which inherit it
    STATE.device = open_kernels(uri, Path(build_dir) if build_dir else None)
    parsed = DeviceUri.parse(uri)
    if parsed.has_workers:
        yield_to_workers()
    # Not for a library: its spinning threads would appear to wait for a core.
    STATE.run_delay = run_delay("iree-worker") if parsed.is_local and not build_dir else None
    STATE.monitor = open_monitor(uri)
    STATE.forget_programs()


def start_loading(uri: str) -> None:
    """Open the device of a process that only loads vmfbs. Raises TargetError if the device does not exist."""
    STATE.device = open_kernels(uri)


def load(vmfb: bytes) -> None:
    """Load a vmfb and discard it."""
    STATE.kernels(False).load(vmfb)


def missing_vmfbs(hashes: Sequence[str]) -> list[str]:
    """The vmfbs that this process does not hold; marks the others as recently used."""
    for each in (each for each in hashes if each in STATE.vmfbs):
        STATE.vmfbs.move_to_end(each)
    return [each for each in hashes if each not in STATE.vmfbs]


def receive(digest: str, vmfb: bytes) -> None:
    """Hold a vmfb. Evicts the least recently used ones if all together are too large, but keeps two."""
    STATE.vmfbs[digest] = vmfb
    while len(STATE.vmfbs) > 2 and sum(map(len, STATE.vmfbs.values())) > STATE.vmfb_bytes:
        STATE.vmfbs.popitem(last=False)


def start_library(name: str, device: str, threads: int) -> None:
    """Make this process run operations through a library. Raises the errors of `open_library`."""
    STATE.on_gpu = DeviceUri.parse(device).is_gpu
    STATE.library = open_library(name, device, threads)
    STATE.monitor = open_monitor(device)


def library_version() -> str:
    """See `Library.version`."""
    assert STATE.library is not None
    return STATE.library.version


def ready() -> None:
    """Does nothing: calling it starts the worker and opens its device."""


def start_checker(folder: str, seed: int, device: str = "") -> None:
    """Make this process check results, with the cache of references in `folder` unless that is empty.

    Large references are computed on the GPU with the URI `device`, where torch supports it.
    """
    kept = max(_KEPT_REFERENCES, available_memory() // _KEPT_PART)
    STATE.references = References(
        Path(folder) if folder else None, seed, lambda: open_contraction(device), kept
    )


def check(expected: Expected, actual: tuple[np.ndarray, ...]) -> Comparison:
    """Compare a result with its reference. Raises ShapeMismatch."""
    return compare(expected.operation, actual, _reference(expected))


def _reference(wanted: Expected) -> tuple[Reference, ...]:
    assert STATE.references is not None
    return STATE.references.get(wanted.operation, wanted.distribution, wanted.stepwise, wanted.error_bound)


def prepare(expected: Expected) -> None:
    """Compute a reference ahead."""
    _reference(expected)


def _as_timed(refs: VmfbRefs, mode: Mode) -> VmfbRefs:
    """The vmfbs to time; a library that repeats executes as often per call as the dispatch."""
    if not refs.verify.is_library:
        return refs
    # In cold mode, dispatches run single executions, too.
    if STATE.library is None or not STATE.library.repeats or mode is Mode.COLD:
        return VmfbRefs(LIBRARY, LIBRARY)
    return VmfbRefs(VmfbRef("", 1, True), VmfbRef("", refs.profile.repeat, True))


def bytes_held(operation: Operation) -> int:
    """Bytes of the operands that measuring an operation with warm caches holds on the device."""
    return warm_places(operation) * operation.bytes


def run_once(
    ref: VmfbRef, function: str, operation: Operation, distribution: Distribution, seed: int
) -> tuple[np.ndarray, ...]:
    """The results of one execution, as in `operation.results`."""
    places = STATE.places(ref.is_library, operation, distribution, seed)
    return STATE.program(ref).bind(function, *places.first(1)).run()


def unless_known(
    known: frozenset[str], step: Callable[..., tuple[np.ndarray, ...]], *arguments: object
) -> Result:
    """The result of `step` (`run_once` or `result_of_timed`), without arrays if its hash is `known`."""
    return result_of(step(*arguments), known)


def estimate(verify: VmfbRef, function: str, operation: Operation, seed: int) -> float:
    """Approximate seconds of one warm execution."""
    places = STATE.places(verify.is_library, operation, Distribution.REALS, seed)
    single = STATE.program(_as_timed(VmfbRefs(verify, verify), Mode.WARM).verify).bind(
        function, *places.first(1)
    )
    single.time(1)
    found = [single.time(1)]
    # A single reading of a short execution may be many times too long, which would rule out the profile vmfb.
    while len(found) < _READINGS and found[0] < _SHORT_SECONDS:
        found.append(single.time(1))
    return min(found)


def take_batch(
    refs: VmfbRefs,
    function: str,
    operation: Operation,
    seed: int,
    plan: BatchPlan,
    single_seconds: float = 0.0,
) -> SampleBatch:
    """Time `function` as planned.

    `single_seconds` is the result of `estimate`; 0 if unknown. The first short kernel timed becomes the sentinel
    of this process. Raises RunError, also if cold caches are not possible.
    """
    refs = _as_timed(refs, plan.options.mode)
    timer_of = _cold if plan.options.mode is Mode.COLD else _warm
    places = STATE.places(refs.verify.is_library, operation, Distribution.REALS, seed)
    before = STATE.monitor.read(_FRESH_SECONDS) if STATE.monitor else None
    found = take(timer_of(refs, function, places, single_seconds, plan), plan, STATE.clock)
    after = STATE.monitor.read() if STATE.monitor else None
    found = replace(found, gpu=after, throttled=throttle_warning(before, after))
    if refs.verify.is_library:
        found = _of_library(found, places, plan)
    elif refs.packs_weight:
        found = replace(found, has_weight_conversion=False)
    took = min(reading.claimed for reading in found.readings) / found.executions
    if STATE.sentinel is None and took <= _SENTINEL_PART * plan.seconds:
        # Of single executions: the overhead of a call is the same each time.
        single = STATE.program(refs.verify).bind(function, places.at(0))
        sentinel = Timer(single.time, 1, run_delay=STATE.run_delay)
        STATE.sentinel = sentinel, calls_that_last(_SENTINEL_SECONDS, took)
    return found


@dataclass(frozen=True)
class BatchRequest:
    """The arguments of `take_batch`. Without `single_seconds`, `estimate` comes first."""

    refs: VmfbRefs
    function: str
    operation: Operation
    seed: int
    plan: BatchPlan
    single_seconds: float | None = None


@dataclass(frozen=True)
class TakenBatch:
    """A sample batch, and the approximate seconds of one warm execution."""

    batch: SampleBatch
    single_seconds: float


def take_batches(requests: Sequence[BatchRequest]) -> list[TakenBatch | DispatchProfilerError]:
    """A sample batch of several dispatches in turn, or the error of each."""
    return list(map(_taken_batch, requests))


def _taken_batch(request: BatchRequest) -> TakenBatch | DispatchProfilerError:
    refs, name, operation, seed, single = (
        request.refs, request.function, request.operation, request.seed, request.single_seconds
    )  # fmt: skip
    try:
        if single is None:
            single = estimate(refs.verify, name, operation, seed)
        return TakenBatch(take_batch(refs, name, operation, seed, request.plan, single), single)
    except DispatchProfilerError as error:
        return error


def _of_library(batch: SampleBatch, places: Places, plan: BatchPlan) -> SampleBatch:
    """A sample batch of the library, with the fields of libraries; the first batch has the costs of calls."""
    assert STATE.library is not None
    batch = replace(batch, has_weight_conversion=not STATE.library.converts_weights_ahead(places.operation))
    if plan.before is not None:
        return batch
    call = library_call_ms(STATE.library, places.operation)
    return replace(batch, eager_ms=eager_ms(STATE.library, places.at(0)), library_call_ms=call)


def result_of_timed(
    refs: VmfbRefs,
    function: str,
    operation: Operation,
    seed: int,
    options: MeasureOptions,
    single_seconds: float,
) -> tuple[np.ndarray, ...]:
    """The results of the code that `take_batch` times, for real values."""
    refs = _as_timed(refs, options.mode)
    ref = refs.verify if options.mode is Mode.COLD else _timed_when_warm(refs, single_seconds, options)
    return run_once(ref, function, operation, Distribution.REALS, seed)


def _timed_when_warm(refs: VmfbRefs, single_seconds: float, options: MeasureOptions) -> VmfbRef:
    """The profile vmfb, or the verify vmfb of a long dispatch, unless that would pack the weight again."""
    is_long = prefers_single(single_seconds, refs.profile.repeat, options.longest_call)
    return refs.verify if is_long and not refs.packs_weight else refs.profile


def _warm(refs: VmfbRefs, function: str, places: Places, single_seconds: float, plan: BatchPlan) -> Timer:
    """Rotates over places, from number `plan.place` on, and over copies of the code.

    Each copy would hold a packed weight, which therefore has only one. A call warms it up, and packs it if another
    dispatch of the module ran in between. Calls of single executions would pack, so that the overhead is unknown.
    """
    ref = _timed_when_warm(refs, single_seconds, plan.options)
    verify, count = STATE.program(refs.verify), warm_places(places.operation)
    copies = [STATE.program(ref)] if refs.packs_weight else STATE.copies(ref)

    def stage(number: int) -> Stage:
        operands, program = places.at(number % count), copies[number % len(copies)]
        call = program.bind(function, operands)
        return Stage(call, call if refs.packs_weight else verify.bind(function, operands))

    def overhead(seconds: float) -> CallOverhead:
        return CallOverhead() if refs.packs_weight else warm_overhead(single_seconds, seconds, ref.repeat)

    rotation = Rotation(stage, count, plan.place)
    return Timer(
        rotation.time,
        ref.repeat,
        copies[0].bind(function, places.at(0)).now,
        STATE.run_delay,
        overhead,
        rotation.advance,
        skip_warmup=STATE.on_gpu and single_seconds * ref.repeat >= _LONG_CALL_OF_GPU,
    )


def _cold(refs: VmfbRefs, function: str, places: Places, single_seconds: float, plan: BatchPlan) -> Timer:
    """The verify vmfb, whose calls are single executions, each on operands that no cache holds.

    Raises NotSupported for a packed weight, of which there is only one, so that the caches hold it.
    """
    if refs.packs_weight:
        raise NotSupported("a packed weight cannot be measured with cold caches: use --mode=warm")
    device = places.device
    spots = places.first(cold_places(places.operation, device.cache_bytes))
    single, profile = (STATE.program(ref).bind(function, spots[0]) for ref in (refs.verify, refs.profile))

    def overhead(_: float) -> CallOverhead:
        if prefers_single(single_seconds, refs.profile.repeat, plan.options.longest_call):
            return CallOverhead()
        return measure_overhead(single.time, profile.time, refs.profile.repeat)

    call = STATE.program(refs.verify).bind(function, *spots)
    return Timer(call.time, refs.verify.repeat, call.now, STATE.run_delay, overhead)


def sentinel_samples(count: int, seconds: float) -> tuple[float, ...]:
    """Seconds of samples of the sentinel; empty if nothing has been timed yet.

    Takes at most `count` samples, and none after `seconds`.
    """
    if STATE.sentinel is None:
        return ()
    timer, calls = STATE.sentinel
    timer.time(1)  # the caches hold another kernel's data
    end, found = STATE.clock() + seconds, [timer.undisturbed(calls, seconds).claimed]
    while len(found) < count and STATE.clock() < end:
        found.append(timer.undisturbed(calls, seconds).claimed)
    return tuple(found)


def sample_pairs(
    sides: Mapping[Side, tuple[VmfbRef, str]],
    operation: Operation,
    seed: int,
    options: SequentialTestOptions,
    limit: PairLimit,
    known: Mapping[Side, frozenset[str]],
) -> tuple[PairedSamples, dict[Side, Result]]:
    """Time two functions alternately until the test is decided, or up to the limit; see `paired_sampling`.

    Returns the results of each side, too, without arrays if their hash is `known`.
    """
    assert STATE.device is not None
    places = STATE.places(False, operation, Distribution.REALS, seed)
    found = {side: Timed(STATE.vmfb(ref), function, ref.repeat) for side, (ref, function) in sides.items()}
    taken = take_paired_samples(STATE.device, found, places, options, limit, STATE.run_delay)
    results = {side: result_of(arrays, known[side]) for side, arrays in taken.outputs.items()}
    return replace(taken, outputs={}), results


# -- library costs ---------------------------------------------------------------------------------

# The cost of library calls: an eager call where graphs are timed, and a call with almost no work.


_EAGER_SAMPLES = 5


def eager_ms(library: Library, operands: Operands) -> float:
    """Milliseconds of one eager execution if the library is timed in graphs; else 0."""
    if not library.repeats:
        return 0.0
    call = library.load(b"").bind("", operands)
    call.time(1)
    calls = calls_that_last(OVERHEAD_SECONDS, call.time(1))
    return 1e3 * statistics.median(call.time(calls) for _ in range(_EAGER_SAMPLES)) / calls


def library_call_ms(library: Library, operation: Operation) -> float:
    """Milliseconds of a call on a problem of extent 1: the overhead of a call.

    0 if calls are repeated, or if the operation has no such problem.
    """
    if library.repeats:
        return 0.0
    try:
        contraction = operation.contraction
        smallest = operation.smallest() if contraction is None else contraction.smallest_alike
        operands = library.put(smallest, draw(smallest, Distribution.REALS, 0))
        return 1e3 * quickest(library.load(b"").bind("", operands).time, OVERHEAD_SECONDS)
    except (NotSupported, OperationError):
        return 0.0
