#!/usr/bin/env python3
"""Searches: how fast they are, and how much of their time goes neither into compiling nor into measuring.

The time of a search is the time of its process, which starts Python and opens the storage. The second row starts it again
when everything is stored. The last rows are of `tune` with empty caches: evaluations in each second of the search, and
the part of search and benchmark that the benchmark takes, in which the winners are confirmed; then the parts of all of
`tune`. On a machine with 16 cores:

    python benchmarks/tuner.py --only-tune --workload=benchmarks/workloads/resnet34_f32.yaml --seconds=90
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_least, below, exit_with, make_parser, report
from dispatch_profiler.cores import usable_processes

ROOT = Path(__file__).parent.parent
#: A product of BERT, searched by a process of its own.
PROGRAM = """
import json, sys
from pathlib import Path
from dispatch_profiler import EvaluatorOptions, Matmul, parse_target
from dispatch_profiler.tuner.search.operation_search import SearchTask
from dispatch_profiler.tuner.search.search import SearchOptions, search
from dispatch_profiler.tuner.spaces.seeds import baselines, seeds
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.storage import open_storage

folder, evaluations = Path(sys.argv[1]), int(sys.argv[2])
operation, target = Matmul(128, 768, 768), parse_target("llvm-cpu")
space = SearchSpace(operation, target.limits)
task = SearchTask(space, baselines(operation, target), seeds(operation, target), evaluations=evaluations)
options = SearchOptions(EvaluatorOptions(target.device_uri, peaks=folder / "peaks"))
with open_storage(folder / "search.db") as storage:
    found = search([task], target, storage, options)
(result,) = found.operations
assert result.best is not None and result.default is not None
print(json.dumps({
    "compiling": found.times.compiling,
    "measuring": found.times.measuring,
    "speedup": result.default.milliseconds / result.best.milliseconds,
    "failed": sum(each.milliseconds is None for each in result.evaluations),
}))
"""


def searched(folder: Path, evaluations: int) -> tuple[float, dict[str, float]]:
    """(seconds that a search took, what it says)."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(evaluations)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return time.perf_counter() - start, found


def overhead(evaluations: int) -> list[Row]:
    """A search from the start, and again on its storage."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, found = searched(Path(folder), evaluations)
        again, _ = searched(Path(folder), evaluations)
    busy = found["compiling"] + found["measuring"]
    print(
        f"{evaluations} evaluations in {seconds:.0f} s: compiling {found['compiling']:.0f} s, measuring "
        f"{found['measuring']:.0f} s, {found['failed']:.0f} failed; the best is {found['speedup']:.2f} times as fast as "
        "the default"
    )
    return [
        below("search time spent neither compiling nor measuring", 100.0 * (1.0 - busy / seconds), "%", 5.0),
        below("a search that is done, started again", again, "s", 10.0),
    ]


#: Operations of ResNet-34 and BERT; the search for the second convolution serves the third.
WORKLOAD = """
format: dispatch_profiler workload
version: 1
operations:
  - operation: {kind: conv2d, n: 1, h: 56, w: 56, c: 64, k: 64, r: 3, s: 3, padding: [1, 1]}
  - operation: {kind: conv2d, n: 1, h: 14, w: 14, c: 256, k: 256, r: 3, s: 3, padding: [1, 1]}
  - operation: {kind: conv2d, n: 1, h: 14, w: 14, c: 256, k: 256, r: 3, s: 3, padding: [1, 1], epilogue: relu}
  - operation: {kind: matmul, m: 128, n: 768, k: 768, epilogue: bias}
"""
#: Evaluations a second on two cores and on more.
_SPEED, _SPEED_OF_MANY = 1.0, 6.0


@dataclass(frozen=True)
class Tuned:
    """How to run `tune`: on `workload`, up to `evaluations` of each problem or `seconds` for all of their searches.

    With `threads`, kernels have this many, and the other cores compile meanwhile.
    """

    workload: str
    evaluations: int
    seconds: float | None = None
    threads: int | None = None

    def options(self, problems: int) -> list[str]:
        """The options of `tune`."""
        limits = [f"--evaluations={self.evaluations}"]
        if self.seconds is not None:
            limits = [f"--time-budget={self.seconds / problems}", "--evaluations=1000"]
        return [*limits, *([f"--threads={self.threads}"] if self.threads else [])]


def tuned(how: Tuned) -> list[Row]:
    """`tune`, with the times at which its search begins and ends, and where its time goes."""
    began = ended = count = 0.0
    parts = dict.fromkeys(("compiling", "measuring", "neither"), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "workload.yaml").write_text(how.workload)
        command = [
            sys.executable, "-m", "dispatch_profiler", "tune", "workload.yaml", "--packed-weights",
            *how.options(how.workload.count("operation:")),
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "HOME": folder, "XDG_CACHE_HOME": folder}
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert process.stderr is not None
        line = ""
        for line in process.stderr:
            now = time.perf_counter()
            if line.startswith("[Compiling]"):
                began = began or now
            elif match := re.match(r"The fastest of (\d+) evaluations", line):
                ended, count = now, float(match[1])
            elif line.startswith("compiling "):
                print(f"tune: {count:.0f} evaluations in {ended - began:.0f} s: {line.strip()}")
                found = re.findall(r"(compiling|measuring|neither) (\d+\.\d) s", line)
                parts |= {name: float(seconds) for name, seconds in found}
            elif line.startswith("[Benchmark]:") and "times as fast" in line:
                print(line.rstrip())
        if process.wait():
            raise RuntimeError(f"{' '.join(command)} failed: {line.strip()}")
        end = time.perf_counter()
    parts = {"before the search": began - start, **parts}
    goal = _SPEED if usable_processes() < 4 else _SPEED_OF_MANY
    return [
        at_least("evaluations of tune", count / (ended - began), "a second", goal),
        below(
            "time of search and benchmark that the benchmark takes",
            100.0 * (end - ended) / (end - began), "%", 25.0,
        ),
        *(
            Row(f"part of tune: {name}", 100.0 * seconds / (end - start), "%", "any", True)
            for name, seconds in {**parts, "confirming": end - ended}.items()
        ),
        Row("tune as a whole", end - start, "s", "any", True),
    ]  # fmt: skip


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--only-tune", action="store_true", help="leave out the overhead of a search")
    parser.add_argument("--workload", type=Path, metavar="FILE", help="a workload.yaml to tune")
    parser.add_argument("--evaluations", type=int, metavar="N", help="of each problem that is tuned")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="for the searches of all problems, instead of evaluations"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="as for tune")
    options = parser.parse_args()
    if options.workload and not options.workload.is_file():
        parser.error(f"--workload: {options.workload} is not a file")
    how = Tuned(
        options.workload.read_text() if options.workload else WORKLOAD,
        options.evaluations or (16 if options.quick else 64),
        options.seconds,
        options.threads,
    )
    rows = [] if options.only_tune else overhead(32 if options.quick else 96)
    return report([*rows, *tuned(how)], options.json)


if __name__ == "__main__":
    exit_with(main)
