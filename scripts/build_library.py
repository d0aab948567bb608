"""Tune the operations of well-known models for a shipped library, in pieces.

    python scripts/build_library.py capture [--use cpu] [MODEL ...]
    python scripts/build_library.py left STATE [--target llvm-cpu] [--threads 16]
    python scripts/build_library.py tune STATE --time 8m [--target llvm-cpu] [--threads 16] [--part 1/2]
    python scripts/build_library.py keep STATE [--target llvm-cpu] [--threads 16]

`capture` writes the operations of each model of benchmarks/_library_models.py, once, to
benchmarks/workloads/models/USE/MODEL.yaml. `tune` runs `dispatch-profiler tune` on the operations that have no entry for
this hardware, a few at a time, first those with the most value for the time that tuning takes: value is the share of an
operation in the time of a model, summed over models. On NVIDIA GPUs, operations without a Triton kernel are last: IREE's own
code is slower than cuDNN and cuBLAS there. With --part=1/2 and --part=2/2, two calls with a STATE each share the operations,
such as on two GPUs.
Other options, such as --devices=0, are passed on. `left` prints what remains to be done. `keep` adds the entries to the
shipped library, and the operations that were tuned, also those without an entry because nothing is faster, to
benchmarks/workloads/models/USE/tuned, so that they are not tuned again.

Ctrl-C, SIGTERM and the end of the time are the same: what is confirmed is in STATE/library, and the same command continues.

The folder STATE can be moved to another machine of the same kind. It has

    library     what is confirmed
    done.yaml   operations that were tuned
    search.db   every evaluation
    slices      the folders of each `tune`; the last one is continued if it was stopped

The exit status of `tune` is 1 if a search failed. The next call goes on after that slice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dispatch_profiler.configurations import TritonTiles, spaces
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.library import Library, library_file, merge
from dispatch_profiler.library.cli import installed_revision
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.library.family_files import folder_name
from dispatch_profiler.library.library import shipped_for
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import CpuTarget, CudaTarget, Target, parse_target
from dispatch_profiler.tuner.commands.arguments import duration
from dispatch_profiler.tuner.tunings.time_limit import work_of
from dispatch_profiler.workloads import (
    Workload,
    WorkloadEntry,
    append_workload,
    read_workload,
    write_workload,
)

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ROOT / "benchmarks" / "workloads" / "models"
#: Problems of a slice: of the first one, which shows how long a problem takes, and at most.
FIRST, MOST = 4, 48
#: A slice is begun if it is expected to take at most this part of the time that is left.
_SAFE = 0.8
#: FLOP of an operation that takes twice as long to tune as a short one: 1.7e9 on 2 threads, 6e9 on 16, 1e10 on an H200.
_WORK_OF_TUNING = 4e9
#: Seconds for a stopped `tune` to end.
_GRACE = 30.0
#: Winners of slices are kept if they are faster by more than so many percent.
_THRESHOLD = 2
#: Exit statuses of `tune` after which its slice is done.
_DONE = (0, 1)


@dataclass(frozen=True)
class Problem:
    """An operation, how often it runs in all models together, and its share of a model's time, summed over models.

    `is_promising`: a search can find a kernel that is worth an entry.
    """

    operation: Operation
    count: int
    value: float
    is_promising: bool = True

    @property
    def cost(self) -> float:
        """How long tuning it takes, relative to a short operation."""
        return 1.0 + work_of(self.operation) / _WORK_OF_TUNING


def is_promising(operation: Operation, target: Target) -> bool:
    """Whether a search can find more than IREE's own code, which is slower than the libraries of NVIDIA GPUs."""
    if not isinstance(target, CudaTarget):
        return True
    return any(each.kind.provider == TritonTiles.provider for each in spaces(operation, target.limits))


def problems_of(workloads: Iterable[Workload], target: Target) -> list[Problem]:
    """The distinct operations of models: the promising ones, then the others, each with the most value for its cost first."""
    counts: dict[Operation, int] = defaultdict(int)
    values: dict[Operation, float] = defaultdict(float)
    for workload in workloads:
        works = {each.operation: each.count * work_of(each.operation) for each in workload.entries}
        total = sum(works.values())
        for each in workload.entries:
            counts[each.operation] += each.count
            values[each.operation] += works[each.operation] / total
    problems = [
        Problem(operation, counts[operation], value, is_promising(operation, target))
        for operation, value in values.items()
    ]
    return sorted(problems, key=lambda each: (*_rank([each]), each.operation.name))


