#!/usr/bin/env python3
"""Several devices of one host: the wall time of a search on all of them against one, and whether the winners agree.

    python benchmarks/devices.py --devices=0,1 --target=cuda:h100 --quick    24 evaluations of 6 problems: about 90 s
    python benchmarks/devices.py --devices=0,1 --target=cuda:h100            the default budget, 64: about 210 s

The machine needs the compiler and the devices, but neither Optuna (evaluations are then kept in memory) nor Triton nor
torch. Both searches compile everything, and propose the same configurations: IREE's own, drawn at random.

On two H100s of one host with 32 cores, two were 1.58 times as fast as one with 24 evaluations, and all winners agreed.
That was before references were kept between rounds, which took 24 to 28 s of either search: an evaluation of all six
problems took 1.94 s on one device and 0.98 s on two.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_least, exit_with, report
from dispatch_profiler.configurations import TritonTiles, spaces
from dispatch_profiler.errors import MissingDependency
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.devices import parse_devices
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.search.events import Event, Measuring
from dispatch_profiler.tuner.search.operation_search import SearchTask
from dispatch_profiler.tuner.search.search import SearchOptions, SearchResult, search
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.tunings.tuning_file import DEFAULT_EVALUATIONS

F16 = ElementTypes("f16", "f16", "f16")
#: M, N and K: square, wide, tall and deep.
SHAPES = (
    (1024, 1024, 1024), (2048, 2048, 2048), (512, 512, 4096), (128, 4096, 4096),
    (4096, 128, 4096), (3456, 1024, 2048),
)  # fmt: skip
#: Winners agree if one is at most this much slower than the other; GPUs of one kind differ by as much.
AGREEMENT = 1.03
#: Caches that would let the second search find what the first one compiled.
CACHES = ("CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


@dataclass
class _Study:
    """Evaluations in memory."""

    evaluations: tuple[Evaluation, ...] = ()

    def add(self, evaluation: Evaluation) -> None:
        self.evaluations += (evaluation,)

    def keep_alive(self) -> None:
        """No other process has it."""

    def __enter__(self) -> _Study:
        return self

    def __exit__(self, *exception: object) -> None: ...


class _Memory:
    """A storage without Optuna."""

    def study(self, key: object, space: object = None) -> _Study:
        return _Study()


@contextmanager
def storage_in(folder: Path) -> Iterator[Any]:
    """An SQLite file in `folder`, or memory without Optuna."""
    try:
        opened = open_storage(folder / "search.db")
    except MissingDependency:
        yield _Memory()
        return
    with opened:
        yield opened


@dataclass(frozen=True)
class Searched:
    """What a search found, and the seconds that it took."""

    result: SearchResult
    seconds: float


def tasks_of(target: Target, count: int, evaluations: int) -> list[SearchTask]:
    """Searches that propose the same whatever was measured."""
    found = []
    shrink = 64 if target.family == "null" else 1  # its device computes with numpy
    for shape in SHAPES[:count]:
        shape = tuple(max(8, extent // shrink) for extent in shape)
        operation = Matmul(*shape, F16)
        among = [each for each in spaces(operation, target.limits) if each.kind is not TritonTiles]
        space = SearchSpace(operation, target.limits, among)
        found.append(SearchTask(space, strategy="random", evaluations=evaluations))
    return found


def searched(tasks: Sequence[SearchTask], target: Target, devices: tuple[str, ...]) -> Searched:
    """Search on `devices` with empty caches, and print where the time went."""
    with tempfile.TemporaryDirectory() as folder, _empty_caches(Path(folder)):
        options = SearchOptions(EvaluatorOptions(devices[0], seconds=30.0), devices=devices)
        began = time.perf_counter()
        events: list[tuple[float, Event]] = []
        with storage_in(Path(folder)) as storage:
            result = search(
                tasks, target, storage, options, lambda event: events.append((time.perf_counter(), event))
            )
        seconds = time.perf_counter() - began
    _describe(Searched(result, seconds), [at - began for at, each in events if isinstance(each, Measuring)])
    return Searched(result, seconds)


@contextmanager
def _empty_caches(folder: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in CACHES}
    os.environ.update({name: str(folder / name) for name in CACHES})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _describe(found: Searched, measuring: Sequence[float]) -> None:
    """Print how the time was spent, and on which device."""
    times, counts, seconds = found.result.times, Counter[str](), Counter[str]()
    evaluations = [each for result in found.result.operations for each in result.evaluations]
    for each in evaluations:
        device = each.record.provenance.device
        counts[device] += 1
        seconds[device] += each.seconds
    shares = ", ".join(
        f"{counts[device]} evaluations in {seconds[device]:.1f} s (with compiling) on {device}"
        for device in counts
    )
    verdicts = Counter(each.record.verdict.value for each in evaluations)
    print(
        f"{found.seconds:.1f} s: measuring {times.measuring:.1f} s, only compiling {times.compiling:.1f} s, neither "
        f"{times.other:.1f} s; the first candidates compiled after {measuring[0]:.1f} s; {shares}; "
        + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
        flush=True,
    )


def agreement(one: SearchResult, other: SearchResult) -> float:
    """Percent of the operations whose winners are the same or equally fast."""
    agreeing = 0
    for first, second in zip(one.operations, other.operations, strict=True):
        winners = first.best, second.best
        times = sorted(each.milliseconds for each in winners if each is not None and each.milliseconds)
        same = len({each.dispatch if each else None for each in winners}) == 1
        agreeing += same or (len(times) == 2 and times[1] <= AGREEMENT * times[0])
        names = (
            f"{each.configuration.name} {each.milliseconds:.4g} ms" if each else "none" for each in winners
        )
        print(f"{first.operation.name}: {' | '.join(names)}")
    return 100.0 * agreeing / len(one.operations)


def compared(target: Target, devices: tuple[str, ...], count: int, evaluations: int) -> list[Row]:
    """A search of `count` operations on the first of `devices`, then on all."""
    tasks = tasks_of(target, count, evaluations)
    one, every = (searched(tasks, target, each) for each in (devices[:1], devices))
    return [
        at_least(
            f"a search on {len(devices)} devices against one",
            one.seconds / every.seconds,
            "times faster",
            0.85 * len(devices),
        ),
        at_least("problems whose winners agree", agreement(one.result, every.result), "%", 100.0),
    ]


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="0,1", help="numbers or URIs (default: 0,1)")
    parser.add_argument("--target", default="cuda:h100", help="default: cuda:h100")
    parser.add_argument(
        "--evaluations", type=int, metavar="N", help="for each problem (default: 64; quick: 24)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer evaluations")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    options = parser.parse_args()
    target = parse_target(options.target)
    devices = parse_devices(options.devices, target.device_uri)
    evaluations = options.evaluations or (24 if options.quick else DEFAULT_EVALUATIONS)
    # Imports everything that the first search would import.
    with tempfile.TemporaryDirectory() as folder, storage_in(Path(folder)) as storage:
        null = parse_target("null")
        warm = SearchOptions(EvaluatorOptions("null"), overlap=True)
        search(tasks_of(null, 1, 1), null, storage, warm)
    return report(compared(target, devices, len(SHAPES), evaluations), options.json)


if __name__ == "__main__":
    exit_with(main)
