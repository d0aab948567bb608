#!/usr/bin/env python3
"""Several processes that share the cores of this CPU: what each loses, against ONNX Runtime's processes.

    python benchmarks/processes.py                              two processes on half of the cores each, and two on all
    python benchmarks/processes.py --processes=4 --threads=4 timm:levit_128

Each process calls the same model, frozen, for a few seconds, all at the same time; then one process does alone. The rate is
the calls per second of all processes over those of one, per process: 1 means that none loses anything. The goal is ONNX
Runtime's rate. Models are named as in benchmarks/zoo.py. Install ONNX Runtime with
`pip install -e '.[bench]'`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import CHILD, Row, at_least, exit_with, make_parser, report

OURS, PEER = "ours frozen", "ONNX Runtime"
MODEL = "torchvision:resnet18"
#: A process starts to call when a line arrives at its standard input.
READY, START = "ready", "start\n"
#: Of ONNX Runtime's rate: figures of the same side differ by some percent from run to run.
GOAL = 0.97


@dataclass(frozen=True)
class Sharing:
    """So many processes at the same time, with so many threads each."""

    processes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.processes} processes of {self.threads} threads"


def call_model(side: str, name: str, threads: int, seconds: float) -> None:
    """Prepare a model, wait for a line, and print the calls per second."""
    import torch

    from benchmarks._zoo_models import zoo_model
    from benchmarks._zoo_sides import Setting, sides

    torch.set_num_threads(threads)
    with torch.inference_mode():
        try:
            zoo = zoo_model(name)
            run = sides()[side](zoo.module, zoo.inputs(1), Setting(threads, 1, "float32"))
        except (ImportError, ValueError) as error:
            sys.exit(f"{name}, {side}: {error}")
        for _ in range(5):
            run()
        print(READY, flush=True)
        sys.stdin.readline()
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            run()
            calls += 1
    print(calls / (time.perf_counter() - start), flush=True)


def rates(side: str, name: str, sharing: Sharing, seconds: float) -> list[float]:
    """The calls per second of each of the processes, which call at the same time."""
    command = [sys.executable, __file__, CHILD, side, name, str(sharing.threads), str(seconds)]
    variables = {**os.environ, "OMP_NUM_THREADS": str(sharing.threads), "PYTHONWARNINGS": "ignore"}
    started = [
        subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(sharing.processes)
    ]
    try:
        for each in started:
            _wait_for_ready(each, side)
        for each in started:
            assert each.stdin is not None
            each.stdin.write(START)
            each.stdin.flush()
        return [float(each.communicate()[0].split()[-1]) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()


def _wait_for_ready(process: subprocess.Popen[str], side: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == READY:
            return
    sys.exit(f"{side}: a process ended before its first call")


def kept(side: str, name: str, sharing: Sharing, seconds: float) -> float:
    """The rate of one process among others over the rate of one alone."""
    rates(side, name, Sharing(1, sharing.threads), 0.0)  # compiles what the others load
    together = rates(side, name, sharing, seconds)
    (alone,) = rates(side, name, Sharing(1, sharing.threads), seconds)
    return sum(together) / sharing.processes / alone


def rows(name: str, sharing: Sharing, seconds: float) -> list[Row]:
    """What processes keep of the rate of one: ours, with the goal that ONNX Runtime sets."""
    peer = kept(PEER, name, sharing, seconds)
    return [
        Row(f"{name}, {sharing}: ONNX Runtime keeps", peer, "x", "any", True),
        at_least(
            f"{name}, {sharing}: ours keeps", kept(OURS, name, sharing, seconds), "x", round(GOAL * peer, 2)
        ),
    ]


def shared(processes: int | None, threads: int | None) -> Sequence[Sharing]:
    """What the command asks for: by default, two processes on half of the cores each, and two on all."""
    cores = len(os.sched_getaffinity(0))
    if processes is not None or threads is not None:
        count = processes or 2
        return [Sharing(count, threads or max(1, cores // count))]
    return [Sharing(2, max(1, cores // 2)), Sharing(2, cores)]


def call_in_child() -> int:
    """What `python processes.py --child SIDE MODEL THREADS SECONDS` does."""
    _, _, chosen, model, count, duration = sys.argv
    call_model(chosen, model, int(count), float(duration))
    return 0


def main() -> int:
    """Print the table; exit status 1 if a goal is missed."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {MODEL}")
    parser.add_argument("--processes", type=int, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each process")
    parser.add_argument("--seconds", type=float, default=5.0, help="of calls, of each process")
    given = parser.parse_args()
    if any(each is not None and each < 1 for each in (given.processes, given.threads)) or given.seconds <= 0:
        parser.error("--processes, --threads and --seconds must be positive")
    found = [
        row
        for name in given.models or [MODEL]
        for sharing in shared(given.processes, given.threads)
        for row in rows(name, sharing, min(given.seconds, 2.0) if given.quick else given.seconds)
    ]
    return report(found, given.json)


if __name__ == "__main__":
    exit_with(call_in_child if sys.argv[1:2] == [CHILD] else main)