def entries_for(library: Library, target: Target, hardware: Hardware, revision: str) -> set[Operation]:
    """The operations that have an entry in `library` that was measured with this target, hardware and compiler."""
    return {
        each.operation
        for each in library.readable()
        if (each.provenance.target, each.hardware) == (target.name, hardware)
        and each.is_of_compiler(revision)
    }


def remaining(problems: Sequence[Problem], known: Collection[Operation]) -> list[Problem]:
    """The problems that are not `known`, in their order."""
    return [each for each in problems if each.operation not in known]


def first_slice(problems: Sequence[Problem], most: int) -> list[Problem]:
    """The problems with the most value for their cost, promising ones first, at most so many, but at least one group.

    A group has the problems that differ in their epilogues only, which `tune` searches together.
    """
    groups: dict[Operation, list[Problem]] = defaultdict(list)
    for each in problems:
        groups[each.operation.without_epilogue].append(each)
    chosen: list[Problem] = []
    for group in sorted(groups.values(), key=_rank):
        if chosen and len(chosen) + len(group) > most:
            break
        chosen += group
    return chosen


def _rank(group: Sequence[Problem]) -> tuple[bool, float]:
    value = sum(each.value for each in group) / max(each.cost for each in group)
    return not any(each.is_promising for each in group), -value


