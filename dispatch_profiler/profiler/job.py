"""What the two worker processes do: one owns the device and runs dispatches, one checks results.

They are apart because numpy's BLAS keeps its threads spinning after a product: beside a kernel
that is being timed they made it look up to twice as slow.

Modules and inputs of the last few calls are kept: all configurations of an operation share them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dispatch_profiler.files import sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.inputs import Distribution, draw
from dispatch_profiler.profiler.interleaved import (
    Interleaved,
    InterleavedOptions,
    InterleavedResult,
    Side,
)
from dispatch_profiler.profiler.measure import (
    Measurement,
    MeasureOptions,
    Timer,
    calls_per_sample,
    measure,
)
from dispatch_profiler.profiler.references import References
from dispatch_profiler.profiler.stopping import Reading, clock_warnings
from dispatch_profiler.profiler.verify import Comparison, compare
from dispatch_profiler.runtime import Call, Device, Library, Program, RunError, open_device, open_library

#: Lets the threads of BLAS sleep as soon as they are done.
CHECKER_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4", "OMP_WAIT_POLICY": "passive"}

_device: Device | None = None
_library: Library | None = None
_references: References | None = None
#: A call and how many of it make a sample: what tells whether the machine is as it was.
_sentinel: tuple[Call, int] | None = None
_SENTINEL_SECONDS = 3e-3
_SENTINEL_SAMPLES = 7


@dataclass(frozen=True)
class Module:
    """A vmfb by its path; the hash tells two versions of one path apart."""

    path: str
    sha256: str
    #: Executions of a dispatch in one call.
    repeat: int


#: Stands for the library of this process, which needs no vmfb.
LIBRARY = Module("", "", 1)


@dataclass(frozen=True)
class Interleaving:
    """What was found, the median of each side in milliseconds, and what each side computed."""

    result: InterleavedResult
    medians_ms: Mapping[Side, float]
    outputs: Mapping[Side, np.ndarray]


def start(uri: str, build_dir: str) -> None:
    """Open the device of this process. Raises TargetError if there is none."""
    global _device
    _device = open_device(uri, Path(build_dir) if build_dir else None)


def start_library(name: str, device: str, threads: int) -> None:
    """Make this process one that runs operations through a library. Raises as `open_library` does."""
    global _library
    _library = open_library(name, device, threads)


def library_version() -> str:
    """What computes in this process."""
    assert _library is not None
    return _library.version


def ready() -> None:
    """A call that only starts the worker, its device opened."""


def start_checker(folder: str, seed: int) -> None:
    """Make this process one that checks results, with the cache of references in `folder`."""
    global _references
    _references = References(Path(folder), seed)


def check(
    operation: Operation, distribution: Distribution, actual: np.ndarray, stepwise: bool = False
) -> Comparison:
    """Compare a result with its reference; for `stepwise` see `reference`. Raises ShapeMismatch."""
    assert _references is not None
    return compare(operation, actual, _references.get(operation, distribution, stepwise))


@lru_cache(maxsize=4)
def _program(module: Module) -> Program:
    if module == LIBRARY:
        assert _library is not None
        return _library
    assert _device is not None
    data = Path(module.path).read_bytes()
    if sha256(data) != module.sha256:
        raise RunError(f"{module.path} has changed since it was checked")
    return _device.load(data)


@lru_cache(maxsize=2)
def _inputs(operation: Operation, distribution: Distribution, seed: int) -> tuple[np.ndarray, ...]:
    return draw(operation, distribution, seed)


def _bind(module: Module, function: str, operation: Operation, distribution: Distribution, seed: int) -> Call:
    return _program(module).bind(function, operation, _inputs(operation, distribution, seed))


def run_once(
    module: Module, function: str, operation: Operation, distribution: Distribution, seed: int
) -> np.ndarray:
    """The result of one execution, as `operation.result` says."""
    return _bind(module, function, operation, distribution, seed).run()


def estimate(verify: Module, function: str, operation: Operation, seed: int) -> float:
    """Seconds of one warm execution, roughly."""
    single = _bind(verify, function, operation, Distribution.REALS, seed)
    single.time(1)
    return single.time(1)


def take_samples(
    module: Module,
    function: str,
    operation: Operation,
    seed: int,
    options: MeasureOptions,
    single_seconds: float = 0.0,
    best_ms: float | None = None,
) -> tuple[Measurement, np.ndarray]:
    """Time `function`; also the result of what was timed, for real values, to be checked.

    The first that is timed becomes the sentinel of this process.
    """
    global _sentinel
    call = _bind(module, function, operation, Distribution.REALS, seed)
    timer = Timer(call.time, module.repeat, call.now, single_seconds)
    measurement = measure(timer, options, best_ms=best_ms)
    if _sentinel is None:
        seconds = 1e-3 * measurement.median_ms * module.repeat
        _sentinel = call, max(1, math.ceil(_SENTINEL_SECONDS / max(seconds, 1e-9)))
    return measurement, call.run()


def sentinel_samples() -> tuple[float, ...]:
    """Seconds that the same kernel takes as ever; empty if nothing has been timed yet."""
    if _sentinel is None:
        return ()
    call, calls = _sentinel
    call.time(1)  # another kernel's data is in the caches
    return tuple(call.time(calls) for _ in range(_SENTINEL_SAMPLES))


def interleave(
    sides: Mapping[Side, tuple[Module, str]],
    operation: Operation,
    seed: int,
    options: InterleavedOptions,
    seconds: float,
) -> Interleaving:
    """Time two functions in turns until it is decided, or for `seconds`; see `interleaved`."""
    timers, calls, results = {}, {}, {}
    for side, (module, function) in sides.items():
        call = _bind(module, function, operation, Distribution.REALS, seed)
        timers[side] = Timer(call.time, module.repeat, call.now)
        call.time(1)
        calls[side] = calls_per_sample(min(call.time(1) for _ in range(3)), module.repeat, None)
        results[side] = call.run()
    readings: dict[Side, list[Reading]] = {side: [] for side in sides}

    def sample(side: Side) -> float:
        reading = timers[side].read(calls[side])
        if reading.claimed <= 0:
            raise RunError("the clock stood still or went back: no figure can be trusted")
        readings[side].append(reading)
        return 1e3 * reading.claimed / (calls[side] * timers[side].repeat)

    rule, end = Interleaved(options), time.monotonic() + seconds
    while not rule.finished and time.monotonic() < end:
        rule.add([sample(side) for side in rule.order])
    if doubts := clock_warnings([reading for each in readings.values() for reading in each]):
        raise RunError(f"{doubts[0]}: no figure can be trusted")
    medians = {
        side: 1e3 * statistics.median(r.claimed for r in each) / (calls[side] * timers[side].repeat)
        for side, each in readings.items()
        if each
    }
    return Interleaving(rule.result(), medians, results)