@dataclass(frozen=True)
class Part:
    """Every `of`-th group of problems, from number `number` on, which counts from 1: `1/2`."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """Raises argparse.ArgumentTypeError."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 1/2 or 2/2")
        return cls(int(found[1]), int(found[2]))

    def choose(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems of this part, in their order."""
        groups: dict[Operation, int] = {}
        numbered = [
            (groups.setdefault(each.operation.without_epilogue, len(groups)), each) for each in problems
        ]
        return [each for number, each in numbered if number % self.of == self.number - 1]


def fitting(seconds_left: float, seconds_each: float | None) -> int:
    """How many problems a slice has; `seconds_each` is how long a problem has taken so far, None if that is unknown."""
    if seconds_each is None:
        return FIRST
    return min(MOST, int(_SAFE * seconds_left / seconds_each))


# -- capture ---------------------------------------------------------------------------------------


def capture(options: argparse.Namespace) -> int:
    """Write the operations of each model; a model that fails costs only itself."""
    sys.path.insert(0, str(ROOT))
    from benchmarks._library_models import MODELS, USES, operations_of

    unknown = set(options.models) - set(MODELS)
    if unknown:
        sys.exit(f"unknown models: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    failed = 0
    for name in options.models or MODELS:
        path = WORKLOADS / options.use / f"{name}.yaml"
        if path.exists() and not options.models:
            continue
        try:
            workload = operations_of(name, USES[options.use])
        except Exception as error:  # whatever a model raises
            failed += 1
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_workload(workload, path)
        launches = sum(each.count for each in workload.entries)
        print(
            f"{path.relative_to(ROOT)}: {len(workload.entries)} operations, {launches} launches", flush=True
        )
    return 1 if failed else 0


# -- tune ------------------------------------------------------------------------------------------


class Build:
    """The library that is built in the folder `state`, beside what `shipped` has, for a part of the operations."""

    def __init__(
        self, state: Path, target: Target, hardware: Hardware, workloads: Path, part: Part = Part()
    ) -> None:
        self.state = state
        self._part = part
        self.shipped = shipped_for(target)
        self._target = target
        self._hardware = hardware
        self._workloads = workloads
        self._done = state / "done.yaml"
        self._kept = workloads / "tuned" / f"{folder_name(target.name, hardware)}.yaml"

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of all models, in this part."""
        files = sorted(self._workloads.glob("*.yaml"))
        if not files:
            sys.exit(
                f"{self._workloads} has no workloads: python scripts/build_library.py capture writes them"
            )
        every = problems_of((read_workload(each).workload for each in files), self._target)
        return self._part.choose(every)

    def left(self) -> list[Problem]:
        """The problems that have no entry yet, and were not tuned in vain."""
        revision = installed_revision(self._target.name)
        known = _operations_of(self._done) | _operations_of(self._kept)
        for folder in (self.shipped, self.state / "library"):
            if folder is not None and library_file(folder).exists():
                known |= entries_for(Library.load(folder), self._target, self._hardware, revision)
        return remaining(self.problems, known)

    def slice(self, left: Sequence[Problem], most: int) -> Path:
        """The folder of the slice that was stopped, or of a new one with at most so many problems."""
        slices = sorted((self.state / "slices").glob("*/workload.yaml"))
        waiting = {each.operation for each in left}
        if slices and waiting.intersection(read_workload(slices[-1]).workload.operations):
            return slices[-1].parent
        folder = self.state / "slices" / f"{len(slices):04}"
        folder.mkdir(parents=True)
        entries = (WorkloadEntry(each.operation, each.count) for each in first_slice(left, most))
        write_workload(Workload(tuple(entries)), folder / "workload.yaml")
        return folder

    def finish(self, folder: Path) -> int:
        """Take over the entries of a slice, and mark its problems as done. Returns the number of entries."""
        count = self.take_over(folder)
        append_workload(read_workload(folder / "workload.yaml").workload.entries, self._done)
        return count

    def take_over(self, folder: Path) -> int:
        """Add what is confirmed in a slice to the library. Returns the number of entries."""
        mine, final = self.state / "library", folder / "final"
        found = Library.load(final) if library_file(final).exists() else Library()
        if len(found):
            known = Library.load(mine) if library_file(mine).exists() else Library()
            merge(known, found, force=False).library.save(mine)
        return len(found)

    def keep(self) -> tuple[int, int]:
        """Add what is confirmed to the shipped library, and note all that was tuned. Returns the numbers of new ones."""
        if self.shipped is None:
            sys.exit(f"no library is shipped for {self._target.name} on this hardware")
        shipped, mine = Library.load(self.shipped), self.state / "library"
        if not (library_file(mine).exists() or self._done.exists()):
            sys.exit(
                f"{self.state} has nothing to keep: python scripts/build_library.py tune {self.state} writes it"
            )
        found = Library.load(mine) if library_file(mine).exists() else Library()
        merged = merge(shipped, found, force=False).library
        merged.save(self.shipped)
        done = read_workload(self._done).workload.entries if self._done.exists() else ()
        known = _operations_of(self._kept)
        new = [each for each in done if each.operation not in known]
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        append_workload(new, self._kept)
        return len(merged) - len(shipped), len(new)


def _operations_of(file: Path) -> set[Operation]:
    return set(read_workload(file).workload.operations) if file.exists() else set()


def keep(options: argparse.Namespace) -> int:
    """Take over a build."""
    build = build_of(options)
    entries, tuned = build.keep()
    print(f"{build.shipped}: {counted(entries, 'new entry')}; {counted(tuned, 'operation')} more were tuned")
    return 0


def tune(options: argparse.Namespace) -> int:
    """Tune slices until the time has passed or nothing is left."""
    build = build_of(options)
    deadline = time.monotonic() + options.time
    status, rate = 0, None
    while (left := build.left()) and (most := fitting(deadline - time.monotonic(), rate)):
        folder = build.slice(left, most)
        count = len(read_workload(folder / "workload.yaml").workload.entries)
        began = time.monotonic()
        print(f"{folder}: {count} of {len(left)} problems that are left", flush=True)
        ended = run_tune(command(options, build, folder), deadline - began)
        if ended not in _DONE:
            confirmed = counted(build.take_over(folder), "entry")
            how = "was stopped" if ended is None else f"failed with status {ended}"
            print(f"{folder} {how}, {confirmed} confirmed; the same command continues it")
            status = status if ended is None else ended
            break
        status = max(status, ended)
        rate = max(0.1, (time.monotonic() - began) / count)
        found = counted(build.finish(folder), "entry")
        print(f"{folder}: {found} of {counted(count, 'problem')}, {rate:.1f} s each", flush=True)
    show_left(build)
    return status


def command(options: argparse.Namespace, build: Build, folder: Path) -> list[str]:
    """The command that tunes a slice."""
    target = parse_target(options.target)
    words = ["tune", str(folder / "workload.yaml"), f"--output={folder}", f"--target={options.target}"]
    words += [f"--storage={build.state / 'search.db'}", f"--evaluations={options.evaluations}"]
    words += [f"--threshold={_THRESHOLD}"]
    if build.shipped is not None:
        words += [f"--library={build.shipped}"]
    if isinstance(target, CpuTarget):
        words += ["--packed-weights"]
    if options.threads:
        words += [f"--threads={options.threads}"]
    return [sys.executable, "-m", "dispatch_profiler", *words, *options.more]


def run_tune(words: Sequence[str], seconds: float) -> int | None:
    """Run a command for at most so long, then interrupt it, as Ctrl-C does. Returns its exit status, None if interrupted."""
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(max(1.0, seconds))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
            process.wait()
        return None


def show_left(build: Build, lines: int = 20) -> None:
    """Print what is left: the number of problems, their share, and the most valuable ones."""
    every, left = build.problems, build.left()
    part = sum(each.value for each in left) / sum(each.value for each in every)
    print(
        f"left: {len(left)} of {len(every)} operations, {100.0 * part:.1f} % of the expected time of a mean model"
    )
    if unpromising := sum(not each.is_promising for each in left):
        print(f"{counted(unpromising, 'operation')} of these without a Triton kernel, which are last")
    for each in left[:lines]:
        print(f"  {each.value:8.4f}  {each.count:6} x  {each.operation.name}")


def build_of(options: argparse.Namespace) -> Build:
    """The build that a command line names."""
    target = parse_target(options.target)
    is_cpu = isinstance(target, CpuTarget)
    hardware = Hardware.here(target)
    if options.threads and is_cpu:
        hardware = hardware._replace(threads=options.threads)
    workloads = options.workloads or WORKLOADS / ("cpu" if is_cpu else "gpu")
    part = getattr(options, "part", Part())
    return Build(options.state.absolute(), target, hardware, workloads, part)


def parser() -> argparse.ArgumentParser:
    """The arguments of this script; `tune` leaves others to the command `tune`."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = made.add_subparsers(dest="action", required=True)
    capturing = actions.add_parser("capture", help="write the operations of models that have no file yet")
    capturing.add_argument(
        "models", nargs="*", metavar="MODEL", help="write these again (default: all without a file)"
    )
    capturing.add_argument(
        "--use", default="cpu", choices=["cpu", "gpu"], help="types and batches (default: cpu)"
    )
    for name in ("tune", "left", "keep"):
        action = actions.add_parser(name)
        action.add_argument("state", type=Path, metavar="STATE", help="folder of the build")
        action.add_argument("--target", default="llvm-cpu", help="such as cuda:sm_90 (default: llvm-cpu)")
        action.add_argument(
            "--threads", type=int, metavar="N", help="physical cores that kernels use (default: all)"
        )
        action.add_argument(
            "--workloads", type=Path, metavar="DIR", help="folder of workloads (default: by the target)"
        )
        if name == "tune":
            action.add_argument(
                "--time", type=duration, required=True, help="end after this time, such as 8m"
            )
            action.add_argument("--evaluations", type=int, default=10, help="of each problem (default: 10)")
            action.add_argument(
                "--part",
                type=Part.parse,
                default=Part(),
                metavar="I/N",
                help="such as 1/2: half of the problems",
            )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    made = parser()
    options, options.more = made.parse_known_args(arguments)
    if options.more and options.action != "tune":
        made.error(f"unknown arguments: {' '.join(options.more)}")
    try:
        if options.action == "capture":
            return capture(options)
        if options.action == "keep":
            return keep(options)
        if options.action == "tune":
            # Shells let what they start in the background ignore Ctrl-C; the search, which is interrupted, inherits that.
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.default_int_handler)
            return tune(options)
        show_left(build_of(options))
    except DispatchProfilerError as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
